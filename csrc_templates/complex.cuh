// Complex numbers: the type, its arithmetic, and every pointwise function that torch has for it.
//
// The elementary functions follow W. Kahan, "Branch cuts for complex elementary functions" (1987):
// correct on both sides of each branch cut, without the cancellation of the textbook formulas.
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

// ---- exponentials, logarithms, roots: infinities and NaN as in the C standard, annex G

// Argument from which exp may overflow, and a step to subtract from it, with exp(step).
template <class T>
struct Overflow;
template <>
struct Overflow<float> {
  static constexpr float from = 88.0f, step = 64.0f, exp_step = 6.23514908e27f;
};
template <>
struct Overflow<double> {
  static constexpr double from = 709.0, step = 512.0, exp_step = 2.2844135865397565e222;
};
// exp(x) * part, for part != 0, without overflow of exp(x) if the product is finite.
TF_COMPLEX T exp_times(T x, T part) {
  using Limit = Overflow<T>;
  if (!(x > Limit::from)) return exp(x) * part;
  if (!(x > T(2) * Limit::step)) return exp(x - Limit::step) * part * Limit::exp_step;
  return exp(x - T(2) * Limit::step) * part * Limit::exp_step * Limit::exp_step;
}

TF_COMPLEX complex<T> exp(complex<T> z) {
  if (z.im == T(0)) return {exp(z.re), z.im};
  const T nothing = z.im - z.im;  // 0, or NaN if the angle is infinite or NaN
  if (isinf(z.re) && !(nothing == T(0))) {
    return z.re > T(0) ? complex<T>(z.re, nothing) : complex<T>(T(0), copysign(T(0), z.im));
  }
  return {exp_times(z.re, cos(z.im)), exp_times(z.re, sin(z.im))};
}
TF_COMPLEX complex<T> exp2(complex<T> z) { return exp(z * T(0.69314718055994530942)); }
TF_COMPLEX complex<T> expm1(complex<T> z) {
  const T half = sin(z.im * T(0.5));
  return {expm1(z.re) * cos(z.im) - T(2) * half * half, exp(z.re) * sin(z.im)};
}
// log(|z|); near |z| = 1, where rounding |z| would lose the result, computed from |z|^2 - 1.
TF_COMPLEX T log_abs(complex<T> z) {
  const T size = abs(z);
  if (!(size > T(0.5) && size < T(2))) {
    const bool overflows = isinf(size) && isfinite(z);
    const T part = overflows ? abs(complex<T>(z.re * T(0.5), z.im * T(0.5))) : size;
    return overflows ? log(part) + T(0.69314718055994530942) : log(part);
  }
  const T more = maximum(abs(z.re), abs(z.im)), less = minimum(abs(z.re), abs(z.im));
  return T(0.5) * log1p((more - T(1)) * (more + T(1)) + less * less);
}
TF_COMPLEX complex<T> log(complex<T> z) { return {log_abs(z), atan2(z.im, z.re)}; }
TF_COMPLEX complex<T> log2(complex<T> z) { return log(z) * T(1.44269504088896340736); }
TF_COMPLEX complex<T> log10(complex<T> z) { return log(z) * T(0.43429448190325182765); }
TF_COMPLEX complex<T> log1p(complex<T> z) {
  const T angle = atan2(z.im, z.re + T(1));
  if (abs(z.re) + abs(z.im) > T(0.5)) return {log_abs(complex<T>(z.re + T(1), z.im)), angle};
  const T more = z.re * (T(2) + z.re) + z.im * z.im;
  // A zero keeps its sign; where two terms cancel, z.re is not the result.
  return {more == T(0) && z.re == T(0) ? z.re : T(0.5) * log1p(more), angle};
}
TF_COMPLEX complex<T> sqrt(complex<T> z) {
  if (isinf(z.im)) return {abs(z.im), z.im};
  if (isinf(z.re)) {
    const T nothing = z.im - z.im;  // 0 or NaN
    return z.re > T(0) ? complex<T>(z.re, copysign(nothing, z.im))
                       : complex<T>(abs(nothing), copysign(z.re, z.im));
  }
  // Scaling by a power of 4 avoids overflow of |z|.
  const bool is_large = (abs(z.re) > Overflow<T>::exp_step) | (abs(z.im) > Overflow<T>::exp_step);
  const T x = is_large ? z.re * T(0.0625) : z.re, y = is_large ? z.im * T(0.0625) : z.im;
  const T unit = is_large ? T(4) : T(1);
  const T root = sqrt(T(0.5) * abs(x) + T(0.5) * abs(complex<T>(x, y)));
  if (root == T(0)) return {T(0), z.im};
  const T other = T(0.5) * (y / root);
  return x >= T(0) ? complex<T>(root * unit, other * unit)
                   : complex<T>(abs(other) * unit, copysign(root, z.im) * unit);
}
TF_COMPLEX complex<T> rsqrt(complex<T> z) { return reciprocal(sqrt(z)); }
TF_DEVICE float infinity(float) { return from_bits(0x7f800000u); }
TF_DEVICE double infinity(double) { return from_bits(0x7ff0000000000000ull); }
// Maps infinite parts to 1 and others to 0, with their signs.
TF_COMPLEX complex<T> direction(complex<T> z) {
  return {copysign(isinf(z.re) ? T(1) : T(0), z.re), copysign(isinf(z.im) ? T(1) : T(0), z.im)};
}
TF_COMPLEX complex<T> without_nan(complex<T> z) {
  return {isnan(z.re) ? copysign(T(0), z.re) : z.re, isnan(z.im) ? copysign(T(0), z.im) : z.im};
}
// Product of annex G: infinite if a factor is infinite, unless the other is 0 or NaN in both parts.
TF_COMPLEX complex<T> infinite_product(complex<T> a, complex<T> b) {
  const complex<T> product = a * b;
  const bool is_a = isinf(a), is_b = isinf(b);
  if (!(isnan(product.re) & isnan(product.im)) || !(is_a | is_b)) return product;
  const T large = infinity(T(0));
  // Infinite factors are replaced by their direction; NaN parts count as 0.
  const complex<T> c = is_a ? direction(a) : without_nan(a);
  const complex<T> d = is_b ? direction(b) : without_nan(b);
  const complex<T> turned = c * d;
  return {large * turned.re, large * turned.im};
}
TF_COMPLEX complex<T> pow(complex<T> base, complex<T> exponent) {
  return exp(infinite_product(exponent, log(base)));
}

