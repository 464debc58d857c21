// Storage types that C++ lacks: bf16 and f16, with conversions that give torch's bits.
//
// A value of these types is only stored; arithmetic happens in float. On a GPU each conversion is
// one PTX instruction, elsewhere integer arithmetic without branches, which vectorises. The two
// agree on every bit except the payload of NaN.
#pragma once
#include "prelude.cuh"

namespace tf {

struct alignas(2) bf16 {
  unsigned short bits;
};

struct alignas(2) f16 {
  unsigned short bits;
};

// ---- to float: exact

TF_DEVICE float to_float(float v) { return v; }

TF_DEVICE float to_float(bf16 v) { return from_bits((unsigned)v.bits << 16); }

TF_DEVICE float to_float(f16 v) {
#ifdef __CUDA_ARCH__
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v.bits));
  return r;
#else
  // Exponent and mantissa moved into place leave a value that is 2^112 too small, subnormals
  // included; the multiplication is exact. Only the all-ones exponent needs its own rule.
  const unsigned magnitude = (v.bits & 0x7fffu) << 13;
  const unsigned scaled = bits(from_bits(magnitude) * 0x1p112f);
  const unsigned special = magnitude | 0x7f800000u;
  const unsigned sign = (v.bits & 0x8000u) << 16;
  return from_bits((magnitude >= 0x0f800000u ? special : scaled) | sign);
#endif
}

// ---- from float: round to nearest, ties to even; overflow gives infinity

TF_DEVICE void from_float(float v, float& r) { r = v; }

TF_DEVICE void from_float(float v, bf16& r) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
#else
  const unsigned u = bits(v);
  const unsigned rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  r.bits = (unsigned short)((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
#endif
}

TF_DEVICE void from_float(float v, f16& r) {
#ifdef __CUDA_ARCH__
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
#else
  const unsigned sign = bits(v) & 0x80000000u;
  const unsigned magnitude = bits(v) ^ sign;
  // Normal results: add half a unit of the last place kept, then rebias and drop 13 bits.
  const unsigned odd = (magnitude >> 13) & 1u;
  const unsigned normal = (magnitude + 0xfffu + odd - 0x38000000u) >> 13;
  // Subnormal results: adding 0.5 aligns their last place with that of float, which rounds.
  const unsigned subnormal = bits(from_bits(magnitude) + 0.5f) - 0x3f000000u;
  unsigned half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;
  half = magnitude > 0x7f800000u ? 0x7e00u : half;
  r.bits = (unsigned short)(half | (sign >> 16));
#endif
}

// ---- casts between any two types, as torch's Tensor.to does them

// The type in which values of T are computed.
template <class T>
struct Compute {
  using type = T;
};
template <>
struct Compute<bf16> {
  using type = float;
};
template <>
struct Compute<f16> {
  using type = float;
};
template <class T>
using compute_t = typename Compute<T>::type;

template <class T>
struct is_small_float {
  static constexpr bool value = sizeof(compute_t<T>) != sizeof(T);
};

template <class To, class From, bool FromSmall, bool ToSmall>
struct Caster;
template <class To, class From>
struct Caster<To, From, false, false> {
  static TF_DEVICE To cast(From v) { return (To)v; }
};
template <class To, class From>
struct Caster<To, From, true, false> {
  static TF_DEVICE To cast(From v) { return Caster<To, float, false, false>::cast(to_float(v)); }
};
template <class To, class From, bool FromSmall>
struct Caster<To, From, FromSmall, true> {
  static TF_DEVICE To cast(From v) {
    To r;
    from_float(Caster<float, From, FromSmall, false>::cast(v), r);
    return r;
  }
};
// Negative numbers wrap: C++ leaves float to unsigned char undefined, torch goes through int64.
template <>
struct Caster<unsigned char, float, false, false> {
  static TF_DEVICE unsigned char cast(float v) { return (unsigned char)(long long)v; }
};
template <>
struct Caster<unsigned char, double, false, false> {
  static TF_DEVICE unsigned char cast(double v) { return (unsigned char)(long long)v; }
};

// cast<To>(value)
template <class To, class From>
TF_DEVICE To cast(From v) {
  return Caster<To, From, is_small_float<From>::value, is_small_float<To>::value>::cast(v);
}

}  // namespace tf

using tf::bf16;
using tf::f16;
