// reduction: 65536 rows x 1024 columns, lanes are rows, vector 8, 128 threads a row, 8 rows a block, 2 stages, persistent in shared memory
extern "C" __global__ void __launch_bounds__(1024) tf_reduction_max_sum_sub_exp_1dc9133a(const bf16* __restrict__ T0, bf16* __restrict__ T9) {
  TF_SHARED(smem);
  const int g = threadIdx.x % 8u;
  const int t = threadIdx.x / 8u;
  const int u = (int)blockIdx.x * 8 + g;
  // reduction 0: max
  float a0[8];
  TF_UNROLL
  for (int v = 0; v < 8; ++v) a0[v] = tf::from_bits(0xff800000u);
  {
    tf::RawVector<bf16, 8> n0[8];
    TF_UNROLL
    for (int k = 0; k < 8; ++k) {
      const int c = k * 128 + t;
      n0[k] = tf::raw_load<8>(T0 + 65536 * c + 8 * u);
    }
    TF_UNROLL
    for (int k = 0; k < 8; ++k) {
      const int c = k * 128 + t;
      bf16 x0[8];
      tf::unpack(n0[k], x0);
      tf::store<8>((bf16*)(smem + 16896) + (c * 8 + g) * 8, x0);
      TF_VEC
      for (int v = 0; v < 8; ++v) {
        const float t1 = tf::cast<float>(x0[v]);
        a0[v] = tf::Max::combine(a0[v], (float)t1);
      }
    }
  }
  tf::outer_block_reduce<tf::Max, 1024, 8, 8>(a0, (float*)(smem + 0));
  float f0[8];
  TF_VEC
  for (int v = 0; v < 8; ++v) f0[v] = (float)a0[v];
  // reduction 1: sum
  float a1[8];
  TF_UNROLL
  for (int v = 0; v < 8; ++v) a1[v] = 0.0f;
  TF_UNROLL_BY(1)
  for (int k = 0; k < 8; ++k) {
    const int c = k * 128 + t;
    bf16 x0[8];
    tf::load<8>((bf16*)(smem + 16896) + (c * 8 + g) * 8, x0);
    TF_VEC
    for (int v = 0; v < 8; ++v) {
      const float t1 = tf::cast<float>(x0[v]);
      const float t3 = t1 - f0[v];
      const float t4 = tf::brief::exp(t3);
      a1[v] = tf::Sum::combine(a1[v], (float)t4);
    }
  }
  tf::outer_block_reduce<tf::Sum, 1024, 8, 8>(a1, (float*)(smem + 8448));
  float f1[8];
  TF_VEC
  for (int v = 0; v < 8; ++v) f1[v] = (float)tf::Sum::finish(a1[v]);
  // epilogue: T9
  TF_UNROLL_BY(1)
  for (int k = 0; k < 8; ++k) {
    const int c = k * 128 + t;
    bf16 y0[8];
    bf16 x0[8];
    tf::load<8>((bf16*)(smem + 16896) + (c * 8 + g) * 8, x0);
    TF_VEC
    for (int v = 0; v < 8; ++v) {
      const float t1 = tf::cast<float>(x0[v]);
      const float t3 = t1 - f0[v];
      const float t4 = tf::brief::exp(t3);
      const float t6 = tf::brief::div(t4, f1[v]);
      const bf16 t7 = tf::cast<bf16>(t6);
      y0[v] = t7;
    }
    tf::store<8>(T9 + 65536 * c + 8 * u, y0);
  }
}
