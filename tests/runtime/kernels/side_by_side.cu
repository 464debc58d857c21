// Reductions that share a barrier, and the same one after the other.
extern "C" __global__ void side_by_side(const float* x, float* out) {
  TF_SHARED(smem);
  float* const sums = (float*)smem;
  tf::Moments<float>* const moments = (tf::Moments<float>*)(smem + 128);
  const int t = threadIdx.x;
  const tf::Moments<float> mine = tf::Welford::take(tf::Moments<float>{0, 0, 0, 0}, x[t]);
  const float sum = tf::block_reduce<tf::Sum, 256>(x[t], sums, t);
  const tf::Moments<float> all = tf::block_reduce<tf::Welford, 256>(mine, moments, t);
  __syncthreads();
  tf::Exchange<tf::Sum, float> a{x[t], sums};
  tf::Exchange<tf::Welford, tf::Moments<float>> b{mine, moments};
  tf::block_reduce<256>(t, a, b);
  out[t] = sum;
  out[256 + t] = tf::squared_deviations(all);
  out[512 + t] = a.value;
  out[768 + t] = tf::squared_deviations(b.value);
}
