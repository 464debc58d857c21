// Reductions over the threads of a cluster: blocks that run at the same time and reach each other's
// shared memory.
//
// As in reduce.cuh the order in which values meet is fixed, and every thread of every block gets the
// same bits.
#pragma once
#include "reduce.cuh"

namespace tf {

// Reduces over `Blocks` blocks of `Threads` threads, a multiple of 32, where this is thread `tid` of
// block `rank` of the cluster. `slots` lie at one place of each block's shared memory, for
// Blocks * Threads / 32 values: each warp leaves its own in all of them. There is one barrier, so
// consecutive reductions must use two sets of slots in turn.
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

// Several of them, each as the reduction above by itself, to the last bit. They share the barrier.
template <int Threads, int Blocks, class... Exchanges>
TF_DEVICE void cluster_reduce(int tid, int rank, Exchanges&... each) {
  constexpr int warps = Threads / 32, all = warps * Blocks;
  using Steps = Together<Exchanges...>;
  const int lane = tid % 32;
  Steps::over_lanes(lane, each...);
  Steps::template leave<Blocks>(lane, rank * warps + tid / 32, each...);
  cluster_arrive();
  cluster_wait(Blocks);
  Steps::template over_warps<all>(lane, each...);
}

}  // namespace tf
