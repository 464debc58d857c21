// The tail of the grid runs past the tensors.
extern "C" __global__ void missing_predicate(const float* x, float* out, long long n) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = x[i < n ? i : n - 1] * 2.0f;
}
