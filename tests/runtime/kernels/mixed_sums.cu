// Reductions of values of several sizes by warps that run apart, and one by the whole block.
extern "C" __global__ void mixed_sums(const float* x, float* single, double* wide) {
  TF_SHARED(smem);
  const int t = threadIdx.x, lane = t % 32;
  const int repeats = t / 32;
  float a = tf::warp_reduce<tf::Sum>(x[t], lane);
  double b = tf::warp_reduce<tf::Max, 8>((double)x[t], lane);
  for (int i = 0; i < repeats; ++i) {
    a += tf::warp_reduce<tf::Min, 4>(x[t], lane);
    b += tf::warp_reduce<tf::Sum, 2>((double)x[t], lane);
  }
  single[t] = a;
  wide[t] = b + tf::block_reduce<tf::Sum, 256>((double)x[t], (double*)smem, t);
}
