// One element more than the block has shared memory for.
extern "C" __global__ void shared_overflow(const float* x, float* out, int n) {
  TF_SHARED(smem);
  float* s = (float*)smem;
  const int t = threadIdx.x;
  s[t + (t == 100 ? n : 0)] = x[t];
  __syncthreads();
  out[t] = s[t];
}
