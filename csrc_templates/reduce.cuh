// Reductions over the threads of a warp and of a block, and last-block detection for grid
// reductions.
//
// The order of combination is fixed, so that results are deterministic, and every thread gets a
// bit-identical result.
#pragma once
#include "accumulators.cuh"

namespace tf {

// Value of lane number (lane ^ step).
template <class T>
TF_DEVICE T shuffle_xor(T value, int step TF_SITE_PARAM) {
  constexpr int words = sizeof(T) / 4;
  static_assert(words * 4 == sizeof(T), "values are shuffled word by word");
  union {
    T value;
    unsigned word[words];
  } parcel;
  parcel.value = value;
  TF_UNROLL
  for (int i = 0; i < words; ++i) {
    parcel.word[i] = __shfl_xor_sync(0xffffffffu, parcel.word[i], step);
  }
  return parcel.value;
}

// All-reduce over each group of `Width` adjacent lanes, a power of two up to 32. All lanes of the
// warp must call it.
template <class Op, int Width = 32, class T>
TF_DEVICE T warp_reduce(T value, int lane TF_SITE_PARAM) {
  TF_FAST_COLLECTIVE(warp_reduce<Op, Width>(value TF_SITE_ARG));
  TF_UNROLL
  for (int step = Width / 2; step > 0; step /= 2) {
    const T other = shuffle_xor(value, step TF_SITE_ARG);
    const bool swap = !Op::kCommutes && (lane & step);
    value = swap ? Op::combine(other, value) : Op::combine(value, other);
  }
  return value;
}

// Barrier of this thread's group, one of `Groups` groups of `Threads` threads in the block. A block
// has 16 named barriers, of which __syncthreads uses 0.
template <int Threads, int Groups>
TF_DEVICE void group_barrier(int thread TF_SITE_PARAM) {
#ifdef __CUDA_ARCH__
  if (Groups > 1 && Groups < 16) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + thread / Threads), "n"(Threads) : "memory");
    return;
  }
#endif
  __syncthreads();
}

// Largest power of two that is not larger than `warps`.
TF_DEVICE constexpr int half_of(int warps) {
  return warps < 2 ? 1 : 2 * half_of(warps / 2);
}
// Number of lanes that combine the partial results of `warps` warps: a power of two up to 32.
TF_DEVICE constexpr int lanes_of(int warps) { return warps < 64 ? half_of(warps) : 32; }
// This lane's initial value for combining the partial results of all warps: lanes_of(Warps) lanes
// take one each, and also combine those of the remaining warps.
template <class Op, int Warps, class T>
TF_DEVICE T from_warps(const T* slots, int lane) {
  constexpr int lanes = lanes_of(Warps);
  const int place = lane % lanes;
  T value = slots[place];
  TF_UNROLL
  for (int first = lanes; first < Warps; first += lanes) {
    const bool has_other = first + lanes <= Warps || place + first < Warps;
    if (has_other) value = Op::combine(value, slots[place + first]);
  }
  return value;
}

// All-reduce over `Threads` threads, a multiple of 32, of which this is number `tid`: the block, or
// one of its `Groups` groups of `Threads` threads. `slots` is shared memory of the group, for
// Threads / 32 values. There is only one barrier, so that consecutive reductions must alternate
// between two sets of slots.
template <class Op, int Threads, int Groups = 1, class T>
TF_DEVICE T block_reduce(T value, T* slots, int tid TF_SITE_PARAM) {
  constexpr int warps = Threads / 32;
  static_assert(warps * 32 == Threads, "a block is a whole number of warps");
  TF_FAST_COLLECTIVE(block_reduce<Op, Threads, half_of(warps)>(value TF_SITE_ARG));
  const int lane = tid % 32, warp = tid / 32;
  value = warp_reduce<Op>(value, lane TF_SITE_ARG);
  if (warps == 1) return value;
  if (lane == 0) slots[warp] = value;
  group_barrier<Threads, Groups>(threadIdx.x TF_SITE_ARG);
  value = from_warps<Op, warps>(slots, lane);
  return warp_reduce<Op, half_of(warps)>(value, lane TF_SITE_ARG);
}

