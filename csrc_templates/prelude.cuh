// What every generated kernel starts from: one vocabulary for NVRTC and for the host compiler.
//
// The same kernel text is compiled twice: by NVRTC for a GPU, and (with TF_HOST defined) by a C++
// compiler for the CPU. All differences between the two live in this file and in host/; every
// other header is written in the common subset. No toolkit or standard header is ever included.
//
// Rules of the common subset: `long long`, never `long` or `size_t`; shared memory is the one
// dynamic buffer that TF_SHARED names; threadIdx and friends are read in a kernel's first lines and
// handed to device functions as arguments; no spin loops outside tf::grid_barrier.
#pragma once

#ifdef TF_HOST

#include "host/shim.h"

#else

#define TF_DEVICE __device__ __forceinline__

// A loop over the elements of one thread's vector: unrolled on a GPU, SIMD on a CPU.
#define TF_VEC _Pragma("unroll")
// The same, accumulating into `var` with operator `op`.
#define TF_VEC_REDUCE(op, var) _Pragma("unroll")
// A loop whose index must be a constant in every iteration (it indexes registers).
#define TF_UNROLL _Pragma("unroll")
#define TF_PRAGMA(text) _Pragma(#text)
// Unroll a loop whose length is not known, so that several iterations load at once.
#define TF_UNROLL_BY(times) TF_PRAGMA(unroll times)
// The same for a few iterations that a CPU's compiler should unroll as well.
#define TF_UNROLL_SHORT _Pragma("unroll")

// Asks for memory that a later load will want. Any address will do.
#define TF_PREFETCH(address) asm volatile("prefetch.global.L2 [%0];" : : "l"(address))

// An integer that was a float: not to be simplified together with a conversion back.
#define TF_EXACT(integer) (integer)

// Names the dynamic shared memory of the block: TF_SHARED(smem); then smem[0], smem[1], ... bytes.
#define TF_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

// Checked on the host only, where it reports block and thread; on a GPU it costs nothing.
#define TF_ASSERT(condition, message)

// Ends the program of one who asked for an element that does not exist: the host says which, as
// `format` words it; a GPU traps, which is what torch's own kernels do.
#define TF_FAIL_INDEX(format, index) __trap()

// Device functions that synchronise threads take TF_SITE_PARAM last and pass TF_SITE_ARG on, so
// that errors on the host name the line of the kernel instead of a line of these headers.
#define TF_SITE_PARAM
#define TF_SITE_ARG
// The host's shortcut for a collective: see host/collectives.h.
#define TF_FAST_COLLECTIVE(...)
// The host's way to turn squares of elements: see host/turn.h.
#define TF_FAST_TURN(T, N, W, in, out)
// The host's way to pick lanes out of a vector: see host/pick.h.
#define TF_FAST_PICK(T, M, N, order, window, to)
// The host's way to widen pairs of bf16: see host/pairs.h.
#define TF_FAST_WIDEN(N, words, lanes)
// The host's way to write past its caches: see host/stream.h.
#define TF_FAST_STREAM(T, N, p, in)

