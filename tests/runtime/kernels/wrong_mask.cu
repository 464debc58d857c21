// All lanes shuffle with a mask that names only the lower half of them.
extern "C" __global__ void wrong_mask(const float* x, float* out) {
  const int t = threadIdx.x;
  out[t] = __shfl_xor_sync(0x0000ffffu, x[t], 1);
}
