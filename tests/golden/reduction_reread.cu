// reduction: 512 rows x 2097152 columns, lanes are columns, vector 8, 1024 threads a row, 1 rows a block, 1 stages, re-read in every pass
extern "C" __global__ void __launch_bounds__(1024) tf_reduction_sum_mul_add_rsqrt_1407eb08(const bf16* __restrict__ T0, const bf16* __restrict__ T1, bf16* __restrict__ T14) {
  TF_SHARED(smem);
  const int t = threadIdx.x;
  const int r = (int)blockIdx.x;
  // reduction 0: sum
  float a0[8];
  TF_UNROLL
  for (int v = 0; v < 8; ++v) a0[v] = 0.0f;
  for (int from = t; from < 262144; from += 32768) {
    const int to = 262144 - from > 32768 ? from + 32768 : 262144;
    float p0[8];
    TF_UNROLL
    for (int v = 0; v < 8; ++v) p0[v] = 0.0f;
    TF_UNROLL_BY(4)
    for (int u = from; u < to; u += 1024) {
      bf16 x0[8];
      tf::load<8>(T0 + 2097152 * r + 8 * u, x0);
      TF_VEC
      for (int v = 0; v < 8; ++v) {
        const float t1 = tf::cast<float>(x0[v]);
        const float t2 = t1 * t1;
        p0[v] = tf::Sum::combine(p0[v], (float)t2);
      }
    }
    for (int v = 0; v < 8; ++v) a0[v] = tf::Sum::combine(a0[v], p0[v]);
  }
  for (int v = 0; v < 4; ++v) a0[v] = tf::Sum::combine(a0[v], a0[v + 4]);
  for (int v = 0; v < 2; ++v) a0[v] = tf::Sum::combine(a0[v], a0[v + 2]);
  for (int v = 0; v < 1; ++v) a0[v] = tf::Sum::combine(a0[v], a0[v + 1]);
  const float f0 = (float)tf::Sum::finish(tf::block_reduce<tf::Sum, 1024>(a0[0], (float*)(smem + 0), t));
  const float t5 = f0 * 4.76837158203125e-07f;
  const float t7 = t5 + 9.999999974752427e-07f;
  const float t8 = tf::rsqrt(t7);
  // epilogue: T14
  TF_UNROLL_BY(4)
  for (int u = t; u < 262144; u += 1024) {
    bf16 y0[8];
    bf16 x0[8];
    bf16 x1[8];
    tf::load<8>(T0 + 2097152 * r + 8 * u, x0);
    tf::load<8>(T1 + 8 * u, x1);
    TF_VEC
    for (int v = 0; v < 8; ++v) {
      const float t1 = tf::cast<float>(x0[v]);
      const float t9 = t1 * t8;
      const float t11 = tf::cast<float>(x1[v]);
      const float t12 = t9 * t11;
      const bf16 t13 = tf::cast<bf16>(t12);
      y0[v] = t13;
    }
    tf::store<8>(T14 + 2097152 * r + 8 * u, y0);
  }
}
