// Inverses of erf and erfc, which C lacks. After M. J. Wichura, "Algorithm AS 241: the
// percentage points of the normal distribution", Applied Statistics 37 (1988), routine PPND16,
// which is accurate to about 16 digits.
#pragma once

namespace tf {
namespace native {

template <int N>
TF_DEVICE double polynomial(const double (&coefficients)[N], double x) {
  double sum = coefficients[N - 1];
  for (int i = N - 2; i >= 0; --i) sum = sum * x + coefficients[i];
  return sum;
}

// Returns x with normal_distribution(x) = 1/2 + q; tail = 1/2 - |q| is an argument because the
// difference would be inexact. Infinite for tail = 0, NaN for tail < 0.
inline double normal_quantile(double q, double tail) {
  if (fabs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    constexpr double above[] = {3.3871328727963666080e0, 1.3314166789178437745e2,
                                1.9715909503065514427e3, 1.3731693765509461125e4,
                                4.5921953931549871457e4, 6.7265770927008700853e4,
                                3.3430575583588128105e4, 2.5090809287301226727e3};
    constexpr double below[] = {1.0,
                                4.2313330701600911252e1,
                                6.8718700749205790830e2,
                                5.3941960214247511077e3,
                                2.1213794301586595867e4,
                                3.9307895800092710610e4,
                                2.8729085735721942674e4,
                                5.2264952788528545610e3};
    return q * polynomial(above, r) / polynomial(below, r);
  }
  if (tail == 0) return copysign(__builtin_inf(), q);
  const double r = sqrt(-log(tail));
  double quantile;
  if (r <= 5) {
    constexpr double above[] = {1.42343711074968357734e0, 4.63033784615654529590e0,
                                5.76949722146069140550e0, 3.64784832476320460504e0,
                                1.27045825245236838258e0, 2.41780725177450611770e-1,
                                2.27238449892691845833e-2, 7.74545014278341407640e-4};
    constexpr double below[] = {1.0,
                                2.05319162663775882187e0,
                                1.67638483018380384940e0,
                                6.89767334985100004550e-1,
                                1.48103976427480074590e-1,
                                1.51986665636164571966e-2,
                                5.47593808499534494600e-4,
                                1.05075007164441684324e-9};
    quantile = polynomial(above, r - 1.6) / polynomial(below, r - 1.6);
  } else {
    constexpr double above[] = {6.65790464350110377720e0, 5.46378491116411436990e0,
                                1.78482653991729133580e0, 2.96560571828504891230e-1,
                                2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                2.71155556874348757815e-5, 2.01033439929228813265e-7};
    constexpr double below[] = {1.0,
                                5.99832206555887937690e-1,
                                1.36929880922735805310e-1,
                                1.48753612908506148525e-2,
                                7.86869131145613259100e-4,
                                1.84631831751005468180e-5,
                                1.42151175831644588870e-7,
                                2.04426310338993978564e-15};
    quantile = polynomial(above, r - 5) / polynomial(below, r - 5);
  }
  return copysign(quantile, q);
}

constexpr double kSqrtHalf = 0.70710678118654752440;

// erf(x) = 2 * normal_distribution(sqrt(2) * x) - 1
inline double erfinv(double y) {
  return mul_rn(kSqrtHalf, normal_quantile(0.5 * y, 0.5 - 0.5 * fabs(y)));
}
inline double erfcinv(double y) {
  return mul_rn(-kSqrtHalf, normal_quantile(0.5 * y - 0.5, y < 1 ? 0.5 * y : 1 - 0.5 * y));
}
inline float erfinv(float y) { return static_cast<float>(erfinv(static_cast<double>(y))); }
inline float erfcinv(float y) { return static_cast<float>(erfcinv(static_cast<double>(y))); }

}  // namespace native
}  // namespace tf
