// Random numbers: Philox 4x32-10 of J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3" (SC11), a function of (seed, offset, index) without state.
//
// Kernels pass the logical index of the element, so that a value does not depend on how the work is
// divided, and computing it again gives it again.
#pragma once
#include "prelude.cuh"

namespace tf {

struct Random4 {
  unsigned at[4];
};

// Four independent 32-bit words for each `index`, under `seed` and `offset`.
TF_DEVICE Random4 philox(unsigned long long seed, unsigned long long offset,
                         unsigned long long index) {
  unsigned c0 = (unsigned)index, c1 = (unsigned)(index >> 32);
  unsigned c2 = (unsigned)offset, c3 = (unsigned)(offset >> 32);
  unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
  TF_UNROLL
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
  return {{c0, c1, c2, c3}};
}

// Uniform in [0, 1): all 2^24 multiples of 2^-24 alike.
TF_DEVICE float uniform(unsigned word) { return (float)(word >> 8) * 0x1p-24f; }

}  // namespace tf
