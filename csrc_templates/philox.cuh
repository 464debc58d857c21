// Random numbers: Philox 4x32-10 of J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3" (SC11), a function of (seed, subsequence, offset) without state.
//
// A subsequence is a few neighbouring elements in the tensor's logical order, so that a value does
// not depend on how the work is divided, and computing it again gives it again. Counter and key are
// laid out as curand's and nvFuser's, and words become numbers as in nvFuser.
#pragma once
#include "prelude.cuh"
#include "types.cuh"

namespace tf {

struct Random4 {
  unsigned at[4];
};

// Four independent 32-bit words.
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

// One of four words by selection: registers have no addresses.
TF_DEVICE unsigned selected(const unsigned* words, int k) {
  const unsigned low = k & 1 ? words[1] : words[0];
  const unsigned high = k & 1 ? words[3] : words[2];
  return k & 2 ? high : low;
}

// The same words from the k-th on, where k is not known before the kernel runs.
TF_DEVICE Random4 from(const unsigned* words, int k) {
  return {{selected(words, k), selected(words, k + 1), selected(words, k + 2),
           selected(words, k + 3)}};
}

// Words as a number in (0, 1]: the middle of one of 2^32 or 2^53 intervals, rounded.
TF_DEVICE float unit(const unsigned* words, float) {
  return (float)words[0] * 0x1p-32f + 0x1p-33f;
}
TF_DEVICE double unit(const unsigned* words, double) {
  const unsigned long long z = words[0] ^ ((unsigned long long)words[1] << 21);
  return (double)(long long)z * 0x1p-53 + 0x1p-54;
}

// In [0, 1): what rounds to 1 is 0.
template <class F>
TF_DEVICE F unit_below_one(const unsigned* words) {
  const F u = unit(words, F());
  return u < F(1) ? u : F(0);
}

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

// In [low, high): a number that rounding to T takes to `high` is `low`.
template <class T, class F>
TF_DEVICE F uniform(const unsigned* words, F low, F high) {
  const F u = unit(words, F());
  const F value = stored_as<T>(multiplied_and_added(high - low, u, low));
  return u < F(1) && value < stored_as<T>(high) ? value : stored_as<T>(low);
}

TF_DEVICE float radius(float u) { return sqrtf(-2.0f * logf(u)); }
TF_DEVICE double radius(double u) { return sqrt(-2.0 * log(u)); }
TF_DEVICE float on_circle(float angle, bool second) { return second ? cosf(angle) : sinf(angle); }
TF_DEVICE double on_circle(double angle, bool second) { return second ? cos(angle) : sin(angle); }

// One of the two numbers that the method of Box and Muller makes of two uniform ones.
template <class T, class F>
TF_DEVICE F normal(const unsigned* words, bool second, F mean, F std) {
  const F angle = unit_below_one<F>(words + sizeof(F) / 4) * F(6.2831853071795864769);
  const F value = radius(unit(words, F())) * on_circle(angle, second);
  return stored_as<T>(multiplied_and_added(value, std, mean));
}

}  // namespace tf
