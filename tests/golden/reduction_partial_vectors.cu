// reduction: 300 rows x 1001 columns, lanes are columns, vector 4, 128 threads a row, 1 rows a block, 1 stages, persistent in registers
extern "C" __global__ void __launch_bounds__(128) tf_reduction_sum_11cae1bc(const float* __restrict__ T0, float* __restrict__ T1) {
  TF_SHARED(smem);
  const int t = threadIdx.x;
  const int r = (int)blockIdx.x;
  // prologue: T0, kept in registers
  float x0[2][4];
  TF_UNROLL
  for (int k = 0; k < 2; ++k) {
    const int u = k * 128 + t;
    if (u < 251) {
      const int i0 = (unsigned)r / 4u;
      const int i1 = (unsigned)r % 4u;
      {
        float w[4];
        tf::load<4>(T0 + 4004 * i0 + 1000 * i1 + 4 * u, w);
        tf::pick<0, 1, 2, 3>(w, x0[k]);
      }
    }
  }
  // reduction 0: sum
  float a0[4];
  TF_UNROLL
  for (int v = 0; v < 4; ++v) a0[v] = -0.0f;
  TF_UNROLL
  for (int k = 0; k < 2; ++k) {
    const int u = k * 128 + t;
    if (u < 251) {
      TF_VEC
      for (int v = 0; v < 4; ++v) {
        const int i2 = (unsigned)r % 4u;
        if (-i2 + 4 * u + v >= 0 && i2 - 4 * u - v >= -1000) a0[v] = tf::Sum::combine(a0[v], (float)x0[k][v]);
      }
    }
  }
  for (int v = 0; v < 2; ++v) a0[v] = tf::Sum::combine(a0[v], a0[v + 2]);
  for (int v = 0; v < 1; ++v) a0[v] = tf::Sum::combine(a0[v], a0[v + 1]);
  const float f0 = (float)tf::Sum::finish(tf::block_reduce<tf::Sum, 128>(a0[0], (float*)(smem + 0), t));
  if (t == 0) T1[r] = f0;
}