// ---- trigonometry: circular functions by the hyperbolic ones of i * z

TF_COMPLEX complex<T> times_i(complex<T> z) { return {-z.im, z.re}; }
TF_COMPLEX complex<T> times_minus_i(complex<T> z) { return {z.im, -z.re}; }

TF_COMPLEX complex<T> sinh(complex<T> z) {
  if (z.im == T(0)) return {sinh(z.re), z.im};
  const T nothing = z.im - z.im, size = abs(z.re);
  if (!(nothing == T(0)) && (isinf(size) || size == T(0))) {
    return {isinf(size) ? size : z.re, nothing};
  }
  if (size > Overflow<T>::from) {
    return {exp_times(size, copysign(T(0.5), z.re) * cos(z.im)),
            exp_times(size, T(0.5) * sin(z.im))};
  }
  return {sinh(z.re) * cos(z.im), cosh(z.re) * sin(z.im)};
}
TF_COMPLEX complex<T> cosh(complex<T> z) {
  if (z.im == T(0)) return {cosh(z.re), isnan(z.re) ? z.im : z.im * copysign(T(1), z.re)};
  const T nothing = z.im - z.im, size = abs(z.re);
  if (!(nothing == T(0)) && (isinf(size) || size == T(0))) {
    return isinf(size) ? complex<T>(size, nothing) : complex<T>(nothing, T(0));
  }
  if (size > Overflow<T>::from) {
    return {exp_times(size, T(0.5) * cos(z.im)),
            exp_times(size, copysign(T(0.5), z.re) * sin(z.im))};
  }
  return {cosh(z.re) * cos(z.im), sinh(z.re) * sin(z.im)};
}
TF_COMPLEX complex<T> tanh(complex<T> z) {
  if (!isfinite(z)) {
    if (isinf(z.re)) {
      const T angle = isfinite(z.im) ? tan(z.im) : z.im;
      return {copysign(T(1), z.re), copysign(T(0), angle)};
    }
    const T nothing = z.im - z.im;
    return {z.re == T(0) || z.im == T(0) ? z.re : z.re + nothing,
            z.im == T(0) ? z.im : z.re * T(0) + nothing};
  }
  const T slope = T(1) / cosh(z.re);  // 0 if the exponential overflows
  const T h = tanh(z.re), t = tan(z.im);
  if (slope == T(0)) return {h, T(0) * t};
  const T scale = T(1) / (T(1) + h * h * t * t);
  return {h * (T(1) + t * t) * scale, t * scale * slope * slope};
}
// True if 1 is negligible compared to z in the inverse functions, which are then logarithms of 2 z.
TF_COMPLEX bool is_far(complex<T> z) {
  const T bound = sizeof(T) == 4 ? T(1e9) : T(1e18);
  return (abs(z.re) > bound) | (abs(z.im) > bound);
}
TF_COMPLEX T log_abs_double(complex<T> z) { return log_abs(z) + T(0.69314718055994530942); }
constexpr double kHalfPi = 1.57079632679489661923;

