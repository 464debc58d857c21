// 8-bit floats: f8e4m3 (torch.float8_e4m3fn: no infinity, largest value 448) and f8e5m2
// (torch.float8_e5m2: IEEE-like, largest value 57344), with conversions that give torch's bits.
//
// Overflow gives NaN for f8e4m3 and infinity for f8e5m2, as in torch; the conversion instructions
// of sm_89 and later saturate instead, which is corrected afterwards.
#pragma once
#include "types.cuh"

namespace tf {

enum class f8e4m3 : unsigned char {};
enum class f8e5m2 : unsigned char {};

TF_DEVICE unsigned raw(f8e4m3 v) { return (unsigned char)v; }
TF_DEVICE unsigned raw(f8e5m2 v) { return (unsigned char)v; }

// ---- to float: exact

// f8e5m2 is the upper half of an f16.
TF_DEVICE float to_float(f8e5m2 v) {
  return to_float(f16(raw(v) << 8));
}

TF_DEVICE float to_float(f8e4m3 v) {
  // Exponent and mantissa in place leave a value that is 2^120 too small, subnormals included.
  const unsigned magnitude = raw(v) & 0x7fu;
  const unsigned scaled = bits(from_bits(magnitude << 20) * 0x1p120f);
  const unsigned sign = (raw(v) & 0x80u) << 24;
  return from_bits((magnitude == 0x7fu ? 0x7fc00000u : scaled) | sign);
}

// ---- from float: round to nearest, ties to even

// Rounds to `Mantissa` bits of mantissa; values below 2^MinExponent are subnormal. Returns the bits
// of the magnitude, without a check for overflow of the exponent.
template <int Mantissa, int MinExponent>
TF_DEVICE unsigned round_to_minifloat(unsigned magnitude) {
  constexpr unsigned drop = 23 - Mantissa;
  // Normal results: rebias, add half a unit of the last place kept, and drop bits.
  const unsigned odd = (magnitude >> drop) & 1u;
  constexpr unsigned rebias = (unsigned)(127 + MinExponent - 1) << 23;
  const unsigned normal = (magnitude - rebias + ((1u << (drop - 1)) - 1u) + odd) >> drop;
  // Subnormal results: adding a power of two aligns their last place with that of float.
  constexpr unsigned aligner = (unsigned)(127 + MinExponent + drop) << 23;
  const unsigned subnormal = bits(from_bits(magnitude) + from_bits(aligner)) - aligner;
  return magnitude < (unsigned)(127 + MinExponent) << 23 ? subnormal : normal;
}

TF_DEVICE void from_float(float v, f8e4m3& r) {
  const unsigned sign = bits(v) >> 31 << 7, magnitude = bits(v) & 0x7fffffffu;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(v));
  const unsigned rounded = pair & 0x7fu;
#else
  const unsigned rounded = round_to_minifloat<3, -6>(magnitude);
#endif
  // 464 lies halfway between 448 and what would follow, and rounds to 448.
  r = f8e4m3((magnitude > 0x43e80000u ? 0x7fu : rounded) | sign);
}

TF_DEVICE void from_float(float v, f8e5m2& r) {
  const unsigned sign = bits(v) >> 31 << 7, magnitude = bits(v) & 0x7fffffffu;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned short pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(v));
  unsigned rounded = pair & 0x7fu;
#else
  unsigned rounded = round_to_minifloat<2, -14>(magnitude);
#endif
  // 61440 lies halfway between 57344 and what would follow, and rounds to infinity.
  rounded = magnitude >= 0x47700000u ? 0x7cu : rounded;
  r = f8e5m2((magnitude > 0x7f800000u ? 0x7fu : rounded) | sign);
}

// ---- casts

TF_DEVICE float widen(f8e4m3 v) { return to_float(v); }
TF_DEVICE float widen(f8e5m2 v) { return to_float(v); }

template <>
struct Convert<f8e4m3> : ConvertThroughFloat<f8e4m3> {};
template <>
struct Convert<f8e5m2> : ConvertThroughFloat<f8e5m2> {};

}  // namespace tf

using tf::f8e4m3;
using tf::f8e5m2;
