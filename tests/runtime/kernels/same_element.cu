// Every block adds to the same elements without atomics.
extern "C" __global__ void same_element(const float* x, float* out) {
  const int t = threadIdx.x;
  out[t] = out[t] * 0.5f + x[blockIdx.x * 256 + t];
}
