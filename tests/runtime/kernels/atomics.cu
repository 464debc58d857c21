// Counting and summing with atomics from all threads of the grid.
extern "C" __global__ void atomics(const int* x, int* counts, unsigned long long* total,
                                   float* sum, double* precise, unsigned* ring) {
  const int v = x[blockIdx.x * blockDim.x + threadIdx.x];
  atomicAdd(counts + v % 8, 1);
  atomicAdd(total, (unsigned long long)v << 32);
  atomicAdd(sum, (float)v);
  atomicAdd(precise, 0.5 * v);
  atomicInc(ring, 6u);
}
