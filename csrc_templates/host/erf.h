// Table-free erf: libmvec's looks up coefficients for each lane, which costs more than the rest.
// Both polynomials are minimax (equal-ripple) fits. Including rounding, erf is within 2.1 ulp, as
// CUDA's.
#pragma once

namespace tf {
namespace native {

TF_DEVICE float erf(float x) {
  const float t = fabsf(x), s = x * x;
  // |x| < 1.3, and NaN: erf(x) = x + x P(x^2).
  float small = 5.88255607e-5f;
  small = fmaf(small, s, -7.2808261e-4f);
  small = fmaf(small, s, 5.08536538e-3f);
  small = fmaf(small, s, -2.6785763e-2f);
  small = fmaf(small, s, 1.12815246e-1f);
  small = fmaf(small, s, -3.76123935e-1f);
  small = fmaf(small, s, 1.28379121e-1f);
  // |x| >= 1.3: erf(t) = 1 - Q(t)^8 up to 4, from where on it rounds to 1. Non-negative floats have
  // the same order as their bits, whose integer minimum is cheaper.
  const unsigned four = bits(4.0f);
  const float c = from_bits(bits(t) < four ? bits(t) : four);
  float root = -7.34088011e-4f;
  root = fmaf(root, c, 4.68695257e-3f);
  root = fmaf(root, c, 9.15522873e-3f);
  root = fmaf(root, c, -8.97631273e-2f);
  root = fmaf(root, c, -1.24501437e-1f);
  root = fmaf(root, c, 9.9470526e-1f);
  const float square = root * root, fourth = square * square;
  const float tail = fmaf(-fourth, fourth, 1.0f);
  return t >= 1.3f ? copysignf(tail, x) : fmaf(small, x, x);
}
TF_DEVICE double erf(double x) { return ::erf(x); }

}  // namespace native
}  // namespace tf
