// Reduction operators and their accumulators.
//
// An operator is a type with `combine(a, b)`, and with `kCommutes`, true if combine(b, a) has the
// same bits; it must be associative up to rounding. Accumulators are trivially copyable, a multiple
// of 4 bytes: one number, or a struct of several.
#pragma once
#include "math.cuh"

namespace tf {

struct Sum {
  static constexpr bool kCommutes = true;
  template <class T>
  static TF_DEVICE T combine(T a, T b) {
    return a + b;
  }
  // Sums start from -0.0, since -0.0 + x is x, which needs no instruction. A sum of negative zeros
  // alone becomes 0.0 here, as in torch.
  template <class T>
  static TF_DEVICE T finish(T sum) {
    return sum + T(0);
  }
};
struct Product {
  static constexpr bool kCommutes = true;
  template <class T>
  static TF_DEVICE T combine(T a, T b) {
    return a * b;
  }
};
struct Xor {
  static constexpr bool kCommutes = true;
  template <class T>
  static TF_DEVICE T combine(T a, T b) {
    return T(a ^ b);
  }
};
// The new element `b` is the left operand, which is tested for NaN: the test does not depend on the
// accumulator.
struct Max {
  static constexpr bool kCommutes = true;
  template <class T>
  static TF_DEVICE T combine(T a, T b) {
    return maximum(b, a);
  }
};
struct Min {
  static constexpr bool kCommutes = true;
  template <class T>
  static TF_DEVICE T combine(T a, T b) {
    return minimum(b, a);
  }
};

// Accumulator of argmax and argmin: a value and its position. The first of equal values wins, and
// NaN wins over numbers. This order is total, so that the order of combination does not matter.
template <class T, class P>
struct Placed {
  T value;
  P position;
};
// Initial accumulator, with a position behind every valid one.
template <class T, class P>
TF_DEVICE Placed<T, P> nowhere(T value) {
  return {value, (P)(~0ull >> (65 - 8 * sizeof(P)))};
}
template <class V>
TF_DEVICE bool is_first_of_equals(V a, V b) {
  const bool equal = (a.value == b.value) | ((a.value != a.value) & (b.value != b.value));
  return equal & (a.position < b.position);
}
// Selects `a` or `b` member by member, which vectorises.
template <class V>
TF_DEVICE V chosen(bool first, V a, V b) {
  return {first ? a.value : b.value, first ? a.position : b.position};
}
struct ArgMax {
  static constexpr bool kCommutes = true;
  template <class V>
  static TF_DEVICE V combine(V a, V b) {
    const bool above = (a.value > b.value) | ((a.value != a.value) & (b.value == b.value));
    return chosen(above | is_first_of_equals(a, b), a, b);
  }
};
struct ArgMin {
  static constexpr bool kCommutes = true;
  template <class V>
  static TF_DEVICE V combine(V a, V b) {
    const bool below = (a.value < b.value) | ((a.value != a.value) & (b.value == b.value));
    return chosen(below | is_first_of_equals(a, b), a, b);
  }
};

// 1 / count, and 1 for count 0. In float with relative error 2^-23, in one instruction, where a
// division is nine and a branch: the sums it scales have larger rounding errors.
TF_DEVICE double inverse_of_count(double count) { return 1.0 / (count > 0.0 ? count : 1.0); }
TF_DEVICE float inverse_of_count(float count) {
#ifdef __CUDA_ARCH__
  float found;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(::fmaxf(count, 1.0f)));
  return found;
#else
  return 1.0f / (count > 0.0f ? count : 1.0f);
#endif
}
// Accumulator of variance and mean: the number of elements, a shift `origin` near them, and the
// sums of (x - origin) and (x - origin)^2. `origin` is the mean after two accumulators were
// combined (`sum` is then its rounding error), and the first element before that: no division per
// element, and however far the first element is from the mean, cancellation is at most by the
// number of elements.
template <class T>
struct Moments {
  T count, origin, sum, squares;
};
// Mean relative to `origin`.
template <class T>
TF_DEVICE T mean_from_origin(Moments<T> a) {
  return a.sum * inverse_of_count(a.count);
}
// Sum of squared deviations from the mean: infinite if it overflows, NaN if an element is infinite,
// since its difference from an infinite mean is NaN.
template <class T>
TF_DEVICE T squared_deviations(Moments<T> a) {
  const T of_mean = a.sum * mean_from_origin(a);
  return a.squares - (isinf(a.squares) ? a.sum - a.sum : of_mean);
}
// Welford's algorithm; `combine` after Chan, Golub and LeVeque.
struct Welford {
  static constexpr bool kCommutes = false;
  template <class T>
  static TF_DEVICE Moments<T> take(Moments<T> a, T element) {
    const T origin = a.count == T(0) ? element : a.origin;
    const T apart = element - origin;
    return {a.count + T(1), origin, a.sum + apart, a.squares + apart * apart};
  }
  // Adds the first `present` elements of a vector, at least one.
  template <class T, int N>
  static TF_DEVICE Moments<T> take(Moments<T> a, const T (&elements)[N], int present = N) {
    const T origin = a.count == T(0) ? elements[0] : a.origin;
    T sum = T(0), squares = T(0);
    TF_UNROLL
    for (int v = 0; v < N; ++v) {
      const T apart = v < present ? elements[v] - origin : T(0);
      sum += apart;
      squares += apart * apart;
    }
    return {a.count + T(present), origin, a.sum + sum, a.squares + squares};
  }
  template <class T>
  static TF_DEVICE Moments<T> combine(Moments<T> a, Moments<T> b) {
    const T count = a.count + b.count;
    const T share = b.count * inverse_of_count(count);
    // Means relative to the origins, so that small differences are not rounded like large values.
    const T from_a = mean_from_origin(a), from_b = mean_from_origin(b);
    const T apart = (b.origin - a.origin) + (from_b - from_a);
    const T step = from_a + apart * share;
    const T mean = a.origin + step;
    const T rest = (a.origin - mean) + step;
    const T within = squared_deviations(a) + squared_deviations(b);
    const T between = apart * (apart * (a.count * share));
    const T squares = within + between + rest * (rest * count);
    // An empty `a` gives exactly `b`.
    const bool first = a.count == T(0);
    return {count, first ? b.origin : mean, first ? b.sum : rest * count,
            first ? b.squares : squares};
  }
};

