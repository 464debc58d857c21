// Large enough to unroll; one number for a row, in a register of its own.
extern "C" __global__ void __launch_bounds__(256) tf_pointwise_rsqrt_mul_88364b1d(const bf16* __restrict__ T0, const float* __restrict__ T1, bf16* __restrict__ T4) {
  const int block = blockIdx.x;
  // pointwise: T4
  bf16 x0[4][8];
  float x1[4];
  TF_UNROLL
  for (int k = 0; k < 4; ++k) {
    const int u = (block * 4 + k) * 256 + threadIdx.x;
    tf::load<8>(T0 + 8 * u, x0[k]);
    const int i0 = (unsigned)u / 1024u;
    x1[k] = T1[i0];
  }
  TF_UNROLL
  for (int k = 0; k < 4; ++k) {
    const int u = (block * 4 + k) * 256 + threadIdx.x;
    const float t2 = tf::rsqrt(x1[k]);
    bf16 y0[8];
    TF_VEC
    for (int v = 0; v < 8; ++v) {
      const float t3 = tf::cast<float>(x0[k][v]) * t2;
      const bf16 t4 = tf::cast<bf16>(t3);
      y0[v] = t4;
    }
    tf::store<8>(T4 + 8 * u, y0);
  }
}
