// Complex numbers: the type, its arithmetic, and every pointwise function that torch has for it.
//
// The elementary functions follow W. Kahan, "Branch cuts for complex elementary functions" (1987):
// right on both sides of each cut, and without the cancellation of the textbook formulas.
#pragma once
#include "math.cuh"

namespace tf {

template <class T>
struct alignas(2 * sizeof(T)) complex {
  T re, im;

  complex() = default;
  TF_DEVICE complex(T real, T imag = T(0)) : re(real), im(imag) {}

  // Conversion to a real type drops the imaginary part, as torch does; to bool it tests both.
  template <class U>
  TF_DEVICE explicit operator U() const {
    return Convert<U>::from(re);
  }
  TF_DEVICE explicit operator bool() const { return re != T(0) || im != T(0); }
};

using complex64 = complex<float>;
using complex128 = complex<double>;

template <class T>
struct Convert<complex<T>> {
  template <class From>
  static TF_DEVICE complex<T> from(From v) {
    return complex<T>(Convert<T>::from(v));
  }
  template <class From>
  static TF_DEVICE complex<T> from(complex<From> v) {
    return complex<T>(T(v.re), T(v.im));
  }
};

// ---- parts and tests

#define TF_COMPLEX template <class T> TF_DEVICE

TF_COMPLEX T real(complex<T> z) { return z.re; }
TF_COMPLEX T imag(complex<T> z) { return z.im; }
TF_COMPLEX complex<T> conj(complex<T> z) { return {z.re, -z.im}; }
TF_COMPLEX T abs(complex<T> z) { return hypot(z.re, z.im); }
TF_COMPLEX bool isinf(complex<T> z) { return isinf(z.re) | isinf(z.im); }
TF_COMPLEX bool isfinite(complex<T> z) { return isfinite(z.re) & isfinite(z.im); }
TF_COMPLEX bool isreal(complex<T> z) { return z.im == T(0); }

// ---- arithmetic

TF_COMPLEX bool operator==(complex<T> a, complex<T> b) { return (a.re == b.re) & (a.im == b.im); }
TF_COMPLEX bool operator!=(complex<T> a, complex<T> b) { return (a.re != b.re) | (a.im != b.im); }
TF_COMPLEX complex<T> operator-(complex<T> a) { return {-a.re, -a.im}; }
TF_COMPLEX complex<T> operator+(complex<T> a, complex<T> b) { return {a.re + b.re, a.im + b.im}; }
TF_COMPLEX complex<T> operator-(complex<T> a, complex<T> b) { return {a.re - b.re, a.im - b.im}; }
TF_COMPLEX complex<T> operator*(complex<T> a, complex<T> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
TF_COMPLEX complex<T> operator*(complex<T> a, T b) { return {a.re * b, a.im * b}; }

// Smith's method: no overflow of intermediate squares.
TF_COMPLEX complex<T> operator/(complex<T> a, complex<T> b) {
  const T size_re = abs(b.re), size_im = abs(b.im);
  if (size_re == T(0) && size_im == T(0)) return {a.re / size_re, a.im / size_im};
  if (size_re >= size_im) {
    const T ratio = b.im / b.re, scale = T(1) / (b.re + b.im * ratio);
    return {(a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale};
  }
  const T ratio = b.re / b.im, scale = T(1) / (b.re * ratio + b.im);
  return {(a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale};
}
TF_COMPLEX complex<T> div(complex<T> a, complex<T> b) { return a / b; }

// z / |z|, and 0 for 0
TF_COMPLEX complex<T> sign(complex<T> z) {
  const T size = abs(z);
  return size == T(0) ? complex<T>(T(0)) : complex<T>(z.re / size, z.im / size);
}
TF_COMPLEX complex<T> lerp(complex<T> start, complex<T> end, complex<T> weight) {
  const complex<T> step = end - start;
  return abs(weight) < T(0.5) ? start + weight * step : end - step * (complex<T>(T(1)) - weight);
}

// ---- exponentials, logarithms, roots

TF_COMPLEX complex<T> exp(complex<T> z) {
  const T size = exp(z.re);
  if (z.im == T(0)) return {size, z.im};
  return {size * cos(z.im), size * sin(z.im)};
}
TF_COMPLEX complex<T> exp2(complex<T> z) { return exp(z * T(0.69314718055994530942)); }
TF_COMPLEX complex<T> expm1(complex<T> z) {
  const T half = sin(z.im * T(0.5));
  return {expm1(z.re) * cos(z.im) - T(2) * half * half, exp(z.re) * sin(z.im)};
}
// log(|z|); near |z| = 1, where rounding |z| would lose the result, from what |z|^2 is beyond 1.
TF_COMPLEX T log_abs(complex<T> z) {
  const T size = abs(z);
  if (!(size > T(0.5) && size < T(2))) return log(size);
  const T more = maximum(abs(z.re), abs(z.im)), less = minimum(abs(z.re), abs(z.im));
  return T(0.5) * log1p((more - T(1)) * (more + T(1)) + less * less);
}
TF_COMPLEX complex<T> log(complex<T> z) { return {log_abs(z), atan2(z.im, z.re)}; }
TF_COMPLEX complex<T> log2(complex<T> z) { return log(z) * T(1.44269504088896340736); }
TF_COMPLEX complex<T> log10(complex<T> z) { return log(z) * T(0.43429448190325182765); }
TF_COMPLEX complex<T> log1p(complex<T> z) {
  const T angle = atan2(z.im, z.re + T(1));
  if (abs(z.re) + abs(z.im) > T(0.5)) return {log_abs(complex<T>(z.re + T(1), z.im)), angle};
  return {T(0.5) * log1p(z.re * (T(2) + z.re) + z.im * z.im), angle};
}
TF_COMPLEX complex<T> sqrt(complex<T> z) {
  if (isinf(z.im)) return {abs(z.im), z.im};
  const T root = sqrt(T(0.5) * abs(z.re) + T(0.5) * abs(z));
  if (root == T(0)) return {T(0), z.im};
  const T other = T(0.5) * (z.im / root);
  return z.re >= T(0) ? complex<T>(root, other) : complex<T>(abs(other), copysign(root, z.im));
}
TF_COMPLEX complex<T> rsqrt(complex<T> z) { return reciprocal(sqrt(z)); }
TF_COMPLEX complex<T> pow(complex<T> base, complex<T> exponent) {
  if (!exponent) return complex<T>(T(1));
  if (!base && exponent.re > T(0)) return complex<T>(T(0));
  return exp(exponent * log(base));
}

// ---- trigonometry: the circular functions are the hyperbolic ones of i * z

TF_COMPLEX complex<T> times_i(complex<T> z) { return {-z.im, z.re}; }
TF_COMPLEX complex<T> times_minus_i(complex<T> z) { return {z.im, -z.re}; }

TF_COMPLEX complex<T> sinh(complex<T> z) {
  return {sinh(z.re) * cos(z.im), cosh(z.re) * sin(z.im)};
}
TF_COMPLEX complex<T> cosh(complex<T> z) {
  return {cosh(z.re) * cos(z.im), sinh(z.re) * sin(z.im)};
}
TF_COMPLEX complex<T> tanh(complex<T> z) {
  const T slope = T(1) / cosh(z.re);  // 0 where the exponential overflows
  const T h = tanh(z.re), t = tan(z.im);
  if (slope == T(0)) return {h, T(0) * t};
  const T scale = T(1) / (T(1) + h * h * t * t);
  return {h * (T(1) + t * t) * scale, t * scale * slope * slope};
}
TF_COMPLEX complex<T> asinh(complex<T> z) {
  const complex<T> a = sqrt(complex<T>(T(1) + z.im, -z.re));
  const complex<T> b = sqrt(complex<T>(T(1) - z.im, z.re));
  return {asinh(a.re * b.im - b.re * a.im), atan2(z.im, a.re * b.re - a.im * b.im)};
}
TF_COMPLEX complex<T> acosh(complex<T> z) {
  const complex<T> a = sqrt(complex<T>(z.re - T(1), z.im));
  const complex<T> b = sqrt(complex<T>(z.re + T(1), z.im));
  return {asinh(a.re * b.re + a.im * b.im), T(2) * atan2(a.im, b.re)};
}
TF_COMPLEX complex<T> acos(complex<T> z) {
  const complex<T> a = sqrt(complex<T>(T(1) - z.re, -z.im));
  const complex<T> b = sqrt(complex<T>(T(1) + z.re, z.im));
  return {T(2) * atan2(a.re, b.re), asinh(b.re * a.im - b.im * a.re)};
}
TF_COMPLEX complex<T> atanh(complex<T> z) {
  // An odd function; the formulas are for a real part that is not negative.
  const T side = copysign(T(1), z.re), x = z.re * side, y = z.im * side;
  const T apart = T(1) - x, size = x + abs(y);
  complex<T> result;
  if (size > (sizeof(T) == 4 ? T(1e8) : T(1e16))) {
    // The real part is that of 1 / z; the rest is beyond the precision of T.
    result = {reciprocal(complex<T>(x, y)).re, copysign(T(1.57079632679489661923), y)};
  } else if (apart == T(0) && y == T(0)) {
    result = {x / apart, y};
  } else {
    const T slope = T(4) * x / (apart * apart + y * y);
    result = {T(0.25) * log1p(slope), T(-0.5) * atan2(T(-2) * y, apart * (T(1) + x) - y * y)};
  }
  return result * side;
}
TF_COMPLEX complex<T> sin(complex<T> z) { return times_minus_i(sinh(times_i(z))); }
TF_COMPLEX complex<T> cos(complex<T> z) { return cosh(times_i(z)); }
TF_COMPLEX complex<T> tan(complex<T> z) { return times_minus_i(tanh(times_i(z))); }
TF_COMPLEX complex<T> asin(complex<T> z) { return times_minus_i(asinh(times_i(z))); }
TF_COMPLEX complex<T> atan(complex<T> z) { return times_minus_i(atanh(times_i(z))); }

#undef TF_COMPLEX

}  // namespace tf
