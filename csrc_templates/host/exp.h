// Inline exp: a call to libmvec makes the loop around it save every vector register.
#pragma once

namespace tf {
namespace native {

// Within 1.7 ulp, subnormal results included.
TF_DEVICE float exp(float x) {
  // x = 2 k log(2) + part. The ulp of `shifted` is 2^0: its low bits hold k plus the exponent's
  // bias. A range reduction by 2 log(2) costs two terms of the polynomial and saves splitting
  // 2^(2k), since k alone always fits into an exponent.
  const float shifted = fmaf(x, 0.72134752f, 0x1.8p23f + 127.0f);
  const float k = shifted - (0x1.8p23f + 127.0f);
  float part = fmaf(k, -0x1.62e4p0f, x);
  part = fmaf(k, -0x1.7f7d1cp-19f, part);
  // exp(part) - 1, by Estrin's scheme, because a chain of products (Horner) would bound the loop by
  // latency.
  const float square = part * part;
  float rest = fmaf(1.96118024e-4f, part, 1.41043053e-3f);
  rest = fmaf(rest, square, fmaf(8.33609886e-3f, part, 4.16612774e-2f));
  rest = fmaf(rest, square, fmaf(1.6666615e-1f, part, 5.00000358e-1f));
  rest = fmaf(rest, square, part);
  const float scale = from_bits(bits(shifted) << 23);
  const float result = fmaf(rest, scale, scale) * scale;
  // The result is invalid outside of the range, where it is replaced; NaN passes through.
  const float bounded = x < -104.0f ? 0.0f : result;
  return x > 89.0f ? from_bits(0x7f800000u) : bounded;
}
TF_DEVICE double exp(double x) { return ::exp(x); }
TF_DEVICE float exp_rn(float x) { return exp(x); }
TF_DEVICE double exp_rn(double x) { return exp(x); }

}  // namespace native
}  // namespace tf
