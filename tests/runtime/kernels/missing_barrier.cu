// A thread reads what another wrote to shared memory, with no barrier between.
extern "C" __global__ void missing_barrier(const float* x, float* out) {
  TF_SHARED(smem);
  float* s = (float*)smem;
  const int t = threadIdx.x, i = blockIdx.x * 256 + t;
  s[t] = x[i];
  out[i] = s[(t + 64) % 256];
}
