// reduction: 4096 rows x 1024 columns, lanes are columns, vector 4, 256 threads a row, 4 rows a block, 1 stages, persistent in registers, next row by asynchronous copies; rows split over blocks: 1 grid reductions of 132 partials, 540,672 B of workspace
extern "C" __global__ void __launch_bounds__(1024, 1) tf_reduction_sum_mul_sub_bb2fa294(const float* __restrict__ T0, const float* __restrict__ T1, const float* __restrict__ T2, float* __restrict__ T10, float* __restrict__ T12, unsigned char* workspace) {
  TF_SHARED(smem);
  float* const W0 = (float*)(workspace + 0);
  const int t = threadIdx.x % 256u;
  const int g = threadIdx.x / 256u;
  const int part = blockIdx.x;
  float s0[1][4];
  TF_UNROLL
  for (int k = 0; k < 1; ++k) {
    TF_UNROLL
    for (int v = 0; v < 4; ++v) s0[k][v] = 0.0f;
  }
  tf::AsyncCopies<2> copies(smem);
  {
    const int r = (int)part * 4 + g;
    const int from0 = 1024 * r + 4 * t;
    const int from2 = 1024 * r + 4 * t;
    TF_UNROLL
    for (int k = 0; k < 1; ++k) {
      const int u = k * 256 + t;
      copies.copy<4>(16640 + threadIdx.x * 16 + k * 16384, T1 + from0 + k * 1024);
      copies.copy<4>(33024 + threadIdx.x * 16 + k * 16384, T0 + from2 + k * 1024);
    }
  }
  TF_UNROLL_BY(1)
  for (int first = (int)part * 4; first < 4096; first += 528) {
    const int turn = (unsigned)first / 528u % 2u;
    const int r = first + g;
    copies.wait();
    // prologue: T1, T2, T0, kept in registers
    float x0[1][4];
    float x1[1][4];
    float x2[1][4];
    TF_UNROLL
    for (int k = 0; k < 1; ++k) {
      const int u = k * 256 + t;
      tf::load<4>((float*)(smem + (16640 + threadIdx.x * 16 + k * 16384)), x0[k]);
      tf::load<4>((float*)(smem + (33024 + threadIdx.x * 16 + k * 16384)), x2[k]);
      tf::load<4>(T2 + 4 * u, x1[k]);
    }
    {
      const int next = (r + 528 < 4096) ? r + 528 : r;
      if (r != next) {
        const int from0 = 1024 * next + 4 * t;
        const int from2 = 1024 * next + 4 * t;
        TF_UNROLL
        for (int k = 0; k < 1; ++k) {
          const int u = k * 256 + t;
          copies.copy<4>(16640 + threadIdx.x * 16 + k * 16384, T1 + from0 + k * 1024);
          copies.copy<4>(33024 + threadIdx.x * 16 + k * 16384, T0 + from2 + k * 1024);
        }
      }
    }
    if (tf::opaque_false()) continue;
    // reduction 0: sum
    float a0[4];
    TF_UNROLL
    for (int v = 0; v < 4; ++v) a0[v] = -0.0f;
    TF_UNROLL
    for (int k = 0; k < 1; ++k) {
      const int u = k * 256 + t;
      TF_VEC
      for (int v = 0; v < 4; ++v) {
        const float t2 = x0[k][v] * x1[k][v];
        const float t4 = t2 * x2[k][v];
        a0[v] = tf::Sum::combine(a0[v], (float)t4);
      }
    }
    for (int v = 0; v < 2; ++v) a0[v] = tf::Sum::combine(a0[v], a0[v + 2]);
    for (int v = 0; v < 1; ++v) a0[v] = tf::Sum::combine(a0[v], a0[v + 1]);
    const float f0 = (float)tf::Sum::finish(tf::block_reduce<tf::Sum, 256, 4>(a0[0], (float*)(smem + g * 64 + turn * 32 + 0), t));
    const float t8 = f0 * 0.0009765625f;
    // epilogue: T10, sum over rows
    TF_UNROLL
    for (int k = 0; k < 1; ++k) {
      const int u = k * 256 + t;
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
      tf::store<4>(T10 + 1024 * r + 4 * u, y0);
    }
  }
  // partial results of the block, for the workspace
  {
    __syncthreads();
    float* const meeting0 = (float*)(smem + 256);
    TF_UNROLL
    for (int k = 0; k < 1; ++k) {
      TF_UNROLL
      for (int v = 0; v < 4; ++v) meeting0[g * 1024 + ((k * 256 + t) * 4 + v)] = s0[k][v];
    }
    __syncthreads();
    TF_UNROLL
    for (int i = 0; i < 1; ++i) {
      const int column = i * 1024 + threadIdx.x;
      float sum = meeting0[column];
      for (int j = 1; j < 4; ++j) sum = tf::Sum::combine(sum, meeting0[j * 1024 + column]);
      W0[(long long)part * 1024 + column] = sum;
    }
  }
  tf::grid_barrier(132u);
  // epilogue of grid reductions: T12
  if (blockIdx.x < 32u) {
    const int c = (int)blockIdx.x * 32 + threadIdx.x % 32u;
    const float g0 = (float)tf::Sum::finish(tf::reduce_partials<tf::Sum, 1024, 32, 132>(W0, 1024, c, (float*)(smem + 256)));
    if (threadIdx.x < 32u) {
      float y0[1];
      const int v = 0;
      y0[v] = g0;
      T12[c] = y0[0];
    }
  }
}
