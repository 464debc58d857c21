// Halves of rows exchanged, two vectors apart: one load at a selected address.
extern "C" __global__ void __launch_bounds__(256) tf_pointwise_neg_mul_1e8f4593(const bf16* __restrict__ T0, float* __restrict__ T7) {
  const int block = blockIdx.x;
  // pointwise: T7
  const int u = block * 256 + threadIdx.x;
  if (u < 128) {
    bf16 x0[8];
    const int i0 = (unsigned)u % 4u;
    tf::load<8>(T0 + ((i0 <= 1) ? 8 * u + 16 : 8 * u - 16), x0);
    float y0[8];
    TF_VEC
    for (int v = 0; v < 8; ++v) {
      const float t1 = -(tf::cast<float>(x0[v]));
      const float t3 = tf::cast<float>(x0[v]);
      const float t4 = (i0 <= 1) ? t1 : t3;
      const float t6 = t4 * 0.5f;
      y0[v] = t6;
    }
    tf::store<8>(T7 + 8 * u, y0);
  }
}
