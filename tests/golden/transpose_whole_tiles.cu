// transpose
  T3: 2097152 points, tiles of 64 x 64, vector 8, 512 blocks of 256; transposed: T1 by 8
extern "C" __global__ void __launch_bounds__(256) tf_transpose_add_debe871b(const bf16* __restrict__ T0, const bf16* __restrict__ T1, float* __restrict__ T3) {
  const int block = blockIdx.x;
  // transpose: T3
  TF_SHARED(smem);
  tf::TransposeTile<bf16, 64, 8, 1, 8> m1{(bf16*)(smem + 0)};
  const int t = threadIdx.x;
  bf16 x0[2][8];
  TF_UNROLL
  for (int k = 0; k < 2; ++k) {
    const int p = k * 256 + t;
    const int j = p / 8;
    const int q = p % 8;
    const int i0 = (unsigned)block / 16u;
    const int i1 = (unsigned)block % 16u;
    tf::load<8>(T0 + 65536 * i0 + 64 * i1 + 8 * q + 1024 * j, x0[k]);
  }
  // tiles of T1, staged in shared memory
  TF_UNROLL
  for (int k = 0; k < 1; ++k) {
    const int p = k * 256 + t;
    const int a = p % 8;
    const int c = p / 8;
    bf16 x[2][8];
    TF_UNROLL_SHORT
    for (int n = 0; n < 2; ++n) {
      const int r = 2 * c + n;
      const int i0 = (unsigned)block / 16u;
      const int i1 = (unsigned)block % 16u;
      tf::load<8>(T1 + 8 * a + 2048 * r + 64 * i0 + 131072 * i1, x[n]);
    }
    m1.store(8 * a, 2 * c, x);
  }
  __syncthreads();
  TF_UNROLL
  for (int k = 0; k < 2; ++k) {
    const int p = k * 256 + t;
    const int j = p / 8;
    const int q = p % 8;
    bf16 x1[8];
    m1.load(j, 8 * q, x1);
    float y0[8];
    TF_VEC
    for (int v = 0; v < 8; ++v) {
      const float t2 = tf::cast<float>(x0[k][v]) + tf::cast<float>(x1[v]);
      y0[v] = t2;
    }
    const int i0 = (unsigned)block / 16u;
    const int i1 = (unsigned)block % 16u;
    tf::store<8>(T3 + 65536 * i0 + 64 * i1 + 8 * q + 1024 * j, y0);
  }
}
