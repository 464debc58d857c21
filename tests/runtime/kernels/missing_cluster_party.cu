// The second block of a cluster does not come to its barrier.
extern "C" __global__ void missing_cluster_party(float* out) {
  tf::cluster_arrive();
  if (blockIdx.x % 2 == 0) tf::cluster_wait(2);
  out[blockIdx.x * 32 + threadIdx.x] = 1.0f;
}
