// Host part of prelude.cuh: CUDA's keywords and built-ins for a C++ compiler.
#pragma once

#include "abi.h"

#define __global__ inline __attribute__((always_inline))
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict

#define TF_PRAGMA(x) _Pragma(#x)
#define TF_DEVICE __forceinline__
#define TF_VEC _Pragma("omp simd")
#define TF_VEC_REDUCE(op, var) TF_PRAGMA(omp simd reduction(op : var))
#define TF_UNROLL
#define TF_UNROLL_BY(times)
#define TF_PREFETCH(address) __builtin_prefetch(address)
#define TF_UNROLL_SHORT _Pragma("GCC unroll 16")

// g++ simplifies float(int(x)) to trunc(x), which maps -0.25 to -0.0; the barrier prevents it.
#ifdef __has_builtin
#if __has_builtin(__builtin_assoc_barrier)
#define TF_EXACT(integer) __builtin_assoc_barrier(integer)
#endif
#endif
#ifndef TF_EXACT
#define TF_EXACT(integer) (integer)
#endif

#define threadIdx (tf_self->thread)
#define blockIdx (tf_self->block)
#define blockDim (tf_self->block_size)
#define gridDim (tf_self->grid_size)

#define TF_SHARED(name) unsigned char* const name = tf_self->shared
// Checks are optional: in a vectorised loop, each needs registers for addresses. So is the thread in
// *tf_self, which their messages name: its stores take entries of the store buffer, of which those
// that wait for a cache line bound the memory bandwidth.
#ifdef TF_CHECKS
#define TF_ASSERT(condition, message) \
  if (__builtin_expect(!(condition), 0)) tf_fail(message, TF_HERE)
#define TF_REPORTED(assignment) assignment
#else
#define TF_ASSERT(condition, message)
#define TF_REPORTED(assignment)
#endif
#define TF_FAIL_INDEX(format, index, extent) tf_fail_index(format, index, extent)

namespace tf {

constexpr int kAccessBytes = 1 << 20;
constexpr bool kRegistersAreWords = false;

template <class To, class From>
static __forceinline__ To bit_cast(From v) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To r;
  __builtin_memcpy(&r, &v, sizeof r);
  return r;
}
TF_DEVICE int opaque_zero() { return 0; }
TF_DEVICE bool opaque_false() { return false; }
TF_DEVICE void keep(int&) {}
TF_DEVICE unsigned bits(float v) { return bit_cast<unsigned>(v); }
TF_DEVICE unsigned long long bits(double v) { return bit_cast<unsigned long long>(v); }
TF_DEVICE float from_bits(unsigned v) { return bit_cast<float>(v); }
TF_DEVICE double from_bits(unsigned long long v) { return bit_cast<double>(v); }

}  // namespace tf

#include "atomics.h"
#include "collectives.h"
#include "async_copies.h"
#include "libm.h"
#include "erf.h"
#include "exp.h"
#include "fmod.h"
#include "inverse_erf.h"
#include "pairs.h"
#include "philox.h"
#include "pick.h"
#include "stream.h"
#include "turn.h"

// Returns from the enclosing function with the SIMD transpose, if it supports these types and
// sizes.
#define TF_FAST_TURN(T, N, W, in, out) \
  if constexpr (tf::host::kTurns<T, N, W>) return tf::host::turn(in, out)
// Returns from the enclosing function with the SIMD lane selection, if supported.
#define TF_FAST_PICK(T, M, N, order, window, to) \
  if constexpr (tf::host::kPicks<T, M, N>) return tf::host::pick<order>(window, to)
// Returns from the enclosing function with the SIMD widening, if the floats fit into one register.
#define TF_FAST_WIDEN(N, words, lanes)       \
  if constexpr (tf::host::kFillsRegister<N>) \
    return tf::host::widen_pairs(words, lanes, typename tf::host::UpTo<N>::Type())
// Returns from the enclosing function with the SIMD Philox calls, of any even number.
#define TF_FAST_WORDS(N, seed, first, offset, drawn) \
  if constexpr (tf::host::kDrawsWords<N>) return tf::host::words<N>(seed, first, offset, drawn)
// Returns from the enclosing function with non-temporal stores, if whole cache lines are written.
#define TF_FAST_STREAM(T, N, p, in)      \
  if constexpr (tf::host::kStreams<T, N>) \
    if (tf::host::starts_register(p)) return tf::host::stream(p, in)
