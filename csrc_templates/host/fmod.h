// fmod in SIMD registers: glibc 2.36's divides bit by bit, which takes 20 ns an element.
#pragma once

namespace tf {
namespace native {

// Takes 51 bits from the quotient of `rest` and `b`, or leaves at most half of `b`. The difference is
// exact in double also if the integer quotient is rounded: a multiple of the last places of quotient
// and `b`, and at most a few of the quotient's times `b`.
TF_DEVICE double nearer(double rest, double b, double inverse) {
  return ::fma(-rint(rest * inverse), b, rest);
}

// Quotients of floats have up to 277 bits.
TF_DEVICE float fmod(float x, float y) {
#ifdef __FP_FAST_FMA
  const double a = fabs((double)x), b = fabs((double)y), inverse = 1.0 / b;
  double rest = nearer(nearer(nearer(a, b, inverse), b, inverse), b, inverse);
  rest = nearer(nearer(nearer(rest, b, inverse), b, inverse), b, inverse);
  rest = rest < 0.0 ? rest + b : rest;
  return copysignf(a < b ? (float)a : (float)rest, x);  // y may be infinite
#else
  return ::fmodf(x, y);
#endif
}
// Quotients of doubles have up to 2,098 bits. Truncated, a rounded one is right or, where rounding
// reached an integer, one too large.
TF_DEVICE double fmod(double x, double y) {
#ifdef __FP_FAST_FMA
  const double a = fabs(x), b = fabs(y), q = trunc(a / b);
  if (q < 0x1p53) {
    const double rest = ::fma(-q, b, a);
    return copysign(a < b ? a : rest < 0.0 ? rest + b : rest, x);
  }
#endif
  return ::fmod(x, y);
}

}  // namespace native
}  // namespace tf
