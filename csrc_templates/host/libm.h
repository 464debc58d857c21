// Declarations of the C math library, under the names that CUDA also has.
//
// <math.h> in C++ takes longer to parse than a kernel takes to compile, and declares glibc's SIMD
// versions of these functions (libmvec) only with -ffast-math, which would also give up NaN,
// infinity and rounding. Declaring `simd` clones here makes the vector loops of a kernel call them
// without that flag. They are within 4 ulp; errors at the edges of a function's domain are
// corrected in math.cuh, which both targets use.
#pragma once
#include <features.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 35)
#define TF_SIMD_CLONES _Pragma("omp declare simd notinbranch")
#endif
#endif
#ifndef TF_SIMD_CLONES
#define TF_SIMD_CLONES
#endif

extern "C" {

// Pure functions, as builtins are with -fno-math-errno. Sine and cosine are none (-fno-builtin-sin), and
// g++ leaves a loop scalar where a call may write what its lanes refer to.
#define TF_CONST noexcept __attribute__((const))

#define TF_LIBM_VECTOR(name)                    \
  TF_SIMD_CLONES float name##f(float) TF_CONST; \
  TF_SIMD_CLONES double name(double) TF_CONST;
TF_LIBM_VECTOR(acos) TF_LIBM_VECTOR(acosh) TF_LIBM_VECTOR(asin) TF_LIBM_VECTOR(asinh)
TF_LIBM_VECTOR(atan) TF_LIBM_VECTOR(atanh) TF_LIBM_VECTOR(cos) TF_LIBM_VECTOR(cosh)
TF_LIBM_VECTOR(erf) TF_LIBM_VECTOR(erfc) TF_LIBM_VECTOR(exp) TF_LIBM_VECTOR(exp2)
TF_LIBM_VECTOR(expm1) TF_LIBM_VECTOR(log) TF_LIBM_VECTOR(log10) TF_LIBM_VECTOR(log1p)
TF_LIBM_VECTOR(log2) TF_LIBM_VECTOR(sin) TF_LIBM_VECTOR(sinh) TF_LIBM_VECTOR(tan)
TF_LIBM_VECTOR(tanh)
#undef TF_LIBM_VECTOR

#define TF_LIBM_VECTOR2(name)                          \
  TF_SIMD_CLONES float name##f(float, float) TF_CONST; \
  TF_SIMD_CLONES double name(double, double) TF_CONST;
TF_LIBM_VECTOR2(atan2) TF_LIBM_VECTOR2(hypot) TF_LIBM_VECTOR2(pow)
#undef TF_LIBM_VECTOR2

#define TF_LIBM(name)            \
  float name##f(float) TF_CONST; \
  double name(double) TF_CONST;
TF_LIBM(ceil) TF_LIBM(fabs) TF_LIBM(floor) TF_LIBM(rint) TF_LIBM(sqrt) TF_LIBM(trunc)
#undef TF_LIBM

#define TF_LIBM2(name)                    \
  float name##f(float, float) TF_CONST; \
  double name(double, double) TF_CONST;
TF_LIBM2(copysign) TF_LIBM2(fmod) TF_LIBM2(nextafter)
#undef TF_LIBM2

float fmaf(float, float, float) TF_CONST;
double fma(double, double, double) TF_CONST;
float lgammaf_r(float, int*) noexcept;
double lgamma_r(double, int*) noexcept;
}

static inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)(((unsigned long long)a * b) >> 32);
}

namespace tf {
namespace native {

// Products that are not contracted: g++ keeps a * b + -0.0 as one FMA, which has the product's
// bits; clang honours the pragma (-ffp-contract=fast-honor-pragmas).
#if defined(__clang__)
#define TF_MUL_RN(a, b, fma) _Pragma("clang fp contract(off)") return a * b;
#elif defined(__FP_FAST_FMA)
#define TF_MUL_RN(a, b, fma) return fma(a, b, -0.0);
#else
#define TF_MUL_RN(a, b, fma) return a * b;
#endif
TF_DEVICE float mul_rn(float a, float b) { TF_MUL_RN(a, b, __builtin_fmaf) }
TF_DEVICE double mul_rn(double a, double b) { TF_MUL_RN(a, b, __builtin_fma) }
#undef TF_MUL_RN

TF_DEVICE float atanh(float x) { return ::atanhf(x); }
TF_DEVICE double atanh(double x) { return ::atanh(x); }
TF_DEVICE float rsqrt(float x) { return 1.0f / sqrtf(x); }
TF_DEVICE double rsqrt(double x) { return 1.0 / sqrt(x); }

// lgamma itself writes a global variable.
TF_DEVICE float lgamma(float x) {
  int sign;
  return lgammaf_r(x, &sign);
}
TF_DEVICE double lgamma(double x) {
  int sign;
  return lgamma_r(x, &sign);
}

}  // namespace native
}  // namespace tf
