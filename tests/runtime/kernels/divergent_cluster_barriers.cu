// The blocks of a cluster wait at two places.
extern "C" __global__ void divergent_cluster_barriers(float* out) {
  if (blockIdx.x % 2 == 0) {
    tf::cluster_wait(2);
  } else {
    tf::cluster_wait(2);
  }
  out[blockIdx.x * 32 + threadIdx.x] = 1.0f;
}
