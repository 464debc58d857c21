// reduction: 38400 rows x 1024 columns, lanes are columns, vector 4, 256 threads a row, 4 rows a block, 1 stages, persistent in registers, next row by asynchronous copies; rows split over blocks: 3 grid reductions of 132 partials, 2,998,848 B of workspace
extern "C" __global__ void __launch_bounds__(1024, 1) tf_reduction_sum_mul_sub_324944c5(const float* __restrict__ T0, const float* __restrict__ T1, float* __restrict__ T6, float* __restrict__ T8, float* __restrict__ T7, float* __restrict__ T9, unsigned char* workspace) {
  TF_SHARED(smem);
  float* const W0 = (float*)(workspace + 0);
  float* const W1 = (float*)(workspace + 2457600);
  float* const W2 = (float*)(workspace + 2998272);
  const int t = threadIdx.x % 256u;
  const int g = threadIdx.x / 256u;
  const int part = blockIdx.x;
  tf::AsyncCopies<2> copies(smem);
  {
    const int r = (int)(part / 1) * 64 + g;
    const int from0 = 1024 * r + 4 * t;
    const int from1 = 1024 * r + 4 * t;
    TF_UNROLL
    for (int k = 0; k < 1; ++k) {
      const int u = k * 256 + t;
      copies.copy<4>(37120 + threadIdx.x * 16 + k * 16384, T0 + from0 + k * 1024);
      copies.copy<4>(53504 + threadIdx.x * 16 + k * 16384, T1 + from1 + k * 1024);
    }
  }
  int turn = 1;
  float s1[1][4];
  TF_UNROLL
  for (int k = 0; k < 1; ++k) {
    TF_UNROLL
    for (int v = 0; v < 4; ++v) s1[k][v] = 0.0f;
  }
  float s2 = 0.0f;
  for (int portion = part; portion < 600; portion += 132) {
    float s0[1][4];
    TF_UNROLL
    for (int k = 0; k < 1; ++k) {
      TF_UNROLL
      for (int v = 0; v < 4; ++v) s0[k][v] = 0.0f;
    }
    const int bound = (int)(portion / 1 + 1) * 64;
    const int following = (portion + 132 < 600) ? (int)((portion + 132) / 1) * 64 + g : -1;
    TF_UNROLL_BY(1)
    for (int first = (int)(portion / 1) * 64; first < bound; first += 4) {
      turn ^= 1;
      const int r = first + g;
      copies.wait();
      // prologue: T0, T1, kept in registers
      float x0[1][4];
      float x1[1][4];
      TF_UNROLL
      for (int k = 0; k < 1; ++k) {
        const int u = k * 256 + t;
        tf::load<4>((float*)(smem + (37120 + threadIdx.x * 16 + k * 16384)), x0[k]);
        tf::load<4>((float*)(smem + (53504 + threadIdx.x * 16 + k * 16384)), x1[k]);
      }
      {
        const int next = (r + 4 < bound) ? r + 4 : (following < 0) ? r : following;
        if (r != next) {
          const int from0 = 1024 * next + 4 * t;
          const int from1 = 1024 * next + 4 * t;
          TF_UNROLL
          for (int k = 0; k < 1; ++k) {
            const int u = k * 256 + t;
            copies.copy<4>(37120 + threadIdx.x * 16 + k * 16384, T0 + from0 + k * 1024);
            copies.copy<4>(53504 + threadIdx.x * 16 + k * 16384, T1 + from1 + k * 1024);
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
          a0[v] = tf::Sum::combine(a0[v], (float)t2);
        }
      }
      for (int v = 0; v < 2; ++v) a0[v] = tf::Sum::combine(a0[v], a0[v + 2]);
      for (int v = 0; v < 1; ++v) a0[v] = tf::Sum::combine(a0[v], a0[v + 1]);
      const float f0 = (float)tf::Sum::finish(tf::block_reduce<tf::Sum, 256, 4>(a0[0], (float*)(smem + g * 64 + turn * 32 + 0), t));
      // epilogue: T6, sum over rows, sum over rows
      TF_UNROLL
      for (int k = 0; k < 1; ++k) {
        const int u = k * 256 + t;
        float y0[4];
        TF_VEC
        for (int v = 0; v < 4; ++v) {
          const float t2 = x0[k][v] * x1[k][v];
          const float t4 = x0[k][v] * f0;
          const float t5 = x1[k][v] - t4;
          y0[v] = t5;
          s0[k][v] = tf::Sum::combine(s0[k][v], (float)t2);
          s1[k][v] = tf::Sum::combine(s1[k][v], (float)x1[k][v]);
        }
        tf::store<4>(T6 + 1024 * r + 4 * u, y0);
      }
      if (t == 0) s2 = tf::Sum::combine(s2, (float)f0);
    }
    // partial results of the portion, for the workspace
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
        W0[(long long)portion * 1024 + column] = sum;
      }
    }
  }
  // partial results of the block, for the workspace
  {
    __syncthreads();
    float* const meeting1 = (float*)(smem + 16640);
    TF_UNROLL
    for (int k = 0; k < 1; ++k) {
      TF_UNROLL
      for (int v = 0; v < 4; ++v) meeting1[g * 1024 + ((k * 256 + t) * 4 + v)] = s1[k][v];
    }
    __syncthreads();
    TF_UNROLL
    for (int i = 0; i < 1; ++i) {
      const int column = i * 1024 + threadIdx.x;
      float sum = meeting1[column];
      for (int j = 1; j < 4; ++j) sum = tf::Sum::combine(sum, meeting1[j * 1024 + column]);
      W1[(long long)part * 1024 + column] = sum;
    }
  }
  {
    float* const meeting = (float*)(smem + 33024);
    __syncthreads();
    if (t == 0 && g > 0) meeting[g - 1] = s2;
    __syncthreads();
    if (t == 0 && g == 0) for (int j = 0; j < 3; ++j) s2 = tf::Sum::combine(s2, meeting[j]);
  }
  if (t == 0 && g == 0) W2[part] = s2;
  tf::grid_barrier(132u);
  // epilogue of grid reductions: T8
  if (blockIdx.x < 32u) {
    const int c = (int)blockIdx.x * 32 + threadIdx.x % 32u;
    const float g1 = (float)tf::Sum::finish(tf::reduce_partials<tf::Sum, 1024, 32, 132>(W1, 1024, c, (float*)(smem + 256)));
    if (threadIdx.x < 32u) {
      float y0[1];
      const int v = 0;
      y0[v] = g1;
      T8[c] = y0[0];
    }
  }
  // epilogue of grid reductions: T7
  {
    const int first = (unsigned)(blockIdx.x + 100) % 132u;
    for (int tile = first; tile < 600; tile += gridDim.x) {
      const int c = tile * 1024 + threadIdx.x % 1024u;
      const float g0 = (float)tf::Sum::finish(tf::reduce_partials<tf::Sum, 1024, 1024, 1>(W0 + (long long)(c / 1024) * 1 * 1024, 1024, c % 1024, (float*)(smem + 256)));
      {
        float y0[1];
        const int v = 0;
        y0[v] = g0;
        T7[c] = y0[0];
      }
    }
  }
  // epilogue of grid reductions: T9
  {
    const int first = (unsigned)(blockIdx.x + 28) % 132u;
    if (first < 1) {
      const int at = (int)first * 32 + threadIdx.x % 32u;
      const int c = at < 0 ? at : 0;
      const float g2 = (float)tf::Sum::finish(tf::reduce_partials<tf::Sum, 1024, 32, 132>(W2, 1, c, (float*)(smem + 256)));
      if (threadIdx.x < 32u && at < 1) {
        float y0[1];
        const int v = 0;
        y0[v] = g2;
        T9[0] = y0[0];
      }
    }
  }
}
