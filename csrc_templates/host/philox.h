// tf::words in SIMD registers: a product of two words is one instruction on lanes of 64 bits, whose
// halves are both of its words. Compilers take twice as many instructions, on lanes of 32 bits.
#pragma once
#include "pick.h"

namespace tf {
namespace host {

typedef unsigned long long u64;

#ifdef __x86_64__
template <int N>
constexpr bool kDrawsWords = Bits<sizeof(u64)>::kExist && N % 2 == 0;
#else
template <int N>
constexpr bool kDrawsWords = false;
#endif

// Products of the low words of all lanes. g++ would multiply lanes as a whole, in three steps.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
TF_DEVICE Vector<u64, 2> products(Vector<u64, 2> a, Vector<u64, 2> b) {
  return (Vector<u64, 2>)__builtin_ia32_pmuludq128((Vector<int, 4>)a, (Vector<int, 4>)b);
}
#ifdef __AVX2__
TF_DEVICE Vector<u64, 4> products(Vector<u64, 4> a, Vector<u64, 4> b) {
  return (Vector<u64, 4>)__builtin_ia32_pmuludq256((Vector<int, 8>)a, (Vector<int, 8>)b);
}
#endif
#ifdef __AVX512F__
TF_DEVICE Vector<u64, 8> products(Vector<u64, 8> a, Vector<u64, 8> b) {
  typedef Vector<long long, 8> Wide;
  return (Vector<u64, 8>)__builtin_ia32_pmuludq512_mask((Vector<int, 16>)a, (Vector<int, 16>)b,
                                                        Wide(), 255);
}
#endif
#else
template <class Lanes>
TF_DEVICE Lanes products(Lanes a, Lanes b) {
  return (a & 0xffffffffull) * (b & 0xffffffffull);
}
#endif

// Stores lanes of two vectors that take turns, from the lane `From` of the sequence on.
template <int From, class Lanes, int... Is>
TF_DEVICE void interleave(Lanes front, Lanes back, unsigned* to, Numbers<Is...>) {
  constexpr int count = sizeof(Lanes) / sizeof(u64);
  const Vector<u64, sizeof...(Is)> turns =
      __builtin_shufflevector(front, back, ((From + Is) / 2 + (From + Is) % 2 * count)...);
  __builtin_memcpy(to, &turns, sizeof turns);
}

// The words of as many subsequences as there are lanes, one after another. High words of lanes are
// whatever an earlier product left there.
template <int... Is>
TF_DEVICE void words_of_lanes(u64 seed, u64 first, u64 offset, unsigned* drawn, Numbers<Is...>) {
  constexpr int count = sizeof...(Is);
  typedef Vector<u64, count> Lanes;
  const Lanes by0 = Lanes() + 0xd2511f53u, by1 = Lanes() + 0xcd9e8d57u;
  Lanes c0 = Lanes() + offset, c1 = Lanes() + (offset >> 32);
  Lanes c2 = Lanes{(u64)Is...} + first, c3 = c2 >> 32;
  Lanes k0 = Lanes() + seed, k1 = Lanes() + (seed >> 32);
  TF_UNROLL_SHORT
  for (int round = 0; round < 10; ++round) {
    const Lanes product0 = products(by0, c0), product1 = products(by1, c2);
    c0 = (product1 >> 32) ^ c1 ^ k0;
    c1 = product1;
    c2 = (product0 >> 32) ^ c3 ^ k1;
    c3 = product0;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  const Lanes front = (c0 & 0xffffffffull) | (c1 << 32), back = (c2 & 0xffffffffull) | (c3 << 32);
  // Registers as long as those that read the words, which would wait for halves of them.
  if constexpr (2 * sizeof(Lanes) <= kRegisterBytes) {
    interleave<0>(front, back, drawn, typename UpTo<2 * count>::Type());
  } else {
    interleave<0>(front, back, drawn, typename UpTo<count>::Type());
    interleave<count>(front, back, drawn + 2 * count, typename UpTo<count>::Type());
  }
}

// tf::words, one register of lanes at a time.
template <int N, int Lanes = kRegisterBytes / (int)sizeof(u64)>
TF_DEVICE void words(u64 seed, u64 first, u64 offset, unsigned* drawn) {
  if constexpr (Lanes > N) {
    words<N, Lanes / 2>(seed, first, offset, drawn);
  } else {
    words_of_lanes(seed, first, offset, drawn, typename UpTo<Lanes>::Type());
    if constexpr (N > Lanes) {
      words<N - Lanes, Lanes>(seed, first + Lanes, offset, drawn + 4 * Lanes);
    }
  }
}

}  // namespace host
}  // namespace tf
