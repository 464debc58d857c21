// reduction: 4096 rows x 10240 columns, lanes are columns, vector 4, 512 threads a row, 1 rows a block, 1 stages, persistent in registers, next row by asynchronous copies; rows split over blocks: 1 grid reductions of 132 partials, 5,406,720 B of workspace
extern "C" __global__ void __launch_bounds__(512, 1) tf_reduction_sum_mul_sub_2b3d79e1(const float* __restrict__ T0, const float* __restrict__ T1, const float* __restrict__ T2, float* __restrict__ T10, float* __restrict__ T12, unsigned char* workspace) {
  TF_SHARED(smem);
  float* const W0 = (float*)(workspace + 0);
  const int t = threadIdx.x;
  const int part = blockIdx.x;
  float s0[5][4];
  TF_UNROLL
  for (int k = 0; k < 5; ++k) {
    TF_UNROLL
    for (int v = 0; v < 4; ++v) s0[k][v] = 0.0f;
  }
  tf::AsyncCopies<10> copies(smem);
  {
    const int r = (int)part;
    const int from0 = 10240 * r + 4 * t;
    const int from2 = 10240 * r + 4 * t;
    TF_UNROLL
    for (int k = 0; k < 5; ++k) {
      const int u = k * 512 + t;
      copies.copy<4>(2176 + t * 16 + k * 8192, T1 + from0 + k * 2048);
      copies.copy<4>(43136 + t * 16 + k * 8192, T0 + from2 + k * 2048);
    }
  }
  TF_UNROLL_BY(1)
  for (int first = (int)part; first < 4096; first += 132) {
    const int turn = (unsigned)first / 132u % 2u;
    const int r = first;
    copies.wait();
    // prologue: T1, T2, T0, kept in registers
    float x0[5][4];
    float x1[5][4];
    float x2[5][4];
    TF_UNROLL
    for (int k = 0; k < 5; ++k) {
      const int u = k * 512 + t;
      tf::load<4>((float*)(smem + (2176 + t * 16 + k * 8192)), x0[k]);
      tf::load<4>((float*)(smem + (43136 + t * 16 + k * 8192)), x2[k]);
      tf::load<4>(T2 + 4 * u, x1[k]);
    }
    {
      const int next = (r + 132 < 4096) ? r + 132 : r;
      if (r != next) {
        const int from0 = 10240 * next + 4 * t;
        const int from2 = 10240 * next + 4 * t;
        TF_UNROLL
        for (int k = 0; k < 5; ++k) {
          const int u = k * 512 + t;
          copies.copy<4>(2176 + t * 16 + k * 8192, T1 + from0 + k * 2048);
          copies.copy<4>(43136 + t * 16 + k * 8192, T0 + from2 + k * 2048);
        }
      }
    }
    if (tf::opaque_false()) continue;
    // reduction 0: sum
    float a0[4];
    TF_UNROLL
    for (int v = 0; v < 4; ++v) a0[v] = 0.0f;
    TF_UNROLL
    for (int k = 0; k < 5; ++k) {
      const int u = k * 512 + t;
      TF_VEC
      for (int v = 0; v < 4; ++v) {
        const float t2 = x0[k][v] * x1[k][v];
        const float t4 = t2 * x2[k][v];
        a0[v] = tf::Sum::combine(a0[v], (float)t4);
      }
    }
    for (int v = 0; v < 2; ++v) a0[v] = tf::Sum::combine(a0[v], a0[v + 2]);
    for (int v = 0; v < 1; ++v) a0[v] = tf::Sum::combine(a0[v], a0[v + 1]);
    const float f0 = (float)tf::Sum::finish(tf::block_reduce<tf::Sum, 512>(a0[0], (float*)(smem + turn * 64 + 0), t));
    const float t8 = f0 * 9.765625145519152e-05f;
    // epilogue: T10, sum over rows
    TF_UNROLL
    for (int k = 0; k < 5; ++k) {
      const int u = k * 512 + t;
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
      tf::store<4>(T10 + 10240 * r + 4 * u, y0);
    }
  }
  // partial results of the block, for the workspace
  TF_UNROLL
  for (int k = 0; k < 5; ++k) {
    const int u = k * 512 + t;
    tf::store<4>(W0 + (long long)part * 10240 + u * 4, s0[k]);
  }
  tf::grid_barrier(132u);
  // epilogue of grid reductions: T12
  for (int tile = blockIdx.x; tile < 320; tile += gridDim.x) {
    const int c = tile * 32 + threadIdx.x % 32u;
    const float g0 = (float)tf::Sum::finish(tf::reduce_partials<tf::Sum, 512, 32, 132>(W0, 10240, c, (float*)(smem + 128)));
    if (threadIdx.x < 32u) {
      float y0[1];
      const int v = 0;
      y0[v] = g0;
      T12[c] = y0[0];
    }
  }
}
