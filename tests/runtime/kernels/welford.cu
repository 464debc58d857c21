// Mean and variance in one reduction, with an operator that does not commute in the last bits.
struct Moments {
  float mean, deviations, count;
};
struct Welford {
  static constexpr bool kCommutes = false;
  static TF_DEVICE Moments combine(Moments a, Moments b) {
    const float count = a.count + b.count, step = b.mean - a.mean;
    const float part = b.count / count;
    return {a.mean + step * part, a.deviations + b.deviations + step * step * a.count * part,
            count};
  }
};
extern "C" __global__ void welford(const float* x, float* out, int rows) {
  TF_SHARED(smem);
  const int t = threadIdx.x;
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    // A barrier before the slots are used again.
    __syncthreads();
    const Moments mine = {x[row * 256 + t], 0.0f, 1.0f};
    const Moments all = tf::block_reduce<Welford, 256>(mine, (Moments*)smem, t);
    out[row * 512 + t] = all.mean;
    out[row * 512 + 256 + t] = all.deviations / all.count;
  }
}
