// Every kind of exchange between lanes, one row of results each.
extern "C" __global__ void shuffles(const int* x, int* out, int n) {
  const int t = threadIdx.x;
  const unsigned all = 0xffffffffu;
  const int v = x[t];
  out[0 * n + t] = __shfl_sync(all, v, 5);
  out[1 * n + t] = __shfl_sync(all, v, t + 3, 8);
  out[2 * n + t] = __shfl_xor_sync(all, v, 9);
  out[3 * n + t] = __shfl_xor_sync(all, v, 6, 4);
  out[4 * n + t] = __shfl_up_sync(all, v, 3);
  out[5 * n + t] = __shfl_up_sync(all, v, 3, 16);
  out[6 * n + t] = __shfl_down_sync(all, v, 4);
  out[7 * n + t] = __shfl_down_sync(all, v, 4, 16);
  out[8 * n + t] = (int)__ballot_sync(all, v % 3 == 0);
  out[9 * n + t] = __any_sync(all, v == x[0]);
  out[10 * n + t] = __all_sync(all, v >= 0);
  // Halves of a warp on their own, at the same time at different places.
  if (t % 32 < 16)
    out[11 * n + t] = __shfl_xor_sync(0x0000ffffu, v, 1);
  else
    out[11 * n + t] = __shfl_xor_sync(0xffff0000u, v, 2);
  __syncwarp();
  // 8-byte values
  const double d = __shfl_xor_sync(all, 0.5 * v, 1);
  out[12 * n + t] = (int)(2.0 * d);
}
