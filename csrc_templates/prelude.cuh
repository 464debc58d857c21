// Prelude of every generated kernel: common macros and intrinsics for NVRTC and the host compiler.
//
// The same kernel text is compiled by NVRTC for a GPU, and (with TF_HOST defined) by a C++ compiler
// for the CPU. All differences between the two are in this file and in host/; every other header is
// written in the common subset. No toolkit or standard header is ever included.
//
// Rules of the common subset: `long long`, never `long` or `size_t`; shared memory is the one
// dynamic buffer that TF_SHARED names; threadIdx and the like are read in a kernel's first lines
// and passed to device functions as arguments; no spin loops outside tf::grid_barrier.
#pragma once

#ifdef TF_HOST

#include "host/shim.h"

#else

#define TF_DEVICE __device__ __forceinline__

// A loop over the elements of one thread's vector: unrolled on a GPU, SIMD on a CPU.
#define TF_VEC _Pragma("unroll")
// TF_VEC for a loop that accumulates into `var` with operator `op`.
#define TF_VEC_REDUCE(op, var) _Pragma("unroll")
// A loop that must be unrolled completely, because its index indexes registers.
#define TF_UNROLL _Pragma("unroll")
#define TF_PRAGMA(text) _Pragma(#text)
// Unroll a loop with a run-time trip count, so that several iterations load at once.
#define TF_UNROLL_BY(times) TF_PRAGMA(unroll times)
// Unroll a short loop on a GPU and on a CPU.
#define TF_UNROLL_SHORT _Pragma("unroll")

// Prefetch the line of a later load to L2. Any address is allowed.
#define TF_PREFETCH(address) asm volatile("prefetch.global.L2 [%0];" : : "l"(address))

// Barrier for a float-to-integer conversion: must not be simplified with a conversion back.
#define TF_EXACT(integer) (integer)

// Names the dynamic shared memory of the block: TF_SHARED(smem); then smem[0], smem[1], ... bytes.
#define TF_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

// Assertion on the host only, with block and thread in the message; nothing on a GPU.
#define TF_ASSERT(condition, message)

// Error for an out-of-range index in the data: on the host an exception with the message `format`;
// on a GPU a trap, as in torch's own kernels.
#define TF_FAIL_INDEX(format, index, extent) __trap()

// Device functions that synchronise threads take TF_SITE_PARAM as the last parameter and pass
// TF_SITE_ARG on, so that errors on the host name the kernel's line, not one of these headers.
#define TF_SITE_PARAM
#define TF_SITE_ARG
// Host shortcut for a collective: see host/collectives.h.
#define TF_FAST_COLLECTIVE(...)
// Host SIMD transpose of square tiles: see host/turn.h.
#define TF_FAST_TURN(T, N, W, in, out)
// Host SIMD selection of lanes of a vector: see host/pick.h.
#define TF_FAST_PICK(T, M, N, order, window, to)
// Host SIMD widening of pairs of bf16: see host/pairs.h.
#define TF_FAST_WIDEN(N, words, lanes)
// Host SIMD Philox calls: see host/philox.h.
#define TF_FAST_WORDS(N, seed, first, offset, drawn)
// Host non-temporal stores: see host/stream.h.
#define TF_FAST_STREAM(T, N, p, in)

