// Vector loads and stores: N consecutive elements between memory and a thread's registers.
//
// The address must be aligned to min(16, N * sizeof(T)) bytes. A GPU moves at most 16 bytes per
// instruction, so that longer vectors are several accesses; a CPU accesses the whole array.
#pragma once
#include "prelude.cuh"

namespace tf {

template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Vec {
  T at[N];
};

template <class T, int N>
constexpr int kPiece = N * (int)sizeof(T) <= kAccessBytes ? N : kAccessBytes / (int)sizeof(T);

// True if a GPU should access vectors of short elements as 32-bit words. Extracting an element from
// a word costs an instruction; loads of single elements cost one more each, and PRMTs to pack them.
template <class T, int M>
constexpr bool kWords = kRegistersAreWords && sizeof(T) <= 2 && M * sizeof(T) % 4 == 0;

// Element k of a word, lowest first.
template <class T>
TF_DEVICE T part(unsigned word, int k) {
  if constexpr (sizeof(T) == 1) {
    return T((unsigned char)(word >> 8 * k));
  } else if constexpr (sizeof(T) == 4) {
    return T(from_bits(word));
  } else {
    return T((unsigned short)(word >> 16 * k));
  }
}
template <class T>
TF_DEVICE unsigned pair(T low, T high) {
  return (unsigned)(unsigned short)low | (unsigned)(unsigned short)high << 16;
}

// to[i] = from[i], as a vector loop. Compilers copy structs and clear arrays in pieces shorter than
// the widest SIMD registers, and a wider load after them stalls, without store forwarding.
template <class T, int N>
TF_DEVICE void copy(const T (&from)[N], T (&to)[N]) {
  TF_VEC
  for (int i = 0; i < N; ++i) to[i] = from[i];
}

// Sets all elements to 0.
template <class T, int N>
TF_DEVICE void clear(T (&x)[N]) {
  TF_VEC
  for (int i = 0; i < N; ++i) x[i] = T();
}
template <class T, int M, int N>
TF_DEVICE void clear(T (&x)[M][N]) {
  TF_UNROLL_SHORT
  for (int i = 0; i < M; ++i) clear(x[i]);
}

// out[i] = p[i] for i < N
template <int N, class T>
TF_DEVICE void load(const T* p, T (&out)[N] TF_SITE_PARAM) {
  constexpr int M = kPiece<T, N>;
  static_assert(N % M == 0, "a vector is a whole number of accesses");
  TF_ASSERT((unsigned long long)p % alignof(Vec<T, M>) == 0, "misaligned vector load");
  TF_UNROLL
  for (int i = 0; i < N; i += M) {
    if constexpr (kWords<T, M>) {
      constexpr int parts = 4 / (int)sizeof(T), count = M / parts;
      const Vec<unsigned, count> words = *reinterpret_cast<const Vec<unsigned, count>*>(p + i);
      TF_UNROLL
      for (int j = 0; j < M; ++j) out[i + j] = part<T>(words.at[j / parts], j % parts);
    } else if constexpr (kRegistersAreWords) {
      const Vec<T, M> piece = *reinterpret_cast<const Vec<T, M>*>(p + i);
      TF_UNROLL
      for (int j = 0; j < M; ++j) out[i + j] = piece.at[j];
    } else {
      copy(reinterpret_cast<const Vec<T, M>*>(p + i)->at, out);
    }
  }
}

// Load without alignment requirement, on a CPU only.
template <int N, class T>
TF_DEVICE void load_unaligned(const T* p, T (&out)[N]) {
  TF_VEC
  for (int i = 0; i < N; ++i) out[i] = p[i];
}

// Registers of a vector load in flight, as 32-bit words if N elements fill any: no instruction
// waits for the load before unpack(). T is bf16, f16 or float.
template <bool kWhole, class T, int N>
struct RawVectorOf {
  using type = Vec<T, N>;
};
template <class T, int N>
struct RawVectorOf<true, T, N> {
  using type = Vec<unsigned, N * sizeof(T) / 4>;
};
template <class T, int N>
using RawVector = typename RawVectorOf<N * sizeof(T) % 4 == 0, T, N>::type;

template <int N, class T>
TF_DEVICE RawVector<T, N> raw_load(const T* p TF_SITE_PARAM) {
  static_assert(N * sizeof(T) <= 16, "one access");
  TF_ASSERT((unsigned long long)p % (N * sizeof(T)) == 0, "misaligned vector load");
  return *reinterpret_cast<const RawVector<T, N>*>(p);
}
// out[i] = p[i], for the result of raw_load(p)
template <int N, class T>
TF_DEVICE void unpack(const RawVector<T, N>& words, T (&out)[N]) {
  if constexpr (N * sizeof(T) % 4 == 0) {
    constexpr int parts = 4 / (int)sizeof(T);
    TF_UNROLL
    for (int i = 0; i < N; ++i) out[i] = part<T>(words.at[i / parts], i % parts);
  } else {
    copy(words.at, out);
  }
}

// to[i] = window[Picks[i]]; unchanged if Picks[i] is -1 and behind the last pick.
template <int... Picks, class T, int M, int N>
TF_DEVICE void pick(const T (&window)[M], T (&to)[N]) {
  static_assert(sizeof...(Picks) <= N, "at most one element for each lane");
  TF_FAST_PICK(T, M, N, host::Order<Picks...>, window, to);
  int lane = 0;
  ((Picks < 0 ? void() : void(to[lane] = window[Picks < 0 ? 0 : Picks]), ++lane), ...);
}

// p[i] = in[i] for i < N
template <int N, class T>
TF_DEVICE void store(T* p, const T (&in)[N] TF_SITE_PARAM) {
  constexpr int M = kPiece<T, N>;
  static_assert(N % M == 0, "a vector is a whole number of accesses");
  TF_ASSERT((unsigned long long)p % alignof(Vec<T, M>) == 0, "misaligned vector store");
  TF_UNROLL
  for (int i = 0; i < N; i += M) {
    // The compiler packs bytes as well as this code would.
    if constexpr (kWords<T, M> && sizeof(T) == 2) {
      Vec<unsigned, M / 2> pairs;
      TF_UNROLL
      for (int j = 0; j < M / 2; ++j) pairs.at[j] = pair(in[i + 2 * j], in[i + 2 * j + 1]);
      *reinterpret_cast<Vec<unsigned, M / 2>*>(p + i) = pairs;
    } else if constexpr (kRegistersAreWords) {
      Vec<T, M> piece;
      TF_UNROLL
      for (int j = 0; j < M; ++j) piece.at[j] = in[i + j];
      *reinterpret_cast<Vec<T, M>*>(p + i) = piece;
    } else {
      copy(in, reinterpret_cast<Vec<T, M>*>(p + i)->at);
    }
  }
}

// Store without alignment requirement, on a CPU only.
template <int N, class T>
TF_DEVICE void store_unaligned(T* p, const T (&in)[N]) {
  TF_VEC
  for (int i = 0; i < N; ++i) p[i] = in[i];
}

// Store of data that is not read again while it would be cached: may bypass the caches.
template <int N, class T>
TF_DEVICE void stream(T* p, const T (&in)[N] TF_SITE_PARAM) {
  TF_FAST_STREAM(T, N, p, in);
  store<N>(p, in TF_SITE_ARG);
}

}  // namespace tf