// Accumulator of online softmax: the maximum and the sum of exp(x - maximum). A maximum of -inf
// counts as 0 in the difference, so that elements -inf contribute 0 and not NaN.
template <class T>
struct Exponentials {
  T largest, sum;
};
// The sum; NaN if the maximum is infinite, like the difference of two infinities.
template <class T>
TF_DEVICE T sum_of_exponentials(Exponentials<T> a) {
  return a.sum + (a.largest - a.largest);
}
TF_DEVICE float lowest(float) { return from_bits(0xff7fffffu); }
TF_DEVICE double lowest(double) { return from_bits(0xffefffffffffffffull); }
// exp(x) for x <= 0, a difference from the maximum: relative error 2^-21.7 + |x| 2^-28, and 0 below
// 2^-126. Instead of splitting the exponent, its rounding error is corrected by a factor; x is
// bounded below, where nothing is left to correct, so that -inf does not become NaN.
TF_DEVICE double exp_of_distance(double x) { return tf::exp(x); }
TF_DEVICE float exp_of_distance(float x) {
#ifdef __CUDA_ARCH__
  const float near = maximum(x, -128.0f), power = near * 1.44269504f;
  float found;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(power));
  return fmaf(found, fmaf(power, -0.693147181f, near), found);
#else
  return tf::exp(x);
#endif
}
// exp_of_distance for 16-bit elements: relative error 2^-22.4 + |x| 2^-24, without correction of
// the exponent's rounding, which differs from element to element. -inf needs no bound.
TF_DEVICE double brief_exp_of_distance(double x) { return tf::exp(x); }
TF_DEVICE float brief_exp_of_distance(float x) {
#ifdef __CUDA_ARCH__
  float found;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x * 1.44269504f));
  return found;
#else
  return tf::exp(x);
