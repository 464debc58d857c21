// Two barriers in the two branches of a condition that differs between threads.
extern "C" __global__ void divergent_barriers(const float* x, float* out, int n) {
  const int t = threadIdx.x;
  if (t < n) {
    out[t] = x[t];
    __syncthreads();
  } else {
    out[t] = -x[t];
    __syncthreads();
  }
}
