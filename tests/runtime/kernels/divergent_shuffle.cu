// Odd and even lanes shuffle at different places, each with the mask of all lanes.
extern "C" __global__ void divergent_shuffle(const float* x, float* out) {
  const int t = threadIdx.x;
  float v = x[t];
  if (t & 1)
    v += __shfl_xor_sync(0xffffffffu, v, 1);
  else
    v -= __shfl_xor_sync(0xffffffffu, v, 2);
  out[t] = v;
}
