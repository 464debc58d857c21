// The last threads leave before the barrier that the others wait in.
extern "C" __global__ void early_exit(const float* x, float* out, int n) {
  TF_SHARED(smem);
  float* s = (float*)smem;
  const int t = threadIdx.x;
  if (t >= n) return;
  s[t] = x[t];
  __syncthreads();
  out[t] = s[(t + 1) % n];
}
