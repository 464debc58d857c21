// Vector loads and stores: N consecutive elements between memory and a thread's registers.
//
// The address must be aligned to min(16, N * sizeof(T)) bytes. A GPU moves at most 16 bytes in one
// instruction, so longer vectors become several accesses there; a CPU takes the array whole.
#pragma once
#include "prelude.cuh"

namespace tf {

template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Vec {
  T at[N];
};

template <class T, int N>
constexpr int kPiece = N * (int)sizeof(T) <= kAccessBytes ? N : kAccessBytes / (int)sizeof(T);

// Whether M elements travel as words of two. A GPU's registers are words: halves that are cut out of
// one and put together by us cost one instruction each, halves that are registers of their own two.
template <class T, int M>
constexpr bool kPairs = kRegistersAreWords && sizeof(T) == 2 && M % 2 == 0;

template <class T>
TF_DEVICE unsigned pair(T low, T high) {
  return (unsigned)(unsigned short)low | (unsigned)(unsigned short)high << 16;
}

// out[i] = p[i] for i < N
template <int N, class T>
TF_DEVICE void load(const T* p, T (&out)[N] TF_SITE_PARAM) {
  constexpr int M = kPiece<T, N>;
  static_assert(N % M == 0, "a vector is a whole number of accesses");
  TF_ASSERT((unsigned long long)p % alignof(Vec<T, M>) == 0, "misaligned vector load");
  TF_UNROLL
  for (int i = 0; i < N; i += M) {
    if constexpr (kPairs<T, M>) {
      const Vec<unsigned, M / 2> pairs = *reinterpret_cast<const Vec<unsigned, M / 2>*>(p + i);
      TF_UNROLL
      for (int j = 0; j < M; ++j) out[i + j] = T((unsigned short)(pairs.at[j / 2] >> j % 2 * 16));
    } else {
      const Vec<T, M> piece = *reinterpret_cast<const Vec<T, M>*>(p + i);
      TF_UNROLL
      for (int j = 0; j < M; ++j) out[i + j] = piece.at[j];
    }
  }
}

// p[i] = in[i] for i < N
template <int N, class T>
TF_DEVICE void store(T* p, const T (&in)[N] TF_SITE_PARAM) {
  constexpr int M = kPiece<T, N>;
  static_assert(N % M == 0, "a vector is a whole number of accesses");
  TF_ASSERT((unsigned long long)p % alignof(Vec<T, M>) == 0, "misaligned vector store");
  TF_UNROLL
  for (int i = 0; i < N; i += M) {
    if constexpr (kPairs<T, M>) {
      Vec<unsigned, M / 2> pairs;
      TF_UNROLL
      for (int j = 0; j < M / 2; ++j) pairs.at[j] = pair(in[i + 2 * j], in[i + 2 * j + 1]);
      *reinterpret_cast<Vec<unsigned, M / 2>*>(p + i) = pairs;
    } else {
      Vec<T, M> piece;
      TF_UNROLL
      for (int j = 0; j < M; ++j) piece.at[j] = in[i + j];
      *reinterpret_cast<Vec<T, M>*>(p + i) = piece;
    }
  }
}

}  // namespace tf