#endif
}
// Maximum that ignores a NaN in `b`.
template <class T>
TF_DEVICE T larger(T a, T b) {
  return b > a ? b : a;
}
#ifdef __CUDA_ARCH__
TF_DEVICE float larger(float a, float b) { return ::fmaxf(a, b); }
#endif
// Online softmax: the sum is rescaled when a larger element comes. NaN enters the sum, never the
// maximum.
template <bool kBrief>
struct SumOfExponentials {
  static constexpr bool kCommutes = false;
  template <class T>
  static TF_DEVICE T exp(T x) {
    return kBrief ? brief_exp_of_distance(x) : exp_of_distance(x);
  }
  template <class T>
  static TF_DEVICE T origin(T largest) {
    return largest < lowest(largest) ? T(0) : largest;
  }
  template <class T>
  static TF_DEVICE Exponentials<T> take(Exponentials<T> a, T element) {
    const bool above = element > a.largest;
    const T largest = above ? element : a.largest;
    const T scale = exp((above ? a.largest : element) - origin(largest));
    return {largest, above ? a.sum * scale + T(1) : a.sum + scale};
  }
  // Adds the first `present` elements of a vector, at least one.
  template <class T, int N>
  static TF_DEVICE Exponentials<T> take(Exponentials<T> a, const T (&elements)[N],
                                        int present = N) {
    T largest = a.largest;
    TF_UNROLL
    for (int v = 0; v < N; ++v) {
      largest = v < present ? larger(largest, elements[v]) : largest;
    }
    const T from = origin(largest);
    T sum = T(0);
    TF_UNROLL
    for (int v = 0; v < N; ++v) sum += v < present ? exp(elements[v] - from) : T(0);
    return {largest, a.sum * exp(a.largest - from) + sum};
  }
  template <class T>
  static TF_DEVICE Exponentials<T> combine(Exponentials<T> a, Exponentials<T> b) {
    const T largest = a.largest > b.largest ? a.largest : b.largest, from = origin(largest);
    const T scale = exp(a.largest - from), other = exp(b.largest - from);
    return {largest, a.sum * scale + b.sum * other};
  }
};
using OnlineSoftmax = SumOfExponentials<false>;
namespace brief {
using OnlineSoftmax = SumOfExponentials<true>;
}  // namespace brief

// Volatile load of the value at `p`, bypassing the L1 cache, which does not see writes of other
// multiprocessors.
template <class T>
TF_DEVICE T fresh(const T* p) {
  constexpr int words = sizeof(T) / 4;
  static_assert(words * 4 == sizeof(T), "values are read word by word");
  union Parcel {
    TF_DEVICE Parcel() {}
    T value;
    unsigned word[words];
  } parcel;
  TF_UNROLL
  for (int i = 0; i < words; ++i) parcel.word[i] = ((const volatile unsigned*)p)[i];
  return parcel.value;
}

// Accumulators of the lanes of a vector, as a struct of arrays for a CPU's SIMD registers.
template <class A, int N>
struct Lanes;
template <class T, class P, int N>
struct Lanes<Placed<T, P>, N> {
  T value[N];
  P position[N];
  TF_DEVICE Placed<T, P> get(int v) const { return {value[v], position[v]}; }
  TF_DEVICE void set(int v, Placed<T, P> a) {
    value[v] = a.value;
    position[v] = a.position;
  }
  TF_DEVICE Placed<T, P> fresh(int v) const {
    return {tf::fresh(value + v), tf::fresh(position + v)};
  }
};
template <class T, int N>
struct Lanes<Exponentials<T>, N> {
  T largest[N], sum[N];
  TF_DEVICE Exponentials<T> get(int v) const { return {largest[v], sum[v]}; }
  TF_DEVICE void set(int v, Exponentials<T> a) {
    largest[v] = a.largest;
    sum[v] = a.sum;
  }
  TF_DEVICE Exponentials<T> fresh(int v) const {
    return {tf::fresh(largest + v), tf::fresh(sum + v)};
  }
};
template <class T, int N>
struct Lanes<Moments<T>, N> {
  T count[N], origin[N], sum[N], squares[N];
  TF_DEVICE Moments<T> get(int v) const { return {count[v], origin[v], sum[v], squares[v]}; }
  TF_DEVICE void set(int v, Moments<T> a) {
    count[v] = a.count;
    origin[v] = a.origin;
    sum[v] = a.sum;
    squares[v] = a.squares;
  }
  TF_DEVICE Moments<T> fresh(int v) const {
    return {tf::fresh(count + v), tf::fresh(origin + v), tf::fresh(sum + v),
            tf::fresh(squares + v)};
  }
};

// Accessors of a lane's accumulator, for a scalar, an array and Lanes.
template <class T>
TF_DEVICE T lane_of(const T& one, int) {
  return one;
}
template <class T, int N>
TF_DEVICE T lane_of(const T (&each)[N], int v) {
  return each[v];
}
template <class T, int N>
TF_DEVICE T lane_of(const Lanes<T, N>& each, int v) {
  return each.get(v);
}
template <class T>
TF_DEVICE void set_lane(T& one, int, T value) {
  one = value;
}
template <class T, int N>
TF_DEVICE void set_lane(T (&each)[N], int v, T value) {
  each[v] = value;
}
template <class T, int N>
TF_DEVICE void set_lane(Lanes<T, N>& each, int v, T value) {
  each.set(v, value);
}

}  // namespace tf
