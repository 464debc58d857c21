// Two sums over a cluster that share a barrier, and the same one after the other.
template <int Threads, int Blocks>
TF_DEVICE void both_ways(const float* x, float* out, unsigned char* smem, int t, int rank, int i) {
  constexpr int bytes = Threads / 32 * Blocks * 4, all = Threads * Blocks;
  tf::cluster_arrive();
  const float value = x[i], square = value * value;
  tf::cluster_wait(Blocks);
  float* const slots = (float*)smem;
  const float sum = tf::cluster_reduce<tf::Sum, Threads, Blocks>(value, slots, t, rank);
  const float squares =
      tf::cluster_reduce<tf::Sum, Threads, Blocks>(square, slots + bytes / 4, t, rank);
  unsigned char* const others = smem + 2 * bytes;
  tf::Exchange<tf::Sum, float, 0> a{value, others};
  tf::Exchange<tf::Sum, float, bytes> b{square, others};
  tf::cluster_reduce<Threads, Blocks>(t, rank, a, b);
  out[i] = sum;
  out[all + i] = squares;
  out[2 * all + i] = a.value;
  out[3 * all + i] = b.value;
}
extern "C" __global__ void cluster_pairs(const float* x, float* out, int blocks) {
  TF_SHARED(smem);
  const int t = threadIdx.x, rank = blockIdx.x % blocks;
  if (blocks == 2) both_ways<128, 2>(x, out, smem, t, rank, blockIdx.x * 128 + t);
  if (blocks == 8) both_ways<512, 8>(x, out, smem, t, rank, blockIdx.x * 512 + t);
}
