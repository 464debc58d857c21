// Sums over blocks of several shapes of warps: a power of two, and others.
extern "C" __global__ void block_sizes(const float* x, float* out, int n) {
  TF_SHARED(smem);
  float* slots = (float*)smem;
  const int t = threadIdx.x + blockDim.x * threadIdx.y;
  const float v = x[t];
  float sum = 0.0f;
  if (n == 32) sum = tf::block_reduce<tf::Sum, 32>(v, slots, t);
  if (n == 96) sum = tf::block_reduce<tf::Sum, 96>(v, slots, t);
  if (n == 256) sum = tf::block_reduce<tf::Sum, 256>(v, slots, t);
  if (n == 640) sum = tf::block_reduce<tf::Sum, 640>(v, slots, t);
  if (n == 800) sum = tf::block_reduce<tf::Sum, 800>(v, slots, t);
  if (n == 1024) sum = tf::block_reduce<tf::Sum, 1024>(v, slots, t);
  const float most = tf::warp_reduce<tf::Max, 8>(v, t % 32);
  out[t] = sum;
  out[n + t] = most;
}
