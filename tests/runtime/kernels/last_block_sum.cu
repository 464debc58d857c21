// Column sums: every block writes a partial result, the last one to finish adds them up.
extern "C" __global__ void last_block_sum(const float* x, float* partial, unsigned* ticket,
                                          float* out, int rows) {
  TF_SHARED(smem);
  const int t = threadIdx.x;
  const unsigned blocks = gridDim.x;
  float sum = 0.0f;
  for (int r = blockIdx.x; r < rows; r += blocks) sum += x[r * 64 + t];
  partial[blockIdx.x * 64 + t] = sum;
  if (!tf::is_last_block(ticket, blocks, (unsigned*)smem, t)) return;
  float total = 0.0f;
  for (unsigned b = 0; b < blocks; ++b) total += ((volatile float*)partial)[b * 64 + t];
  out[t] = total;
}
