// A vector load one element past an aligned address.
extern "C" __global__ void misaligned_load(const bf16* x, bf16* out) {
  const int i = threadIdx.x * 8;
  bf16 v[8];
  tf::load<8>(x + i + (threadIdx.x == 3), v);
  tf::store<8>(out + i, v);
}
