// Random numbers: Philox 4x32-10 of J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3" (SC11), a function of (seed, subsequence, offset) without state.
//
// A subsequence serves a few consecutive elements in the tensor's logical order, so that values do
// not depend on the schedule, and recomputation reproduces them. Counter and key are laid out as in
// cuRAND and nvFuser, and words are converted to numbers as in nvFuser.
#pragma once
#include "prelude.cuh"
#include "types.cuh"

namespace tf {

// One Philox call: four independent 32-bit words.
TF_DEVICE void philox(unsigned long long seed, unsigned long long subsequence,
                      unsigned long long offset, unsigned* words) {
  unsigned c0 = (unsigned)offset, c1 = (unsigned)(offset >> 32);
  unsigned c2 = (unsigned)subsequence, c3 = (unsigned)(subsequence >> 32);
  unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
  TF_UNROLL_SHORT
  for (int round = 0; round < 10; ++round) {
    const unsigned high0 = __umulhi(0xd2511f53u, c0), low0 = 0xd2511f53u * c0;
    const unsigned high1 = __umulhi(0xcd9e8d57u, c2), low1 = 0xcd9e8d57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

// ---- standard distributions: all values of N subsequences, 4 words, 4 floats or 2 doubles each

template <int N>
TF_DEVICE void words(unsigned long long seed, unsigned long long first, unsigned long long offset,
                     unsigned* drawn) {
  TF_FAST_WORDS(N, seed, first, offset, drawn);
  TF_VEC
  for (int n = 0; n < N; ++n) philox(seed, first + n, offset, drawn + 4 * n);
}

// Converts words to a uniform number in (0, 1]: the midpoint of one of 2^32 or 2^53 intervals,
// rounded.
TF_DEVICE float unit(const unsigned* words, float) {
  return (float)words[0] * 0x1p-32f + 0x1p-33f;
}
TF_DEVICE double unit(const unsigned* words, double) {
  const unsigned long long z = words[0] ^ ((unsigned long long)words[1] << 21);
  return (double)(long long)z * 0x1p-53 + 0x1p-54;
}

template <int N, class F>
TF_DEVICE void uniforms(unsigned long long seed, unsigned long long first,
                        unsigned long long offset, F* numbers) {
  constexpr int each = sizeof(F) / 4;
  unsigned drawn[4 * N];
  words<N>(seed, first, offset, drawn);
  TF_VEC
  for (int n = 0; n < 4 * N / each; ++n) numbers[n] = unit(drawn + each * n, F());
}

TF_DEVICE float radius(float u) { return sqrtf(-2.0f * logf(u)); }
TF_DEVICE double radius(double u) { return sqrt(-2.0 * log(u)); }
TF_DEVICE float sine(float x) { return sinf(x); }
TF_DEVICE double sine(double x) { return sin(x); }
TF_DEVICE float cosine(float x) { return cosf(x); }
TF_DEVICE double cosine(double x) { return cos(x); }

// Box-Muller: two uniform numbers give a radius and an angle. Sine and cosine have separate loops
// because compilers would merge them to sincos, which has no SIMD version.
template <int N, class F>
TF_DEVICE void normals(unsigned long long seed, unsigned long long first,
                       unsigned long long offset, F* numbers) {
  constexpr int pairs = 8 * N / (int)sizeof(F);
  F drawn[2 * pairs], length[pairs], angle[pairs];
  uniforms<N>(seed, first, offset, drawn);
  TF_VEC
  for (int n = 0; n < pairs; ++n) {
    length[n] = radius(drawn[2 * n]);
    // An angle of 2 pi becomes 0.
    angle[n] = (drawn[2 * n + 1] - F(drawn[2 * n + 1] >= F(1))) * F(6.2831853071795864769);
  }
  TF_VEC
  for (int n = 0; n < pairs; ++n) drawn[2 * n] = length[n] * sine(angle[n]);
  TF_VEC
  for (int n = 0; n < pairs; ++n) drawn[2 * n + 1] = length[n] * cosine(angle[n]);
  TF_VEC
  for (int n = 0; n < 2 * pairs; ++n) numbers[n] = drawn[n];
}

// The k-th value of one subsequence, by selects, because registers cannot be indexed.
template <class T>
TF_DEVICE T dynamic_register(const T* numbers, int k) {
  const T low = k & 1 ? numbers[1] : numbers[0];
  const T high = k & 1 ? numbers[3] : numbers[2];
  return k & 2 ? high : low;
}
TF_DEVICE double dynamic_register(const double* numbers, int k) {
  return k ? numbers[1] : numbers[0];
}

// ---- distributions from standard values, rounded to T

TF_DEVICE float multiplied_and_added(float a, float b, float c) { return fmaf(a, b, c); }
TF_DEVICE double multiplied_and_added(double a, double b, double c) { return fma(a, b, c); }

template <class T, class F>
TF_DEVICE F stored_as(F v) {
  if constexpr (sizeof(T) < sizeof(F)) {
    return rounded<T>(v);
  } else {
    return v;
  }
}

// Uniform in [low, high): a value that rounding to T takes to `high` becomes `low`.
template <class T, class F>
TF_DEVICE F uniform(F u, F low, F high) {
  const F value = stored_as<T>(multiplied_and_added(high - low, u, low));
  // Simplification that compilers miss: u <= 1, and rounding takes nothing below 1 beyond it.
  if (low == F(0) && high == F(1)) return value < F(1) ? value : F(0);
  return (u < F(1)) & (value < stored_as<T>(high)) ? value : stored_as<T>(low);
}

template <class T, class F>
TF_DEVICE F normal(F z, F mean, F std) {
  return stored_as<T>(multiplied_and_added(z, std, mean));
}

// True if `word` is in [first, first + count) modulo 2^32.
TF_DEVICE bool bernoulli(unsigned word, unsigned first, unsigned count) {
  return word - first < count;
}

}  // namespace tf
