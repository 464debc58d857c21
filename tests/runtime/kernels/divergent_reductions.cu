// The same, inside functions of the headers: the error must name these lines, not theirs.
extern "C" __global__ void divergent_reductions(const float* x, float* out, int n) {
  TF_SHARED(smem);
  float* slots = (float*)smem;
  const int t = threadIdx.x;
  if (t < n) {
    out[t] = tf::block_reduce<tf::Sum, 256>(x[t], slots, t);
  } else {
    out[t] = tf::block_reduce<tf::Max, 256>(x[t], slots, t);
  }
}