namespace tf {

// Widest single access of a thread, in bytes.
constexpr int kAccessBytes = 16;
// Registers hold 32 bits, and shorter numbers are parts of one. Vector registers of a CPU hold any.
constexpr bool kRegistersAreWords = true;

// 0 that a compiler does not take for a constant: loads at an address with it stay in their loop.
TF_DEVICE int hidden_zero() {
  int zero;
  asm volatile("mov.u32 %0, 0;" : "=r"(zero));
  return zero;
}

// False, which no compiler knows: grids have no third dimension. A branch on it ends a basic block,
// and ptxas moves no load from one to the next.
TF_DEVICE bool hidden_false() { return blockIdx.z != 0; }

// A value is computed here: NVVM would move that into the branch that wants it.
TF_DEVICE void keep(int& v) { asm volatile("" : "+r"(v)); }

TF_DEVICE unsigned bits(float v) { return __float_as_uint(v); }
TF_DEVICE unsigned long long bits(double v) { return (unsigned long long)__double_as_longlong(v); }
TF_DEVICE float from_bits(unsigned v) { return __uint_as_float(v); }
TF_DEVICE double from_bits(unsigned long long v) { return __longlong_as_double((long long)v); }

// Functions that only one of the two math libraries has under a usable name.
namespace native {
TF_DEVICE float erf(float x) { return ::erff(x); }
TF_DEVICE double erf(double x) { return ::erf(x); }
#define TF_NATIVE(name)                                          \
  TF_DEVICE float name(float x) { return ::name##f(x); }         \
  TF_DEVICE double name(double x) { return ::name(x); }
TF_NATIVE(erfcinv)
TF_NATIVE(erfinv)
TF_NATIVE(exp)
TF_NATIVE(lgamma)
TF_NATIVE(rsqrt)
#undef TF_NATIVE
}  // namespace native

// The word in which the blocks of a cooperative launch count themselves. The driver gives each such
// launch a workspace (%envreg1 and %envreg2: its address, high and low half), in which the word
// follows the size: CUDA's cooperative groups synchronise grids by it. Nobody sets it to 0, and
// launches side by side, of CUDA graphs too, have words of their own.
TF_DEVICE unsigned* grid_word() {
  unsigned long long workspace;
  asm("mov.b64 %0, {%%envreg2, %%envreg1};" : "=l"(workspace));
  return reinterpret_cast<unsigned*>(workspace) + 1;
}

// Waits until all `blocks` of the grid are here. They add 2^31 together, so that the highest bit
// changes when the last one comes, and the others are as before for the next time.
TF_DEVICE void grid_barrier(unsigned blocks TF_SITE_PARAM) {
  __syncthreads();
  if (threadIdx.x + threadIdx.y + threadIdx.z == 0) {
    unsigned* const word = grid_word();
    const bool is_first = blockIdx.x + blockIdx.y + blockIdx.z == 0;
    const unsigned added = is_first ? 0x80000000u - (blocks - 1) : 1u;
    unsigned before, now;
    asm volatile("atom.add.release.gpu.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(word), "r"(added)
                 : "memory");
    do {
      asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
    } while (((before ^ now) & 0x80000000u) == 0);
  }
  __syncthreads();
}

// Asynchronous copies to shared memory (cp.async, sm_80): they pass through no registers, and nothing
// waits for them but wait(). Those of one thread, at most `Most` under way; who else reads what they
// bring needs a barrier after that. `place` is in bytes behind where the block's shared memory
// begins: what of it is constant is part of the instruction, as it is of no pointer.
template <int Most>
struct AsyncCopies {
  const unsigned begin;
  TF_DEVICE explicit AsyncCopies(unsigned char* shared)
      : begin((unsigned)__cvta_generic_to_shared(shared)) {}
  template <int N, class T>
  TF_DEVICE void copy(int place, const T* from TF_SITE_PARAM) {
    constexpr int bytes = N * (int)sizeof(T);
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "one access");
    const unsigned to = begin + place;
    if constexpr (bytes == 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(from) : "memory");
    } else {
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                   : : "r"(to), "l"(from), "n"(bytes) : "memory");
    }
  }
  TF_DEVICE void wait() { asm volatile("cp.async.wait_all;" : : : "memory"); }
};

// The barrier of a cluster's `blocks`, in two halves: all threads arrive and then wait until all
// others have, after which they see what these wrote before, to shared memory of any of the blocks.
// A block that has not begun has none, and one that has ended has none any more: the first access to
// another block's comes after a barrier, and the last before one.
TF_DEVICE void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
TF_DEVICE void cluster_wait(int) {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// What lies in the shared memory of the cluster's block number `rank` where `p` lies in that of this
// one: distributed shared memory (sm_90).
template <class T>
TF_DEVICE T* map_shared_rank(T* p, int rank) {
  T* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"(rank));
  return there;
}

}  // namespace tf

#endif
