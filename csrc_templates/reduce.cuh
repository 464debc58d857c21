// Reductions over the threads of a warp and of a block, and the last-block rule for the grid.
//
// The order in which values meet is fixed, so results do not vary from run to run, and every thread
// gets the same bits.
#pragma once
#include "accumulators.cuh"

namespace tf {

// The value of the lane whose number differs in the bits of `step`.
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

// Reduces over each group of `Width` neighbouring lanes; Width is a power of two up to 32. All
// lanes of the warp must call it.
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

// A barrier of the group of `Threads` threads, of the `Groups` that a block consists of, to which
// this thread belongs. Of the 16 barriers that a block has by number its own is 0.
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

// The largest power of two that is not larger.
TF_DEVICE constexpr int half_of(int warps) {
  return warps < 2 ? 1 : 2 * half_of(warps / 2);
}
// How many lanes do: those of one warp at most.
TF_DEVICE constexpr int lanes_of(int warps) { return warps < 64 ? half_of(warps) : 32; }
// What this lane begins with where the values of all warps meet: as many lanes as a power of two has,
// which take those of the other warps, too.
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

// Reduces over `Threads` threads, a multiple of 32, of which this is number `tid`: the block, or one
// of the `Groups` of so many threads that it consists of. `slots` is shared memory of the group, for
// Threads / 32 values. There is one barrier, not two, so consecutive
// reductions must use two sets of slots in turn.
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

// A value of each thread and where warps leave theirs, `At` bytes behind what it has in common with
// others: one of several reductions that a block does side by side.
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
// Slots of one of the `Blocks` that reduce together.
template <int Blocks, class T>
TF_DEVICE T* slots_of_block(T* slots, int rank) {
  if constexpr (Blocks > 1) return map_shared_rank(slots, rank);
  return slots;
}
// The steps of several reductions, of which none waits for another's shuffles: over the lanes of a
// warp, which then leaves what it has to all blocks, and over all warps.
template <class... Exchanges>
struct Together {
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
// Two of one operator need little more than one: each half of a warp's lanes has one of them to the
// end, when it gives it to the other half.
template <class Op, class T, int At, int OtherAt>
struct Together<Exchange<Op, T, At, true>, Exchange<Op, T, OtherAt, true>> {
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
// Several reductions, each as the one above by itself, to the last bit. They share the barrier.
template <int Threads, int Groups = 1, class... Exchanges>
TF_DEVICE void block_reduce(int tid, Exchanges&... each) {
  constexpr int warps = Threads / 32;
  static_assert(warps > 1, "a warp needs no slots");
  using Steps = Together<Exchanges...>;
  const int lane = tid % 32;
  Steps::over_lanes(lane, each...);
  Steps::template leave<1>(lane, tid / 32, each...);
  group_barrier<Threads, Groups>(threadIdx.x);
  Steps::template over_warps<warps>(lane, each...);
}

// Reduces, for each of N lanes, over the threads of a block of `Threads` that have one number modulo
// `Rows`, a power of two up to 32: they share rows that lie side by side. `slots` is shared memory
// for (Threads / 32 + 1) * Rows * N values, which nothing else uses.
template <class Op, int Threads, int Rows, int N, class Accumulators, class T>
TF_DEVICE void stacked_reduce(Accumulators& lanes, T* slots TF_SITE_PARAM) {
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

// One of the parts that blocks have left, in either layout.
template <class T>
TF_DEVICE T part_at(const T* parts, long long place) {
  return fresh(parts + place);
}
template <class T, int N>
TF_DEVICE T part_at(const Lanes<T, N>* parts, long long place) {
  return parts[place / N].fresh(place % N);
}

// Parts of a point that a thread has under way at a time.
constexpr int kPartsAhead = 8;
// A total of which blocks have left parts, and shared memory for a value of each thread: one of
// several that a block adds up side by side.
template <class Op, class T, class Parts>
struct Partials {
  const Parts* parts;
  T* slots;
  T value, next[kPartsAhead];
  TF_DEVICE void fetch(int j, long long place) { next[j] = part_at(parts, place); }
  TF_DEVICE void add(T other) { value = Op::combine(value, other); }
};
template <class Op, class T, class Parts>
TF_DEVICE Partials<Op, T, Parts> partials(const Parts* parts, T* slots) {
  return {parts, slots};
}
// What `Count` blocks have left of totals at `point`, parts[i * points + point] for i < Count, each in
// an order that depends on nothing else. All threads of a block of `Threads` call it, for `Width`
// points; those with one number modulo Width have one point and get one value. The totals share the
// barriers, and none waits for another's memory.
template <int Threads, int Width, int Count, class... Totals>
TF_DEVICE void sum_parts(int points, int point, Totals&... each) {
  constexpr int groups = Threads / Width;
  const int group = threadIdx.x / Width, lane = threadIdx.x % Width;
  // All of them where they are few.
  constexpr int most = Threads > 1 ? kPartsAhead : 1, rounds = (Count + groups - 1) / groups;
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
  // Left alone, NVRTC writes all 32 out, which is a tenth of what it takes for such a kernel.
  TF_UNROLL_BY(4)
  for (int i = 1; i < groups && i < Count; ++i) (each.add(each.slots[i * Width + lane]), ...);
}

// The same of one total.
template <class Op, int Threads, int Width, int Count, class Parts, class T>
TF_DEVICE T sum_parts(const Parts* parts, int points, int point, T* slots) {
  Partials<Op, T, Parts> total = partials<Op>(parts, slots);
  sum_parts<Threads, Width, Count>(points, point, total);
  return total.value;
}

// True, in all its threads, for the block that is the last of `blocks` to call this; it sees what
// all the others wrote before, if it reads past its L1 cache (volatile). `ticket` is 0 at the start
// and 0 again at the end, `slot` is a word of shared memory.
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
