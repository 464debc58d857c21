// Reductions over all threads of a thread block cluster, through distributed shared memory.
//
// As in reduce.cuh, the order of combination is fixed, and every thread of every block gets a
// bit-identical result.
#pragma once
#include "reduce.cuh"

namespace tf {

// All-reduce over `Blocks` blocks of `Threads` threads, a multiple of 32; this is thread `tid` of
// block `rank` of the cluster. `slots` is shared memory for Blocks * Threads / 32 values, at the
// same offset in each block: each warp writes its partial result to that of all blocks. There is
// only one barrier, so that consecutive reductions must alternate between two sets of slots.
template <class Op, int Threads, int Blocks, class T>
TF_DEVICE T cluster_reduce(T value, T* slots, int tid, int rank TF_SITE_PARAM) {
  constexpr int warps = Threads / 32, all = warps * Blocks;
  static_assert(warps * 32 == Threads, "a block is a whole number of warps");
  const int lane = tid % 32, place = rank * warps + tid / 32;
  value = warp_reduce<Op>(value, lane TF_SITE_ARG);
  if (lane < Blocks) map_shared_rank(slots, lane)[place] = value;
  cluster_arrive();
  cluster_wait(Blocks TF_SITE_ARG);
  value = from_warps<Op, all>(slots, lane);
  return warp_reduce<Op, lanes_of(all)>(value, lane TF_SITE_ARG);
}

// Several cluster reductions with one barrier; each has the same bits as by itself.
template <int Threads, int Blocks, class... Exchanges>
TF_DEVICE void cluster_reduce(int tid, int rank, Exchanges&... each) {
  constexpr int warps = Threads / 32, all = warps * Blocks;
  using Steps = Grouped<Exchanges...>;
  const int lane = tid % 32;
  Steps::over_lanes(lane, each...);
  Steps::template leave<Blocks>(lane, rank * warps + tid / 32, each...);
  cluster_arrive();
  cluster_wait(Blocks);
  Steps::template over_warps<all>(lane, each...);
}

}  // namespace tf