// One of several reductions that share a barrier: this thread's value, and the slots for partial
// results of warps, `At` bytes from the common base address.
template <class Op, class T, int At, bool Commutes = Op::kCommutes>
struct Exchange {
  T value;
  unsigned char* common;
  TF_DEVICE T* slots() const { return (T*)(common + At); }
  TF_DEVICE void meet(int lane, int step TF_SITE_PARAM) {
    const T other = shuffle_xor(value, step TF_SITE_ARG);
    const bool swap = !Commutes && (lane & step);
    value = swap ? Op::combine(other, value) : Op::combine(value, other);
  }
  template <int Warps>
  TF_DEVICE void enter(int lane) {
    value = from_warps<Op, Warps>(slots(), lane);
  }
};
// Slots of block `rank`, if `Blocks` > 1 blocks of a cluster reduce together; else of this block.
template <int Blocks, class T>
TF_DEVICE T* slots_of_block(T* slots, int rank) {
  if constexpr (Blocks > 1) return map_shared_rank(slots, rank);
  return slots;
}
// Interleaved steps of several independent reductions: over the lanes of a warp, the write of its
// partial result to all blocks, and over all warps.
template <class... Exchanges>
struct Grouped {
  static TF_DEVICE void over_lanes(int lane, Exchanges&... each) {
    TF_UNROLL
    for (int step = 16; step > 0; step /= 2) (each.meet(lane, step), ...);
  }
  template <int Blocks>
  static TF_DEVICE void leave(int lane, int place, Exchanges&... each) {
    if (lane < Blocks) ((slots_of_block<Blocks>(each.slots(), lane)[place] = each.value), ...);
  }
  template <int Warps>
  static TF_DEVICE void over_warps(int lane, Exchanges&... each) {
    (each.template enter<Warps>(lane), ...);
    TF_UNROLL
    for (int step = lanes_of(Warps) / 2; step > 0; step /= 2) (each.meet(lane, step), ...);
  }
};
// Two reductions with one operator cost little more than one: each half of a warp's lanes computes
// one of them, and the halves exchange results at the end.
template <class Op, class T, int At, int OtherAt>
struct Grouped<Exchange<Op, T, At, true>, Exchange<Op, T, OtherAt, true>> {
  using First = Exchange<Op, T, At, true>;
  using Second = Exchange<Op, T, OtherAt, true>;
  static TF_DEVICE void over_lanes(int lane, First& first, Second& second) {
    const bool upper = lane & 16;
    const T given = upper ? first.value : second.value;
    const T kept = upper ? second.value : first.value;
    first.value = Op::combine(kept, shuffle_xor(given, 16));
    over_half<16>(lane, first);
  }
  template <int Blocks>
  static TF_DEVICE void leave(int lane, int place, First& first, Second& second) {
    const int rank = lane % 16;
    int at = At + lane / 16 * (OtherAt - At) + place * (int)sizeof(T);
    keep(at);
    T* const slot = (T*)(first.common + at);
    if (rank < Blocks) *slots_of_block<Blocks>(slot, rank) = first.value;
  }
  template <int Warps>
  static TF_DEVICE void over_warps(int lane, First& first, Second& second) {
    constexpr int lanes = lanes_of(Warps);
    const bool upper = lane & 16;
    const T* const slots = own_slots(lane, first);
    first.value = from_warps<Op, Warps>(slots, lane % 16);
    if (lanes > 16) {
      const T other = from_warps<Op, Warps>(slots, lane % 16 + 16);
      first.value = Op::combine(first.value, other);
    }
    over_half<lanes < 16 ? lanes : 16>(lane, first);
    const T other = shuffle_xor(first.value, 16);
    second.value = upper ? first.value : other;
    first.value = upper ? other : first.value;
  }

 private:
  static TF_DEVICE T* own_slots(int lane, const First& first) {
    return (T*)(first.common + (At + lane / 16 * (OtherAt - At)));
  }
  template <int Width>
  static TF_DEVICE void over_half(int lane, First& one) {
    TF_UNROLL
    for (int step = Width / 2; step > 0; step /= 2) one.meet(lane, step);
  }
};
// Several block reductions with one barrier; each has the same bits as by itself.
template <int Threads, int Groups = 1, class... Exchanges>
TF_DEVICE void block_reduce(int tid, Exchanges&... each) {
  constexpr int warps = Threads / 32;
  static_assert(warps > 1, "a warp needs no slots");
  using Steps = Grouped<Exchanges...>;
  const int lane = tid % 32;
  Steps::over_lanes(lane, each...);
  Steps::template leave<1>(lane, tid / 32, each...);
  group_barrier<Threads, Groups>(threadIdx.x);
  Steps::template over_warps<warps>(lane, each...);
}

