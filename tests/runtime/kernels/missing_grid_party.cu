// Block 1 does not come to the grid barrier.
extern "C" __global__ void missing_grid_party(float* out) {
  if (blockIdx.x != 1) tf::grid_barrier(gridDim.x);
  out[blockIdx.x * 32 + threadIdx.x] = 1.0f;
}
