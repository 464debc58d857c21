// CUDA's barriers, shuffles and votes, implemented by the fiber runtime.
//
// Every collective passes its site (source line), which the runtime compares between threads to
// find divergence, and prints. A device function with TF_SITE_PARAM has a local `tf_here`, the site
// of its caller, that hides the global one; so TF_HERE is the kernel's line even inside the
// headers.
#pragma once

struct tf_no_site {};
static const tf_no_site tf_here;
static __forceinline__ tf_site tf_choose(tf_no_site, tf_site here) { return here; }
static __forceinline__ tf_site tf_choose(tf_site outer, tf_site) { return outer; }

#define TF_HERE tf_choose(tf_here, tf_site{__FILE__, __LINE__})
#define TF_SITE_PARAM , tf_site tf_here = {__builtin_FILE(), __builtin_LINE()}
#define TF_SITE_ARG , tf_here
// Returns from the enclosing function with the value of an expression of namespace tf::host if the
// launch allows it: one rendezvous of the threads instead of one per step, with the same bits.
#define TF_FAST_COLLECTIVE(...) \
  if (tf_self->fast) return host::__VA_ARGS__

#define __syncthreads() tf_sync_block(TF_HERE)
#define __syncwarp(...) (void)tf_warp(TF_SYNC_WARP, tf_mask(__VA_ARGS__), 0, 0, 32, TF_HERE)
#define __shfl_sync(mask, v, ...) tf_shuffle<TF_SHFL>(mask, v, TF_HERE, __VA_ARGS__)
#define __shfl_xor_sync(mask, v, ...) tf_shuffle<TF_SHFL_XOR>(mask, v, TF_HERE, __VA_ARGS__)
#define __shfl_up_sync(mask, v, ...) tf_shuffle<TF_SHFL_UP>(mask, v, TF_HERE, __VA_ARGS__)
#define __shfl_down_sync(mask, v, ...) tf_shuffle<TF_SHFL_DOWN>(mask, v, TF_HERE, __VA_ARGS__)
#define __ballot_sync(mask, p) ((unsigned)tf_warp(TF_BALLOT, mask, (p) ? 1 : 0, 0, 32, TF_HERE))
#define __any_sync(mask, p) (__ballot_sync(mask, p) != 0)
#define __all_sync(mask, p) (__ballot_sync(mask, !(p)) == 0)

static __forceinline__ unsigned tf_mask(unsigned mask = 0xffffffffu) { return mask; }

template <tf_warp_op Op, class T>
static __forceinline__ T tf_shuffle(unsigned mask, T v, tf_site site, int lane, int width = 32) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles 4 or 8 bytes");
  unsigned long long word = 0;
  __builtin_memcpy(&word, &v, sizeof v);
  word = tf_warp(Op, mask, word, lane, width, site);
  __builtin_memcpy(&v, &word, sizeof v);
  return v;
}

namespace tf {

TF_DEVICE void grid_barrier(unsigned TF_SITE_PARAM) { tf_sync_grid(TF_HERE); }
TF_DEVICE void cluster_arrive() {}
TF_DEVICE void cluster_wait(int blocks TF_SITE_PARAM) { tf_sync_cluster(TF_HERE); }
template <class T>
TF_DEVICE T* map_shared_rank(T* p, int rank) {
  const auto offset = (unsigned char*)p - tf_self->shared;
  return (T*)(tf_self->cluster_shared[rank] + offset);
}

// Reductions in one rendezvous, bit-identical to the step-by-step ones of reduce.cuh: an exchange
// with lane ^ step makes both lanes equal, so that the lower half of the lanes determines the whole
// tree.
namespace host {

template <class Op, int Width, class T>
void combine_lanes(void* values, int count) {
  T* lanes = static_cast<T*>(values);
  for (int first = 0; first < count; first += Width) {
    T* group = lanes + first;
    for (int step = Width / 2; step > 0; step /= 2) {
      for (int i = 0; i < step; ++i) group[i] = Op::combine(group[i], group[i + step]);
    }
    for (int i = 1; i < Width; ++i) group[i] = group[0];
  }
}

template <class Op, int Threads, int Half, class T>
void combine_threads(void* values, int count) {
  constexpr int warps = Threads / 32;
  T* threads = static_cast<T*>(values);
  combine_lanes<Op, 32, T>(threads, count);
  // A block may consist of several groups of `Threads` threads.
  for (T* group = threads; group < threads + count; group += Threads) {
    T sums[warps];
    for (int i = 0; i < warps; ++i) sums[i] = group[i * 32];
    for (int i = 0; i + Half < warps; ++i) sums[i] = Op::combine(sums[i], sums[i + Half]);
    combine_lanes<Op, Half, T>(sums, Half);
    for (int i = 0; i < Threads; ++i) group[i] = sums[0];
  }
}

template <class Op, int Width, class T>
T warp_reduce(T value, tf_site site) {
  static_assert(sizeof(T) <= TF_MAX_VALUE, "value of a reduction");
  tf_combine_warp(&value, sizeof value, combine_lanes<Op, Width, T>, site);
  return value;
}

template <class Op, int Threads, int Half, class T>
T block_reduce(T value, tf_site site) {
  static_assert(sizeof(T) <= TF_MAX_VALUE, "value of a reduction");
  tf_combine_block(&value, sizeof value, combine_threads<Op, Threads, Half, T>, site);
  return value;
}

}  // namespace host
}  // namespace tf
