// reduction: 4 rows x 4194304 columns, lanes are columns, vector 4, 512 threads a row, 1 rows a block, 1 stages, read once; columns split over blocks: 1 grid reductions of 66 partials, 1,088 B of workspace
extern "C" __global__ void __launch_bounds__(512, 2) tf_reduction_sum_d5f70926(const float* __restrict__ T0, float* __restrict__ T1, unsigned char* workspace) {
  TF_SHARED(smem);
  float* const W0 = (float*)(workspace + 0);
  const int t = threadIdx.x;
  const int part = blockIdx.x % 66u;
  const int begin = (int)part * 16384 + t;
  const int end = (int)(part + 1) * 16384 < 1048576 ? (int)(part + 1) * 16384 : 1048576;
  const int r = (int)(blockIdx.x / 66u);
  // reduction 0: sum
  float a0[4];
  TF_UNROLL
  for (int v = 0; v < 4; ++v) a0[v] = 0.0f;
  TF_UNROLL_BY(4)
  for (int u = begin; u < end; u += 512) {
    float x0[4];
    tf::load<4>(T0 + 4194304 * r + 4 * u, x0);
    TF_VEC
    for (int v = 0; v < 4; ++v) a0[v] = tf::Sum::combine(a0[v], (float)x0[v]);
  }
  for (int v = 0; v < 2; ++v) a0[v] = tf::Sum::combine(a0[v], a0[v + 2]);
  for (int v = 0; v < 1; ++v) a0[v] = tf::Sum::combine(a0[v], a0[v + 1]);
  const float s0 = tf::block_reduce<tf::Sum, 512>(a0[0], (float*)(smem + 0), t);
  if (t == 0) W0[(long long)part * 4 + r] = s0;
  tf::grid_barrier(264u);
  // epilogue of grid reductions: T1
  if (blockIdx.x < 1u) {
    const int at = (int)blockIdx.x * 32 + threadIdx.x % 32u;
    const int c = at < 3 ? at : 3;
    const float g0 = (float)tf::Sum::finish(tf::reduce_partials<tf::Sum, 512, 32, 66>(W0, 4, c, (float*)(smem + 64)));
    if (threadIdx.x < 32u && at < 4) {
      float y0[1];
      const int v = 0;
      y0[v] = g0;
      T1[c] = y0[0];
    }
  }
}
