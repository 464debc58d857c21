// The product of two int indices exceeds int.
extern "C" __global__ void index_overflow(const float* x, float* out, int rows) {
  const int row = threadIdx.x, element = row * rows;
  out[row] = x[(unsigned)element % 32];
}
