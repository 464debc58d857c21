// Vectors of bf16 widened to floats, with deinterleaved lanes: even elements, then odd ones.
//
// A 32-bit word holds two bf16; a shift or a mask gives each as a float, in a SIMD register with
// one lane per word. Memory order would need an interleave after each load and its inverse before
// each store.
#pragma once
#include "types.cuh"
#include "vector.cuh"

namespace tf {

// Reference to a lane: a float with a value representable in bf16, read and written as bf16.
struct PairedLane {
  float& value;
  TF_DEVICE operator bf16() const { return narrow<bf16>(value); }
  TF_DEVICE void operator=(bf16 v) { value = to_float(v); }
  TF_DEVICE void operator=(const PairedLane& lane) { value = lane.value; }
};
TF_DEVICE float widen(PairedLane lane) { return lane.value; }

// Vector of N elements: even elements, then odd ones.
template <class T, int N>
struct Pairs;
template <int N>
struct Pairs<bf16, N> {
  float lanes[N];
  TF_DEVICE PairedLane operator[](int v) { return {lanes[v]}; }
};

template <int N>
TF_DEVICE void load(const bf16* p, Pairs<bf16, N>& out TF_SITE_PARAM) {
  constexpr int M = kPiece<bf16, N>;
  TF_ASSERT((unsigned long long)p % alignof(Vec<bf16, M>) == 0, "misaligned vector load");
  const unsigned* words = reinterpret_cast<const unsigned*>(p);
  TF_FAST_WIDEN(N, words, out.lanes);
  TF_VEC
  for (int i = 0; i < N / 2; ++i) {
    const unsigned word = words[i];
    out.lanes[i] = from_bits(word << 16);
    out.lanes[N / 2 + i] = from_bits(word & 0xffff0000u);
  }
}

// fp32 in the same order, to be combined with many vectors of bf16.
template <int N>
struct Pairs<float, N> {
  float lanes[N];
  TF_DEVICE float& operator[](int v) { return lanes[v]; }
};
template <int N>
TF_DEVICE void load(const float* p, Pairs<float, N>& out TF_SITE_PARAM) {
  TF_ASSERT((unsigned long long)p % alignof(Vec<float, kPiece<float, N>>) == 0,
            "misaligned vector load");
  TF_VEC
  for (int i = 0; i < N / 2; ++i) {
    out.lanes[i] = p[2 * i];
    out.lanes[N / 2 + i] = p[2 * i + 1];
  }
}

template <int N>
TF_DEVICE void pack(const Pairs<bf16, N>& in, unsigned (&words)[N / 2]) {
  TF_VEC
  for (int i = 0; i < N / 2; ++i) words[i] = bits(in.lanes[i]) >> 16 | bits(in.lanes[N / 2 + i]);
}
template <int N>
TF_DEVICE void store(bf16* p, const Pairs<bf16, N>& in TF_SITE_PARAM) {
  unsigned words[N / 2];
  pack(in, words);
  store<N / 2>(reinterpret_cast<unsigned*>(p), words TF_SITE_ARG);
}
template <int N>
TF_DEVICE void stream(bf16* p, const Pairs<bf16, N>& in TF_SITE_PARAM) {
  unsigned words[N / 2];
  pack(in, words);
  stream<N / 2>(reinterpret_cast<unsigned*>(p), words TF_SITE_ARG);
}

}  // namespace tf
