// reduction: 4096 rows x 1024 columns, lanes are columns, vector 4, 256 threads a row, 4 rows a block, 1 stages, persistent in registers; rows split over blocks: 1 grid reductions of 132 partials, 540,672 B of workspace
extern "C" __global__ void __launch_bounds__(1024, 1) tf_reduction_sum_82a64123(const float* __restrict__ T0, float* __restrict__ T1, unsigned char* workspace) {
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
  TF_UNROLL_BY(3)
  for (int first = (int)part * 4; first < 4096; first += 528) {
    const int r = first + g;
    // prologue: T0, kept in registers
    float x0[1][4];
    TF_UNROLL
    for (int k = 0; k < 1; ++k) {
      const int u = k * 256 + t;
      tf::load<4>(T0 + 1024 * r + 4 * u, x0[k]);
    }
    // epilogue: sum over rows
    TF_UNROLL
    for (int k = 0; k < 1; ++k) {
      const int u = k * 256 + t;
      TF_VEC
      for (int v = 0; v < 4; ++v) s0[k][v] = tf::Sum::combine(s0[k][v], (float)x0[k][v]);
    }
  }
  // partial results of the block, for the workspace
  {
    __syncthreads();
    float* const meeting0 = (float*)(smem + 0);
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
  // epilogue of grid reductions: T1
  if (blockIdx.x < 32u) {
    const int c = (int)blockIdx.x * 32 + threadIdx.x % 32u;
    const float g0 = (float)tf::Sum::finish(tf::reduce_partials<tf::Sum, 1024, 32, 132>(W0, 1024, c, (float*)(smem + 0)));
    if (threadIdx.x < 32u) {
      float y0[1];
      const int v = 0;
      y0[v] = g0;
      T1[c] = y0[0];
    }
  }
}
