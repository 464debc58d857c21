// What an asynchronous copy has not brought yet, and what the next one takes the place of.
extern "C" __global__ void async_early_read(const float* x, float* out) {
  TF_SHARED(smem);
  const int t = threadIdx.x;
  float* mine = (float*)smem + t;
  tf::AsyncCopies<1> copies(smem);
  copies.copy<1>(4 * t, x + t);
  out[t] = *mine;
  copies.wait();
  copies.copy<1>(4 * t, x + 256 + t);
  out[256 + t] = *mine;
  copies.wait();
}