namespace tf {

// Widest single access of a thread, in bytes.
constexpr int kAccessBytes = 16;
// True if registers are 32 bits and shorter values are packed in them; false for CPU SIMD
// registers.
constexpr bool kRegistersAreWords = true;

// 0 that is opaque to the compiler: a load whose address contains it is not hoisted from a loop.
TF_DEVICE int opaque_zero() {
  int zero;
  asm volatile("mov.u32 %0, 0;" : "=r"(zero));
  return zero;
}

// False, opaque to the compiler: grids have no third dimension. A branch on it ends a basic block,
// and ptxas moves no loads between basic blocks.
TF_DEVICE bool opaque_false() { return blockIdx.z != 0; }

// Forces a value to be computed here; NVVM would sink it into the branch that uses it.
TF_DEVICE void keep(int& v) { asm volatile("" : "+r"(v)); }

TF_DEVICE unsigned bits(float v) { return __float_as_uint(v); }
TF_DEVICE unsigned long long bits(double v) { return (unsigned long long)__double_as_longlong(v); }
TF_DEVICE float from_bits(unsigned v) { return __uint_as_float(v); }
TF_DEVICE double from_bits(unsigned long long v) { return __longlong_as_double((long long)v); }

// Math functions that only one of CUDA's and the C library has under a usable name.
namespace native {
TF_DEVICE float mul_rn(float a, float b) { return __fmul_rn(a, b); }
TF_DEVICE double mul_rn(double a, double b) { return __dmul_rn(a, b); }
// Results of functions that end in a product: adding -0.0 changes none, and is not contracted.
TF_DEVICE float exp_rn(float x) { return __fadd_rn(::expf(x), -0.0f); }
TF_DEVICE double exp_rn(double x) { return ::exp(x); }
TF_DEVICE float atanh(float x) { return __fadd_rn(::atanhf(x), -0.0f); }
TF_DEVICE double atanh(double x) { return ::atanh(x); }
TF_DEVICE float erfinv(float x) { return ::erfinvf(x); }
TF_DEVICE double erfinv(double x) { return __dadd_rn(::erfinv(x), -0.0); }
TF_DEVICE float fmod(float a, float b) { return ::fmodf(a, b); }
TF_DEVICE double fmod(double a, double b) { return ::fmod(a, b); }
TF_DEVICE float erf(float x) { return ::erff(x); }
TF_DEVICE double erf(double x) { return ::erf(x); }
#define TF_NATIVE(name)                                          \
  TF_DEVICE float name(float x) { return ::name##f(x); }         \
  TF_DEVICE double name(double x) { return ::name(x); }
TF_NATIVE(erfcinv)
TF_NATIVE(exp)
TF_NATIVE(lgamma)
TF_NATIVE(rsqrt)
#undef TF_NATIVE
}  // namespace native

// Arrival counter of the grid barrier of a cooperative launch. The driver gives each such launch a
// workspace (%envreg1 and %envreg2: high and low half of its address), in which the counter follows
// the size; CUDA's cooperative groups use it for grid synchronisation. It is never reset to 0, and
// concurrent launches, also in CUDA graphs, have separate counters.
TF_DEVICE unsigned* grid_word() {
  unsigned long long workspace;
  asm("mov.b64 %0, {%%envreg2, %%envreg1};" : "=l"(workspace));
  return reinterpret_cast<unsigned*>(workspace) + 1;
}

// Barrier of all `blocks` of the grid. Together they add 2^31 to the counter, so that its highest
// bit flips when the last block arrives, and the other bits are restored for the next barrier.
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

// Asynchronous copies of one thread from global to shared memory (cp.async, sm_80), bypassing
// registers, at most `Most` in flight. wait() waits for all of them; other threads that read the
// data need a barrier after it. `place` is a byte offset from the start of the block's shared
// memory, not a pointer, so that its constant part becomes an immediate of the instruction.
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

// Split barrier of a cluster: all threads arrive, and then wait until all others have arrived,
// after which writes before the barrier to shared memory of any of its blocks are visible. A
// block's shared memory exists only while the block runs: the first access to that of another block
// must follow a cluster barrier, and the last must precede one.
TF_DEVICE void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
TF_DEVICE void cluster_wait(int) {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Distributed shared memory (sm_90): address in the shared memory of the cluster's block `rank`
// that corresponds to `p` in that of this block.
template <class T>
TF_DEVICE T* map_shared_rank(T* p, int rank) {
  T* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"(rank));
  return there;
}

}  // namespace tf

#endif
