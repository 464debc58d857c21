// reduction: 1024 rows x 32768 columns, lanes are columns, vector 4, 512 threads a row, 1 rows a block, 1 stages, persistent in registers, clusters of 4 blocks; rows split over blocks: 1 grid reductions of 32 partials, 4,194,304 B of workspace
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(512, 1) tf_reduction_sum_mul_sub_0b00d2d8(const float* __restrict__ T0, const float* __restrict__ T1, const float* __restrict__ T2, float* __restrict__ T10, float* __restrict__ T12, unsigned char* workspace) {
  TF_SHARED(smem);
  tf::cluster_arrive();
  float* const W0 = (float*)(workspace + 0);
  const int t = threadIdx.x;
  const int tile = blockIdx.x % 4u;
  const int part = blockIdx.x / 4u;
  float s0[4][4];
  TF_UNROLL
  for (int k = 0; k < 4; ++k) {
    TF_UNROLL
    for (int v = 0; v < 4; ++v) s0[k][v] = 0.0f;
  }
  tf::RawVector<float, 4> n0[4];
  tf::RawVector<float, 4> n2[4];
  {
    const int r = (int)part;
    TF_UNROLL
    for (int k = 0; k < 4; ++k) {
      const int u = (tile * 4 + k) * 512 + t;
      n0[k] = tf::raw_load<4>(T1 + 32768 * r + 4 * u);
      n2[k] = tf::raw_load<4>(T0 + 32768 * r + 4 * u);
    }
  }
  tf::cluster_wait(4);
  TF_UNROLL_BY(1)
  for (int first = (int)part; first < 1024; first += 32) {
    const int turn = (unsigned)first / 32u % 2u;
    const int r = first;
    // prologue: T1, T2, T0, kept in registers
    float x0[4][4];
    float x1[4][4];
    float x2[4][4];
    TF_UNROLL
    for (int k = 0; k < 4; ++k) {
      const int u = (tile * 4 + k) * 512 + t;
      tf::unpack(n0[k], x0[k]);
      tf::unpack(n2[k], x2[k]);
      tf::load<4>(T2 + 4 * u, x1[k]);
    }
    {
      const int next = (r + 32 < 1024) ? r + 32 : r;
      TF_UNROLL
      for (int k = 0; k < 4; ++k) {
        const int u = (tile * 4 + k) * 512 + t;
        n0[k] = tf::raw_load<4>(T1 + 32768 * next + 4 * u);
        n2[k] = tf::raw_load<4>(T0 + 32768 * next + 4 * u);
      }
    }
    if (tf::opaque_false()) continue;
    // reduction 0: sum
    float a0[4];
    TF_UNROLL
    for (int v = 0; v < 4; ++v) a0[v] = 0.0f;
    TF_UNROLL
    for (int k = 0; k < 4; ++k) {
      const int u = (tile * 4 + k) * 512 + t;
      TF_VEC
      for (int v = 0; v < 4; ++v) {
        const float t2 = x0[k][v] * x1[k][v];
        const float t4 = t2 * x2[k][v];
        a0[v] = tf::Sum::combine(a0[v], (float)t4);
      }
    }
    for (int v = 0; v < 2; ++v) a0[v] = tf::Sum::combine(a0[v], a0[v + 2]);
    for (int v = 0; v < 1; ++v) a0[v] = tf::Sum::combine(a0[v], a0[v + 1]);
    const float f0 = (float)tf::Sum::finish(tf::cluster_reduce<tf::Sum, 512, 4>(a0[0], (float*)(smem + turn * 256 + 0), t, tile));
    const float t8 = f0 * 3.0517578125e-05f;
    // epilogue: T10, sum over rows
    TF_UNROLL
    for (int k = 0; k < 4; ++k) {
      const int u = (tile * 4 + k) * 512 + t;
      float y0[4];
      TF_VEC
      for (int v = 0; v < 4; ++v) {
        const float t2 = x0[k][v] * x1[k][v];
        const float t5 = x0[k][v] * x2[k][v];
        const float t9 = x2[k][v] * t8;
        const float t10 = t2 - t9;
        y0[v] = t10;
        s0[k][v] = tf::Sum::combine(s0[k][v], (float)t5);
      }
      tf::store<4>(T10 + 32768 * r + 4 * u, y0);
    }
  }
  // partial results of the block, for the workspace
  TF_UNROLL
  for (int k = 0; k < 4; ++k) {
    const int u = (tile * 4 + k) * 512 + t;
    tf::store<4>(W0 + (long long)part * 32768 + u * 4, s0[k]);
  }
  tf::grid_barrier(128u);
  // epilogue of grid reductions: T12
  for (int tile = blockIdx.x; tile < 256; tile += gridDim.x) {
    const int c = tile * 128 + threadIdx.x % 128u;
    const float g0 = (float)tf::Sum::finish(tf::reduce_partials<tf::Sum, 512, 128, 32>(W0, 32768, c, (float*)(smem + 512)));
    if (threadIdx.x < 128u) {
      float y0[1];
      const int v = 0;
      y0[v] = g0;
      T12[c] = y0[0];
    }
  }
}
