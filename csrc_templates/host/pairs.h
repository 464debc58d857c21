// Widening of bf16 pairs to floats that fit into one SIMD register. A loop over the words would
// write its halves to memory and reload them as a whole, which stalls store forwarding.
#pragma once
#include "pick.h"

namespace tf {
namespace host {

template <int N>
constexpr bool kFillsRegister =
    Bits<sizeof(unsigned)>::kExist && N >= 4 && N * sizeof(float) <= kRegisterBytes;

template <int N, int... Is>
TF_DEVICE void widen_pairs(const unsigned* words, float (&lanes)[N], Numbers<Is...>) {
  Vector<unsigned, N / 2> read;
  __builtin_memcpy(&read, words, sizeof read);
  const Vector<unsigned, N> twice =
      lengthened<N, unsigned, N / 2>(read, typename UpTo<N / 2>::Type());
  const Vector<unsigned, N> shifts = {(Is < N / 2 ? 16u : 0u)...};
  const Vector<unsigned, N> widened = (twice << shifts) & 0xffff0000u;
  __builtin_memcpy(lanes, &widened, sizeof widened);
}

}  // namespace host
}  // namespace tf
