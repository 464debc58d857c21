// reduction: 1 rows x 16777216 columns, lanes are columns, vector 4, 512 threads a row, 1 rows a block, 1 stages, read once; columns split over blocks: 1 grid reductions of 264 partials, 1,088 B of workspace
extern "C" __global__ void __launch_bounds__(512, 2) tf_reduction_sum_mul_sqrt_28b6b832(const float* __restrict__ T0, float* __restrict__ T3, unsigned char* workspace) {
  TF_SHARED(smem);
  float* const W0 = (float*)(workspace + 0);
  const int t = threadIdx.x;
  const int part = blockIdx.x % 264u;
  const int begin = (int)part * 16384 + t;
  const int end = (int)(part + 1) * 16384 < 4194304 ? (int)(part + 1) * 16384 : 4194304;
  const int r = (int)(blockIdx.x / 264u);
  // reduction 0: sum
  float a0[4];
  TF_UNROLL
  for (int v = 0; v < 4; ++v) a0[v] = 0.0f;
  TF_UNROLL_BY(4)
  for (int u = begin; u < end; u += 512) {
    float x0[4];
    tf::load<4>(T0 + 4 * u, x0);
    TF_VEC
    for (int v = 0; v < 4; ++v) {
      const float t1 = x0[v] * x0[v];
      a0[v] = tf::Sum::combine(a0[v], (float)t1);
    }
  }
  for (int v = 0; v < 2; ++v) a0[v] = tf::Sum::combine(a0[v], a0[v + 2]);
  for (int v = 0; v < 1; ++v) a0[v] = tf::Sum::combine(a0[v], a0[v + 1]);
  const float s0 = tf::block_reduce<tf::Sum, 512>(a0[0], (float*)(smem + 0), t);
  if (t == 0) W0[(long long)part * 1 + r] = s0;
  tf::grid_barrier(264u);
  // epilogue of grid reductions: T3
  if (blockIdx.x < 1u) {
    const int at = (int)blockIdx.x * 32 + threadIdx.x % 32u;
    const int c = at < 0 ? at : 0;
    const float g0 = (float)tf::Sum::finish(tf::reduce_partials<tf::Sum, 512, 32, 264>(W0, 1, c, (float*)(smem + 64)));
    if (threadIdx.x < 32u && at < 1) {
      float y0[1];
      const int v = 0;
      const float t1 = tf::sqrt(g0);
      y0[v] = t1;
      T3[0] = y0[0];
    }
  }
}
