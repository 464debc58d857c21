// A pad that ends within a vector: windows that lie in memory are read, wanted or not.
extern "C" __global__ void __launch_bounds__(256) tf_pointwise_exp_4994a85d(const float* __restrict__ T0, float* __restrict__ T3) {
  const int block = blockIdx.x;
  // pointwise: T3
  const int u = block * 256 + threadIdx.x;
  float x0[4];
  tf::clear(x0);
  const int i0 = (unsigned)u % 8u;
  const int i1 = (unsigned)u / 8u;
  if ((i0 >= 2 && 22 * i1 + 4 * i0 >= 8)) {
    {
      float w[2];
      tf::load<2>(T0 + 22 * i1 + 4 * i0 - 8, w);
      tf::pick<0, 1>(w, x0);
    }
  }
  if ((i0 >= 2 && 22 * i1 + 4 * i0 >= 6 && 22 * i1 + 4 * i0 <= 708)) {
    {
      float w[2];
      tf::load<2>(T0 + 22 * i1 + 4 * i0 - 6, w);
      tf::pick<-1, -1, 0, 1>(w, x0);
    }
  }
  float y0[4];
  TF_VEC
  for (int v = 0; v < 4; ++v) {
    const float t2 = ((i0 >= 2 && v + 4 * i0 <= 29)) ? x0[v] : 1.0f;
    const float t3 = tf::exp(t2);
    y0[v] = t3;
  }
  tf::store<4>(T3 + 4 * u, y0);
}
