extern "C" __global__ void __launch_bounds__(256) tf_pointwise_mul_neg_add_df4a23f1(const bf16* __restrict__ T0, const bf16* __restrict__ T1, const bf16* __restrict__ T2, bf16* __restrict__ T3, bf16* __restrict__ T15, bf16* __restrict__ T27) {
  const int block = blockIdx.x;
  // pointwise: T3, T15, T27
  const int u = block * 256 + threadIdx.x;
  bf16 x0[8];
  bf16 x1[8];
  bf16 x2[8];
  bf16 x3[8];
  tf::clear(x3);
  bf16 x4[8];
  bf16 x5[8];
  bf16 x6[8];
  tf::clear(x6);
  const int i0 = (unsigned)u / 4u;
  const int i1 = (unsigned)i0 / 64u;
  const int i2 = (unsigned)i1 / 4u;
  const int i3 = (unsigned)u % 4u;
  const int i4 = (unsigned)i0 % 16u;
  const int i5 = (unsigned)i1 % 4u;
  tf::load<8>(T0 + 8 * i3 + 768 * i4 + 12288 * i2 + 192 * i5 + 160, x0);
  const int i6 = (unsigned)i0 / 16u;
  const int i7 = (unsigned)i6 % 4u;
  tf::load<8>(T0 + 8 * i3 + 768 * i4 + 12288 * i2 + 192 * i5 + 32 * i7, x1);
  tf::RawVector<bf16, 8> w2 = {};
  if (i3 <= 0) w2 = tf::raw_load<8>(T1 + 8 * i4);
  if (i3 <= 0) {
    {
      bf16 w[8];
      tf::load<8>(T0 + 768 * i4 + 12288 * i2 + 192 * i5 + 32 * i7, w);
      tf::pick<4, 5, 6, 7, 0, 1, 2, 3>(w, x3);
    }
  }
  tf::RawVector<bf16, 8> w4 = {};
  if (i3 <= 0) w4 = tf::raw_load<8>(T2 + 8 * i4);
  tf::load<8>(T0 + 8 * i3 + 768 * i4 + 12288 * i2 + 192 * i5 + 128, x5);
  if (i3 <= 0) {
    {
      bf16 w[8];
      tf::load<8>(T0 + 768 * i4 + 12288 * i2 + 192 * i5 + 128, w);
      tf::pick<4, 5, 6, 7, 0, 1, 2, 3>(w, x6);
    }
  }
  tf::unpack(w2, x2);
  tf::unpack(w4, x4);
  bf16 y0[8];
  bf16 y1[8];
  bf16 y2[8];
  TF_VEC
  for (int v = 0; v < 8; ++v) {
    const float t3 = tf::cast<float>(x1[v]) * tf::cast<float>(x2[v]);
    const float t5 = -(tf::cast<float>(x3[v]));
    const float t8 = (v + 8 * i3 <= 3) ? t5 : tf::cast<float>(x3[v]);
    const float t10 = t8 * tf::cast<float>(x4[v]);
    const float t11 = t3 + t10;
    const float t12 = tf::rounded<bf16>(t11);
    const float t13 = (i3 <= 0) ? t12 : tf::cast<float>(x1[v]);
    const float t15 = tf::cast<float>(x5[v]) * tf::cast<float>(x2[v]);
    const float t17 = -(tf::cast<float>(x6[v]));
    const float t20 = (v + 8 * i3 <= 3) ? t17 : tf::cast<float>(x6[v]);
    const float t21 = t20 * tf::cast<float>(x4[v]);
    const float t22 = t15 + t21;
    const float t23 = tf::rounded<bf16>(t22);
    const float t24 = (i3 <= 0) ? t23 : tf::cast<float>(x5[v]);
    y0[v] = x0[v];
    y1[v] = tf::narrow<bf16>(t13);
    y2[v] = tf::narrow<bf16>(t24);
  }
  tf::store<8>(T3 + 8 * u, y0);
  tf::store<8>(T15 + 8 * u, y1);
  tf::store<8>(T27 + 8 * u, y2);
}
