// Storage types that C++ lacks: bf16 and f16, with conversions that give torch's bits.
//
// These types are for storage only; arithmetic is in float. On a GPU each conversion is one PTX
// instruction, elsewhere branch-free integer arithmetic, which vectorises. The results are
// bit-identical except for the payload of NaN.
#pragma once
#include "prelude.cuh"

namespace tf {

// Enumerations, not structs: a compiler's vectoriser treats them as the integers that they are.
enum class bf16 : unsigned short {};
enum class f16 : unsigned short {};

TF_DEVICE unsigned short raw(bf16 v) { return (unsigned short)v; }
TF_DEVICE unsigned short raw(f16 v) { return (unsigned short)v; }

// ---- to float: exact

TF_DEVICE float to_float(bf16 v) { return from_bits((unsigned)raw(v) << 16); }

TF_DEVICE float to_float(f16 v) {
#ifdef __CUDA_ARCH__
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(raw(v)));
  return r;
#else
  // Exponent and mantissa moved into place leave a value that is 2^112 too small, subnormals
  // included; the multiplication is exact. Only the all-ones exponent needs its own rule.
  const unsigned magnitude = (raw(v) & 0x7fffu) << 13;
  const unsigned scaled = bits(from_bits(magnitude) * 0x1p112f);
  const unsigned special = magnitude | 0x7f800000u;
  const unsigned sign = (raw(v) & 0x8000u) << 16;
  return from_bits((magnitude >= 0x0f800000u ? special : scaled) | sign);
#endif
}

// ---- from float: round to nearest, ties to even; overflow gives infinity

TF_DEVICE void from_float(float v, bf16& r) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  // ptxas does not pack two conversions into one here, but uses an F2F for each.
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(v), "f"(0.0f));
  r = bf16(pair >> 16);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  unsigned short rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(v));
  r = bf16(rounded);
#else
  const unsigned u = bits(v);
  const unsigned rounded = v != v ? 0x7fc00000u : u + 0x7fffu + ((u >> 16) & 1u);
  r = bf16(rounded >> 16);
#endif
}

TF_DEVICE void from_float(float v, f16& r) {
#ifdef __CUDA_ARCH__
  unsigned short rounded;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(v));
  r = f16(rounded);
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
  r = f16(half | (sign >> 16));
#endif
}

// ---- casts between any two types, as torch's Tensor.to does them

// Converts to the compute type: float for 16- and 8-bit floats, unchanged for every other type.
template <class T>
TF_DEVICE T widen(T v) {
  return v;
}
TF_DEVICE float widen(bf16 v) { return to_float(v); }
TF_DEVICE float widen(f16 v) { return to_float(v); }

// Convert<To>::from(v) converts a widened v to `To`.
template <class To>
struct Convert {
  template <class From>
  static TF_DEVICE To from(From v) {
    return (To)v;
  }
  // A select: it vectorises, and is one instruction on a GPU, where a conversion is two.
  static TF_DEVICE To from(bool v) { return v ? (To)1 : (To)0; }
};
template <class To>
struct ConvertThroughFloat {
  template <class From>
  static TF_DEVICE To from(From v) {
    To r;
    from_float(Convert<float>::from(v), r);
    return r;
  }
};
template <>
struct Convert<bf16> : ConvertThroughFloat<bf16> {};
template <>
struct Convert<f16> : ConvertThroughFloat<f16> {};

// TF_EXACT keeps a compiler from eliding the integer between two conversions.
template <class To>
struct ConvertToInteger {
  template <class From>
  static TF_DEVICE To from(From v) {
    return TF_EXACT((To)v);
  }
  static TF_DEVICE To from(bool v) { return v ? (To)1 : (To)0; }
};
template <>
struct Convert<long long> : ConvertToInteger<long long> {};
template <>
struct Convert<int> : ConvertToInteger<int> {};
template <>
struct Convert<short> : ConvertToInteger<short> {};
template <>
struct Convert<signed char> : ConvertToInteger<signed char> {};
template <>
struct Convert<unsigned short> : ConvertToInteger<unsigned short> {};
template <>
struct Convert<unsigned int> : ConvertToInteger<unsigned int> {};
template <>
struct Convert<unsigned long long> : ConvertToInteger<unsigned long long> {};

// Conversion of negative floats to unsigned char is undefined in C++; torch goes through int64,
// which wraps.
template <>
struct Convert<unsigned char> {
  template <class From>
  static TF_DEVICE unsigned char from(From v) {
    return (unsigned char)(long long)v;
  }
};

template <class To, class From>
TF_DEVICE To cast(From v) {
  return Convert<To>::from(widen(v));
}

// ---- 16- and 8-bit floats kept in registers as floats of equal value

template <class T>
struct Small {
  static TF_DEVICE float rounded(float v) { return to_float(cast<T>(v)); }
  static TF_DEVICE T narrow(float v) { return cast<T>(v); }
};
template <>
struct Small<bf16> {
  static TF_DEVICE float rounded(float v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    // A bf16x2 pair with 0 in the lower half is the float's bits: one F2FP. A single bf16 would
    // take an F2F, with an eighth of its throughput, and a shift.
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(v), "f"(0.0f));
    return from_bits(pair);
#elif defined(__CUDA_ARCH__)
    return to_float(cast<bf16>(v));
#else
    const unsigned u = bits(v);
    const unsigned nearest = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
    return from_bits(v != v ? u | 0x7fff0000u : nearest);
#endif
  }
  static TF_DEVICE bf16 narrow(float v) { return bf16(bits(v) >> 16); }
};

// Rounds to the nearest float that is representable in T.
template <class T>
TF_DEVICE float rounded(float v) {
  return Small<T>::rounded(v);
}
// Converts a float that is representable in T to T.
template <class T>
TF_DEVICE T narrow(float v) {
  return Small<T>::narrow(v);
}

}  // namespace tf

using tf::bf16;
using tf::f16;
