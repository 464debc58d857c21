// Writes to a tensor that the parameter list calls constant.
extern "C" __global__ void constant_write(const float* x, float* out) {
  const int t = threadIdx.x;
  out[t] = x[t];
  if (t == 5) ((float*)x)[t] = 0.0f;
}
