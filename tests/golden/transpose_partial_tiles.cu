// transpose
  T3: 333000 points, tiles of 32 x 32, vector 1, 352 blocks of 256; transposed: T1 by 8
extern "C" __global__ void __launch_bounds__(256) tf_transpose_add_b5aab7de(const bf16* __restrict__ T0, const bf16* __restrict__ T1, float* __restrict__ T3) {
  const int block = blockIdx.x;
  // transpose: T3
  TF_SHARED(smem);
  tf::TransposeTile<bf16, 32, 8, 2, 8> m1{(bf16*)(smem + 0)};
  const int t = threadIdx.x;
  bf16 x0[4];
  TF_UNROLL
  for (int k = 0; k < 4; ++k) {
    const int p = k * 256 + t;
    const int j = p / 32;
    const int q = p % 32;
    const int i0 = (unsigned)block / 11u;
    const int i1 = block - 11 * i0;
    if ((32 * i0 + j <= 999 && 32 * i1 + q <= 332)) x0[k] = T0[10656 * i0 + 32 * i1 + q + 333 * j];
  }
  // tiles of T1, staged in shared memory
  TF_UNROLL
  for (int k = 0; k < 1; ++k) {
    const int p = k * 256 + t;
    if (p < 64) {
      const int a = p % 4;
      const int c = p / 4;
      bf16 x[2][8];
      tf::clear(x);
      TF_UNROLL_SHORT
      for (int n = 0; n < 2; ++n) {
        const int r = 2 * c + n;
        const int i0 = (unsigned)block / 11u;
        const int i1 = block - 11 * i0;
        if ((a + 4 * i0 <= 124 && r + 32 * i1 <= 332)) tf::load<8>(T1 + 8 * a + 1000 * r + 32 * i0 + 32000 * i1, x[n]);
      }
      m1.store(8 * a, 2 * c, x);
    }
  }
  __syncthreads();
  TF_UNROLL
  for (int k = 0; k < 4; ++k) {
    const int p = k * 256 + t;
    const int j = p / 32;
    const int q = p % 32;
    const int i0 = (unsigned)block / 11u;
    const int i1 = block - 11 * i0;
    if ((32 * i0 + j <= 999 && 32 * i1 + q <= 332)) {
      bf16 x1[1];
      m1.load(j, 1 * q, x1);
      const float t2 = tf::cast<float>(x0[k]) + tf::cast<float>(x1[0]);
      float y0[1];
      TF_VEC
      for (int v = 0; v < 1; ++v) y0[v] = t2;
      T3[10656 * i0 + 32 * i1 + q + 333 * j] = y0[0];
    }
  }
}
