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

// out[i] = p[i] for i < N
template <int N, class T>
TF_DEVICE void load(const T* p, T (&out)[N] TF_SITE_PARAM) {
  constexpr int M = kPiece<T, N>;
  static_assert(N % M == 0, "a vector is a whole number of accesses");
  TF_ASSERT((unsigned long long)p % alignof(Vec<T, M>) == 0, "misaligned vector load");
  TF_UNROLL
  for (int i = 0; i < N; i += M) {
    const Vec<T, M> piece = *reinterpret_cast<const Vec<T, M>*>(p + i);
    TF_UNROLL
    for (int j = 0; j < M; ++j) out[i + j] = piece.at[j];
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
    Vec<T, M> piece;
    TF_UNROLL
    for (int j = 0; j < M; ++j) piece.at[j] = in[i + j];
    *reinterpret_cast<Vec<T, M>*>(p + i) = piece;
  }
}

}  // namespace tf
