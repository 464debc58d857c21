// A copy through shared memory, in two turns.
extern "C" __global__ void async_copy(const float* x, float* out) {
  TF_SHARED(smem);
  const int t = threadIdx.x;
  float* mine = (float*)smem + t;
  tf::AsyncCopies<1> copies(smem);
  copies.copy<1>(4 * t, x + t);
  copies.wait();
  out[t] = *mine;
  copies.copy<1>(4 * t, x + 256 + t);
  copies.wait();
  out[256 + t] = *mine;
}