TF_COMPLEX complex<T> asinh(complex<T> z) {
  if (is_far(z)) {
    return {copysign(log_abs_double(z), z.re), copysign(atan2(abs(z.im), abs(z.re)), z.im)};
  }
  if (z.im == T(0) && isnan(z.re)) return z;
  const complex<T> a = sqrt(complex<T>(T(1) + z.im, -z.re));
  const complex<T> b = sqrt(complex<T>(T(1) - z.im, z.re));
  return {asinh(a.re * b.im - b.re * a.im), atan2(z.im, a.re * b.re - a.im * b.im)};
}
TF_COMPLEX complex<T> acosh(complex<T> z) {
  if (is_far(z)) return {log_abs_double(z), atan2(z.im, z.re)};
  if (z.re == T(0) && isnan(z.im)) return {z.im, T(kHalfPi)};
  const complex<T> a = sqrt(complex<T>(z.re - T(1), z.im));
  const complex<T> b = sqrt(complex<T>(z.re + T(1), z.im));
  return {asinh(a.re * b.re + a.im * b.im), T(2) * atan2(a.im, b.re)};
}
TF_COMPLEX complex<T> acos(complex<T> z) {
  if (is_far(z)) return {atan2(abs(z.im), z.re), -copysign(log_abs_double(z), z.im)};
  if (z.re == T(0) && isnan(z.im)) return {T(kHalfPi), z.im};
  const complex<T> a = sqrt(complex<T>(T(1) - z.re, -z.im));
  const complex<T> b = sqrt(complex<T>(T(1) + z.re, z.im));
  return {T(2) * atan2(a.re, b.re), asinh(b.re * a.im - b.im * a.re)};
}
TF_COMPLEX complex<T> atanh(complex<T> z) {
  // atanh is odd; the formulas are for a non-negative real part.
  const T side = copysign(T(1), z.re), x = z.re * side, y = z.im * side;
  const T apart = T(1) - x;
  if (is_far(z)) {
    // The real part is that of 1 / z; the rest is beyond the precision of T.
    const bool is_infinite = isinf(z.re) | isinf(z.im);
    const T real = is_infinite ? T(0) : reciprocal(complex<T>(x, y)).re;
    const T angle = isnan(z.im) ? z.im : copysign(T(kHalfPi), z.im);
    return {copysign(real, z.re), is_infinite ? angle : angle + T(0) * x};
  }
  if (x == T(0) && isnan(y)) return z;
  complex<T> result;
  if (apart == T(0) && y == T(0)) {
    result = {x / apart, y};
  } else {
    const T square = apart * apart + y * y;
    const T slope = T(4) * x / square;
    // z is so close to 1 that squares underflow.
    const T real = isinf(slope) ? T(0.5) * (T(0.69314718055994530942) - log(abs(y)))
                                : T(0.25) * log1p(slope);
    result = {real, T(-0.5) * atan2(T(-2) * y, apart * (T(1) + x) - y * y)};
  }
  return result * side;
}
TF_COMPLEX complex<T> sin(complex<T> z) { return times_i(sinh(times_minus_i(z))); }
TF_COMPLEX complex<T> cos(complex<T> z) { return cosh(times_i(z)); }
TF_COMPLEX complex<T> tan(complex<T> z) { return times_i(tanh(times_minus_i(z))); }
TF_COMPLEX complex<T> asin(complex<T> z) { return times_i(asinh(times_minus_i(z))); }
TF_COMPLEX complex<T> atan(complex<T> z) { return times_i(atanh(times_minus_i(z))); }

#undef TF_COMPLEX

}  // namespace tf
