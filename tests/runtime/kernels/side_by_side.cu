// Reductions that share a barrier, and the same one after the other: two operators, and two sums,
// of which each half of a warp's lanes has one.
template <int Threads>
TF_DEVICE void both_ways(const float* x, float* out, unsigned char* smem, int t) {
  using Moments = tf::Moments<float>;
  float* const sums = (float*)smem;
  float* const others = (float*)(smem + 128);
  Moments* const moments = (Moments*)(smem + 256);
  const Moments mine = tf::Welford::take(Moments{0, 0, 0, 0}, x[t]);
  const float square = x[t] * x[t];
  out[t] = tf::block_reduce<tf::Sum, Threads>(x[t], sums, t);
  out[Threads + t] = tf::block_reduce<tf::Sum, Threads>(square, others, t);
  const Moments all = tf::block_reduce<tf::Welford, Threads>(mine, moments, t);
  out[2 * Threads + t] = tf::squared_deviations(all);
  __syncthreads();
  tf::Exchange<tf::Sum, float, 0> a{x[t], smem};
  tf::Exchange<tf::Welford, Moments, 256> b{mine, smem};
  tf::block_reduce<Threads>(t, a, b);
  __syncthreads();
  tf::Exchange<tf::Sum, float, 0> c{x[t], smem};
  tf::Exchange<tf::Sum, float, 128> d{square, smem};
  tf::block_reduce<Threads>(t, c, d);
  out[3 * Threads + t] = a.value;
  out[4 * Threads + t] = d.value;
  out[5 * Threads + t] = tf::squared_deviations(b.value);
  out[6 * Threads + t] = c.value;
}
extern "C" __global__ void side_by_side(const float* x, float* out, int n) {
  TF_SHARED(smem);
  const int t = threadIdx.x;
  if (n == 64) both_ways<64>(x, out, smem, t);
  if (n == 96) both_ways<96>(x, out, smem, t);
  if (n == 256) both_ways<256>(x, out, smem, t);
  if (n == 800) both_ways<800>(x, out, smem, t);
  if (n == 1024) both_ways<1024>(x, out, smem, t);
}
