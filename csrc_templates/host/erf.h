// erf without a table: libmvec's looks coefficients up for each lane, which costs more than the rest.
// Both polynomials are least-squares fits, weighted until the relative error of erf is level.
#pragma once

namespace tf {
namespace native {

// exp(x) within 2e-7 of itself, for x in [-80, 0]: what erf needs of it, without a call.
TF_DEVICE float exp_of_negative(float x) {
  const float scaled = x * 1.44269504f;
  const float whole = rintf(scaled);
  const float part = scaled - whole;
  float power = 1.32764713e-3f;
  power = fmaf(power, part, 9.67554096e-3f);
  power = fmaf(power, part, 5.55071309e-2f);
  power = fmaf(power, part, 2.40221202e-1f);
  power = fmaf(power, part, 6.93146944e-1f);
  power = fmaf(power, part, 1.0f);
  return from_bits(bits(power) + ((unsigned)(int)whole << 23));
}

TF_DEVICE float erf(float x) {
  const float t = fabsf(x), s = x * x;
  // |x| < 0.925: erf(x) = x + x P(x^2), within 0.3 units of the last place before rounding.
  float small = -5.95374323e-4f;
  small = fmaf(small, s, 4.98594064e-3f);
  small = fmaf(small, s, -2.67617200e-2f);
  small = fmaf(small, s, 1.12816825e-1f);
  small = fmaf(small, s, -3.76124799e-1f);
  small = fmaf(small, s, 1.28379151e-1f);
  // Beyond: erf(t) = 1 - exp(Q(t)) up to 4, where 1 is nearest.
  const float c = t < 4.0f ? t : 4.0f;
  float large = -2.10949693e-5f;
  large = fmaf(large, c, 4.34461748e-4f);
  large = fmaf(large, c, -4.17105900e-3f);
  large = fmaf(large, c, 2.51194183e-2f);
  large = fmaf(large, c, -1.08280078e-1f);
  large = fmaf(large, c, -6.33346915e-1f);
  large = fmaf(large, c, -1.12951493f);
  large = fmaf(large, c, 1.74683286e-4f);
  const float tail = copysignf(1.0f - exp_of_negative(large), x);
  return t < 0.925f ? fmaf(small, x, x) : (x != x ? x : tail);
}
TF_DEVICE double erf(double x) { return ::erf(x); }

}  // namespace native
}  // namespace tf