// All-reduce for outer reductions: for each of N vector lanes, over the threads of a block of
// `Threads` with equal index modulo `Rows`, a power of two up to 32, which share rows. `slots` is
// shared memory for (Threads / 32 + 1) * Rows * N values, not used by anything else.
template <class Op, int Threads, int Rows, int N, class Accumulators, class T>
TF_DEVICE void outer_block_reduce(Accumulators& lanes, T* slots TF_SITE_PARAM) {
  constexpr int warps = Threads / 32, width = Rows * N;
  static_assert(warps * 32 == Threads, "a block is a whole number of warps");
  const int row = threadIdx.x % Rows, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  TF_UNROLL
  for (int v = 0; v < N; ++v) {
    T value = lane_of(lanes, v);
    TF_UNROLL
    for (int step = Rows; step < 32; step *= 2) {
      const T other = shuffle_xor(value, step TF_SITE_ARG);
      const bool swap = !Op::kCommutes && (lane & step);
      value = swap ? Op::combine(other, value) : Op::combine(value, other);
    }
    set_lane(lanes, v, value);
    if (warps > 1 && lane < Rows) slots[warp * width + row * N + v] = value;
  }
  if (warps == 1) return;
  __syncthreads();
  T* const all = slots + warps * width;
  for (int i = threadIdx.x; i < width; i += Threads) {
    T value = slots[i];
    TF_UNROLL_BY(8)
    for (int w = 1; w < warps; ++w) value = Op::combine(value, slots[w * width + i]);
    all[i] = value;
  }
  __syncthreads();
  TF_UNROLL
  for (int v = 0; v < N; ++v) set_lane(lanes, v, all[row * N + v]);
}

// Loads a partial result of a block, for both layouts: array or Lanes.
template <class T>
TF_DEVICE T partial_at(const T* parts, long long place) {
  return fresh(parts + place);
}
template <class T, int N>
TF_DEVICE T partial_at(const Lanes<T, N>* parts, long long place) {
  return parts[place / N].fresh(place % N);
}

// Loads of partial results that a thread has in flight.
constexpr int kPartialsAhead = 8;
// One of several grid reductions that a block completes together: the blocks' partial results, and
// shared memory for one value per thread.
template <class Op, class T, class Parts>
struct Partials {
  const Parts* parts;
  T* slots;
  T value, next[kPartialsAhead];
  TF_DEVICE void fetch(int j, long long place) { next[j] = partial_at(parts, place); }
  TF_DEVICE void add(T other) { value = Op::combine(value, other); }
};
template <class Op, class T, class Parts>
TF_DEVICE Partials<Op, T, Parts> partials(const Parts* parts, T* slots) {
  return {parts, slots};
}
// Combines the partial results of `Count` blocks at `point`, parts[i * points + point] for
// i < Count, in a fixed order. All threads of a block of `Threads` call it, for `Width` points;
// threads with equal index modulo Width have the same point and get the same value. The reductions
// share the barriers, and their loads are independent.
template <int Threads, int Width, int Count, class... Totals>
TF_DEVICE void reduce_partials(int points, int point, Totals&... each) {
  constexpr int groups = Threads / Width;
  const int group = threadIdx.x / Width, lane = threadIdx.x % Width;
  // All loads at once if there are few.
  constexpr int most = Threads > 1 ? kPartialsAhead : 1, rounds = (Count + groups - 1) / groups;
  constexpr int ahead = rounds < most ? rounds : most;
  TF_UNROLL_BY(1)
  for (int begin = 0; begin < Count; begin += ahead * groups) {
    TF_UNROLL
    for (int j = 0; j < ahead; ++j) {
      const int i = begin + j * groups + group;
      if (i < Count) (each.fetch(j, (long long)i * points + point), ...);
    }
    TF_UNROLL
    for (int j = 0; j < ahead; ++j) {
      if (begin + j == 0) {
        ((each.value = each.next[0]), ...);
      } else if (begin + j * groups + group < Count) {
        (each.add(each.next[j]), ...);
      }
    }
  }
  if (groups == 1) return;
  __syncthreads();
  ((each.slots[threadIdx.x] = each.value), ...);
  __syncthreads();
  ((each.value = each.slots[lane]), ...);
  // By default NVRTC unrolls all 32 iterations, a tenth of its compile time for such a kernel.
  TF_UNROLL_BY(4)
  for (int i = 1; i < groups && i < Count; ++i) (each.add(each.slots[i * Width + lane]), ...);
}

// reduce_partials for a single reduction.
template <class Op, int Threads, int Width, int Count, class Parts, class T>
TF_DEVICE T reduce_partials(const Parts* parts, int points, int point, T* slots) {
  Partials<Op, T, Parts> total = partials<Op>(parts, slots);
  reduce_partials<Threads, Width, Count>(points, point, total);
  return total.value;
}

// True in all threads of the last of `blocks` blocks to call this; writes of all other blocks
// before their calls are visible to it with loads that bypass L1 (volatile). `ticket` must be 0 and
// is reset to 0 at the end; `slot` is a word of shared memory.
TF_DEVICE bool is_last_block(unsigned* ticket, unsigned blocks, unsigned* slot,
                             int tid TF_SITE_PARAM) {
  __threadfence();
  __syncthreads();
  if (tid == 0) *slot = atomicInc(ticket, blocks - 1);
  __syncthreads();
  __threadfence();
  return *slot == blocks - 1;
}

}  // namespace tf
