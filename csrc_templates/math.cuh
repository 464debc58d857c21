// Pointwise functions on real numbers, in namespace tf, with torch's results.
//
// All operands of a call have the same type: float, double, or (if the function accepts them) any
// integer type or bool. 16- and 8-bit floats are computed as float; complex.cuh has complex
// numbers. Functions are branch-free where that lets a vector loop on the host use SIMD.
#pragma once
#include "types.cuh"

namespace tf {

// ---- functions of the math library

#define TF_UNARY(name)                                         \
  TF_DEVICE float name(float x) { return ::name##f(x); }       \
  TF_DEVICE double name(double x) { return ::name(x); }
#define TF_BINARY(name)                                                        \
  TF_DEVICE float name(float a, float b) { return ::name##f(a, b); }           \
  TF_DEVICE double name(double a, double b) { return ::name(a, b); }
#define TF_NATIVE(name)                                            \
  TF_DEVICE float name(float x) { return native::name(x); }        \
  TF_DEVICE double name(double x) { return native::name(x); }

TF_UNARY(acos) TF_UNARY(acosh) TF_UNARY(asin) TF_UNARY(asinh) TF_UNARY(atan)
TF_UNARY(cos) TF_UNARY(cosh) TF_UNARY(erfc) TF_UNARY(exp2)
TF_UNARY(expm1) TF_UNARY(log) TF_UNARY(log10) TF_UNARY(log1p) TF_UNARY(log2) TF_UNARY(sin)
TF_UNARY(sinh) TF_UNARY(sqrt) TF_UNARY(tan) TF_UNARY(tanh)
TF_BINARY(atan2) TF_BINARY(copysign) TF_BINARY(hypot) TF_BINARY(nextafter)
TF_NATIVE(atanh) TF_NATIVE(erf) TF_NATIVE(erfcinv) TF_NATIVE(erfinv) TF_NATIVE(exp) TF_NATIVE(lgamma)
TF_NATIVE(rsqrt)

// The product and the exponential that no compiler contracts with an addition to an FMA: rounded, as
// by a kernel of its own. Of the other functions here, none gives a product to its caller.
TF_DEVICE float mul_rn(float a, float b) { return native::mul_rn(a, b); }
TF_DEVICE double mul_rn(double a, double b) { return native::mul_rn(a, b); }
TF_DEVICE float exp_rn(float x) { return native::exp_rn(x); }
TF_DEVICE double exp_rn(double x) { return native::exp_rn(x); }

#undef TF_UNARY
#undef TF_BINARY
#undef TF_NATIVE

// ---- sign, size and rounding

template <class T>
TF_DEVICE T abs(T x) {
  return x < T(0) ? T(-x) : x;
}
TF_DEVICE float abs(float x) { return ::fabsf(x); }
TF_DEVICE double abs(double x) { return ::fabs(x); }

// -1, 0 or 1; 0 for NaN
template <class T>
TF_DEVICE T sign(T x) {
  return T((x > T(0)) - (x < T(0)));
}
template <class T>
TF_DEVICE bool signbit(T x) {
  return x < T(0);
}
TF_DEVICE bool signbit(float x) { return bits(x) >> 31; }
TF_DEVICE bool signbit(double x) { return bits(x) >> 63; }

#define TF_ROUNDING(name, function)                             \
  template <class T>                                            \
  TF_DEVICE T name(T x) {                                       \
    return x;                                                   \
  }                                                             \
  TF_DEVICE float name(float x) { return ::function##f(x); }    \
  TF_DEVICE double name(double x) { return ::function(x); }
TF_ROUNDING(ceil, ceil)
TF_ROUNDING(floor, floor)
TF_ROUNDING(trunc, trunc)
TF_ROUNDING(round, rint)  // half to even
#undef TF_ROUNDING

template <class T>
TF_DEVICE T frac(T x) {
  return x - trunc(x);
}

// ---- tests

template <class T>
TF_DEVICE bool isnan(T x) {
  return x != x;
}
template <class T>
TF_DEVICE bool isinf(T) {
  return false;
}
TF_DEVICE bool isinf(float x) { return abs(x) == from_bits(0x7f800000u); }
TF_DEVICE bool isinf(double x) { return abs(x) == from_bits(0x7ff0000000000000ull); }
template <class T>
TF_DEVICE bool isfinite(T) {
  return true;
}
TF_DEVICE bool isfinite(float x) { return abs(x) < from_bits(0x7f800000u); }
TF_DEVICE bool isfinite(double x) { return abs(x) < from_bits(0x7ff0000000000000ull); }
template <class T>
TF_DEVICE bool isposinf(T x) {
  return isinf(x) & (x > T(0));
}
template <class T>
TF_DEVICE bool isneginf(T x) {
  return isinf(x) & (x < T(0));
}
template <class T>
TF_DEVICE bool isreal(T) {
  return true;
}
template <class T>
TF_DEVICE T real(T x) {
  return x;
}

// ---- minimum, maximum, clamp: NaN in any operand gives NaN

template <class T>
TF_DEVICE T maximum(T a, T b) {
  return (a > b) | (a != a) ? a : b;
}
template <class T>
TF_DEVICE T minimum(T a, T b) {
  return (a < b) | (a != a) ? a : b;
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
TF_DEVICE float maximum(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
TF_DEVICE float minimum(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
#endif
// x wins over an equal bound, so that the sign of a zero is kept.
template <class T>
TF_DEVICE T clamp(T x, T low, T high) {
  const T above = (x < low) | (low != low) ? low : x;
  return (above > high) | (high != high) ? high : above;
}
template <class T>
TF_DEVICE T relu(T x) {
  return x < T(0) ? T(0) : x;
}

// ---- arithmetic

template <class T>
TF_DEVICE T reciprocal(T x) {
  return T(1) / x;
}
template <class T>
TF_DEVICE T sigmoid(T x) {
  return T(1) / (T(1) + exp(-x));
}
template <class T>
TF_DEVICE T silu(T x) {
  return x / (T(1) + exp(-x));
}
// start + weight * (end - start), exact at both ends
template <class T>
TF_DEVICE T lerp(T start, T end, T weight) {
  const T step = end - start;
  return abs(weight) < T(0.5) ? start + weight * step : end - step * (T(1) - weight);
}
// Derivative of lgamma: Abramowitz and Stegun, Handbook of Mathematical Functions: recurrence 6.3.5
// up to the range of the asymptotic series 6.3.18; reflection 6.3.7 for negative arguments.
template <class T>
TF_DEVICE T digamma(T x) {
  T result = T(0);
  if (x <= T(0)) {
    const T rest = T(3.141592653589793) * (x - round(x));
    const T pole = x < T(0) ? T(0) / T(0) : T(-1) / x;
    if (rest == T(0)) return pole;
    result = T(-3.141592653589793) / tan(rest);
    x = T(1) - x;
  }
  for (; x < T(10); x += T(1)) result -= T(1) / x;
  const T z = T(1) / (x * x);
  T series = T(1.0 / 12);
  series = T(-691.0 / 32760) + z * series;
  series = T(1.0 / 132) + z * series;
  series = T(-1.0 / 240) + z * series;
  series = T(1.0 / 252) + z * series;
  series = T(-1.0 / 120) + z * series;
  series = T(1.0 / 12) + z * series;
  return result + log(x) - T(0.5) / x - z * series;
}
// In double: near a zero, the terms are about a hundred times as large as the result.
TF_DEVICE float digamma(float x) { return (float)digamma<double>(x); }
template <class T>
TF_DEVICE T truediv(T a, T b) {
  return a / b;
}

// Unsigned type for shifts and wrap-around arithmetic of integers of `Bytes` bytes.
template <int Bytes>
struct Word {
  using type = unsigned;
};
template <>
struct Word<8> {
  using type = unsigned long long;
};
template <class T>
using word_t = typename Word<sizeof(T)>::type;

template <class T>
constexpr bool kSigned = T(-1) < T(0);
template <class T>
constexpr int kBits = 8 * (int)sizeof(T);

// Processors differ on x / 0 and on the one quotient that overflows; some end the program. Here
// x / 0 and x % 0 are 0, and quotients wrap around.
template <class T>
TF_DEVICE bool is_minus_one(T x) {
  return kSigned<T> && x == T(-1);
}
template <class T>
TF_DEVICE T harmless_divisor(T x) {
  return (x == T(0)) | is_minus_one(x) ? T(1) : x;
}
// Integer division truncates, as in C.
template <class T>
TF_DEVICE T div(T a, T b) {
  const T quotient = is_minus_one(b) ? T(-word_t<T>(a)) : T(a / harmless_divisor(b));
  return b == T(0) ? T(0) : quotient;
}
TF_DEVICE float div(float a, float b) { return a / b; }
TF_DEVICE double div(double a, double b) { return a / b; }
// Division by a constant with reciprocal high + low: lower/index/constant_division.py proves that it
// has the bits of a / b. The parts have equal signs, or infinities would give NaN.
TF_DEVICE float divide_by_constant(float a, float high, float low) {
  return fmaf(a, high, a * low);
}

// Approximations for results that are only used rounded to 16 bits or less.
namespace brief {
// Relative error 2^-20.8 + |x| 2^-23: ex2.approx, with error 2^-22.4, of half the exponent,
// squared, since it flushes powers below 2^-126 to zero. Underflow and overflow give 0 and
// infinity.
TF_DEVICE float exp(float x) {
#ifdef __CUDA_ARCH__
  float root;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x * 0.72134752f));
  return root * root;
#else
  return tf::exp(x);
#endif
}
// Multiplication by the reciprocal, for a divisor shared by many values: computed once. Not for
// divisors below 2^-127.
TF_DEVICE float div(float a, float b) {
#ifdef __CUDA_ARCH__
  return a * (1.0f / b);
#else
  return a / b;
#endif
}
TF_DEVICE float truediv(float a, float b) { return div(a, b); }
// Absolute error 2^-21.8, for use as 1 + erf(x): where that is small, as many digits are lost as
// with torch's erf. The logarithm of erfc is one polynomial over the whole range.
TF_DEVICE float erf(float x) {
#ifdef __CUDA_ARCH__
  const float z = ::fabsf(x);
  float power = -4.53585962e-05f;
  power = fmaf(power, z, 4.45507641e-04f);
  power = fmaf(power, z, -1.48944161e-03f);
  power = fmaf(power, z, -7.74629705e-04f);
  power = fmaf(power, z, 2.82536820e-02f);
  power = fmaf(power, z, -1.48481622e-01f);
  power = fmaf(power, z, -9.18416381e-01f);
  power = fmaf(power, z, -1.62790859f);
  float rest;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(rest) : "f"(power * z));
  return ::copysignf(1.0f - rest, x);
#else
  return tf::erf(x);
#endif
}
// tanh with the accuracy of erf above.
TF_DEVICE float tanh(float x) {
#ifdef __CUDA_ARCH__
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(::fabsf(x) * 2.88539008f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(power + 1.0f));
  return ::copysignf(fmaf(inverse, -2.0f, 1.0f), x);
#else
  return tf::tanh(x);
#endif
}
}  // namespace brief

// Remainder of truncating division: it has the sign of the dividend.
template <class T>
TF_DEVICE T fmod(T a, T b) {
  return T(a % harmless_divisor(b));
}
TF_DEVICE float fmod(float a, float b) { return native::fmod(a, b); }
TF_DEVICE double fmod(double a, double b) { return native::fmod(a, b); }
template <class T>
TF_DEVICE T mod(T a, T b) {
  return fmod(a, b);
}
// Remainder of floor division: it has the sign of the divisor.
template <class T>
TF_DEVICE T remainder(T a, T b) {
  const T rest = fmod(a, b);
  return (rest != T(0)) & ((rest < T(0)) != (b < T(0))) ? T(rest + b) : rest;
}

// Integer power: wraps around; a negative exponent gives the truncated reciprocal.
template <class T>
TF_DEVICE T pow(T base, T exponent) {
  if (exponent < T(0)) {
    const T one = exponent & T(1) ? base : T(1);
    return base == T(1) ? T(1) : is_minus_one(base) ? one : T(0);
  }
  word_t<T> result = 1, square = word_t<T>(base);
  for (word_t<T> rest = word_t<T>(exponent); rest; rest >>= 1) {
    if (rest & 1) result *= square;
    square *= square;
  }
  return T(result);
}
TF_DEVICE float pow(float a, float b) { return ::powf(a, b); }
TF_DEVICE double pow(double a, double b) { return ::pow(a, b); }

// Greatest common divisor, never negative; gcd(0, x) is |x|.
template <class T>
TF_DEVICE T gcd(T a, T b) {
  word_t<T> x = a < T(0) ? -word_t<T>(a) : word_t<T>(a);
  word_t<T> y = b < T(0) ? -word_t<T>(b) : word_t<T>(b);
  while (y) {
    const word_t<T> rest = x % y;
    x = y;
    y = rest;
  }
  return T(x);
}

// ---- bits

template <class T>
TF_DEVICE T bitwise_not(T x) {
  return T(~x);
}
TF_DEVICE bool bitwise_not(bool x) { return !x; }

template <class T>
TF_DEVICE bool shifts_everything_out(T amount) {
  return (amount < T(0)) | (word_t<T>(amount) >= (word_t<T>)kBits<T>);
}
template <class T>
TF_DEVICE T bitwise_left_shift(T x, T amount) {
  const int n = shifts_everything_out(amount) ? 0 : int(amount);
  return shifts_everything_out(amount) ? T(0) : T(word_t<T>(x) << n);
}
// Arithmetic shift for signed types.
template <class T>
TF_DEVICE T bitwise_right_shift(T x, T amount) {
  const int n = shifts_everything_out(amount) ? kBits<T> - 1 : int(amount);
  return shifts_everything_out(amount) && !kSigned<T> ? T(0) : T(x >> n);
}
// Logical shift: zeros are shifted in.
template <class T>
TF_DEVICE T logical_right_shift(T x, T amount) {
  const int n = shifts_everything_out(amount) ? 0 : int(amount);
  const word_t<T> pattern = word_t<T>(x) & (~word_t<T>(0) >> (8 * sizeof(word_t<T>) - kBits<T>));
  return shifts_everything_out(amount) ? T(0) : T(pattern >> n);
}

}  // namespace tf
