// Scans over the threads of a warp and of a block.
//
// The order of combination is fixed, so that results are deterministic. A value is combined with
// earlier ones only: values of threads beyond the end of a row do not affect results.
#pragma once
#include "reduce.cuh"

namespace tf {

// Value of lane `lane` of each group of `Width` lanes.
template <int Width, class T>
TF_DEVICE T shuffle(T value, int lane TF_SITE_PARAM) {
  constexpr int words = sizeof(T) / 4;
  static_assert(words * 4 == sizeof(T), "values are shuffled word by word");
  union {
    T value;
    unsigned word[words];
  } parcel;
  parcel.value = value;
  TF_UNROLL
  for (int i = 0; i < words; ++i) {
    parcel.word[i] = __shfl_sync(0xffffffffu, parcel.word[i], lane, Width);
  }
  return parcel.value;
}

// Inclusive scan over each group of `Width` adjacent lanes, a power of two up to 32. All lanes of
// the warp must call it.
template <class Op, int Width, class T>
TF_DEVICE T warp_scan(T value, int lane TF_SITE_PARAM) {
  TF_UNROLL
  for (int step = 1; step < Width; step *= 2) {
    const int before = lane - step;
    const T other = shuffle<Width>(value, before < 0 ? 0 : before TF_SITE_ARG);
    if (before >= 0) value = Op::combine(other, value);
  }
  return value;
}

// Exclusive scan over the `Threads` threads (a power of two) of a row, of which this is number
// `tid`: returns `running` combined with the values of the threads before this one, and combines
// all values into `running`. `slots` is shared memory of the group, for Threads / 32 values if it
// is more than a warp. There is only one barrier, so that consecutive scans must alternate between
// two sets of slots.
template <class Op, int Threads, class T>
TF_DEVICE T block_scan(T value, T& running, T* slots, int tid TF_SITE_PARAM) {
  constexpr int width = Threads < 32 ? Threads : 32, warps = Threads / width;
  static_assert((Threads & (Threads - 1)) == 0, "a row has a power of two of threads");
  T before = running;
  if (Threads == 1) {
    running = Op::combine(running, value);
    return before;
  }
  const int lane = tid % width, warp = tid / width;
  const T whole = warp_scan<Op, width>(value, lane TF_SITE_ARG);
  const T ahead = shuffle<width>(whole, lane ? lane - 1 : 0 TF_SITE_ARG);
  if (warps == 1) {
    running = Op::combine(running, shuffle<width>(whole, width - 1 TF_SITE_ARG));
  } else {
    if (lane == width - 1) slots[warp] = whole;
    __syncthreads();
    const T sums = warp_scan<Op, warps>(slots[lane % warps], lane % warps TF_SITE_ARG);
    const T others = shuffle<warps>(sums, warp ? warp - 1 : 0 TF_SITE_ARG);
    if (warp) before = Op::combine(before, others);
    running = Op::combine(running, shuffle<warps>(sums, warps - 1 TF_SITE_ARG));
  }
  return lane ? Op::combine(before, ahead) : before;
}

}  // namespace tf
