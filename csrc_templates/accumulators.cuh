// Operators that reductions meet values with, and what they accumulate.
//
// An operator is a type with `combine(a, b)`, and `kCommutes` if combine(b, a) has the same bits;
// it must be associative up to rounding. Values are trivially copyable, a multiple of 4 bytes: one
// number, or a struct that carries several through one reduction.
#pragma once
#include "math.cuh"

namespace tf {

struct Sum {
  static constexpr bool kCommutes = true;
  template <class T>
  static TF_DEVICE T combine(T a, T b) {
    return a + b;
  }
  // Folding starts from -0.0, since -0.0 + x is x: no instruction. A sum of that and of other
  // negative zeros is 0.0, as it is for torch.
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
// What comes is on the left, and tested for NaN there: that need not wait for what went before.
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

// A value and where it was: the first of equal ones, and NaN before any number. This order is total,
// so the order in which values meet does not show.
template <class T, class P>
struct Placed {
  T value;
  P position;
};
// Behind every position.
template <class T, class P>
TF_DEVICE Placed<T, P> nowhere(T value) {
  return {value, (P)(~0ull >> (65 - 8 * sizeof(P)))};
}
template <class V>
TF_DEVICE bool is_first_of_equals(V a, V b) {
  const bool equal = (a.value == b.value) | ((a.value != a.value) & (b.value != b.value));
  return equal & (a.position < b.position);
}
// Member by member, which a vectoriser understands.
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

// 1 over a number of elements, and 1 for none. In float within 2^-23 of itself, an instruction where
// a division is nine and a branch: sums were rounded by more before it comes.
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
// Some elements, for their variance: how many, a number near them, and the sums of what they differ
// from it and of its squares. The number is their mean where two sets have met (the sum is then what
// the mean was rounded by), and until then the first of them: nothing is divided at an element, and
// however far off the first is, the squares cancel by no more than the number of elements.
template <class T>
struct Moments {
  T count, origin, sum, squares;
};
// Their mean, as seen from the number near them.
template <class T>
TF_DEVICE T mean_from_origin(Moments<T> a) {
  return a.sum * inverse_of_count(a.count);
}
// What elements differ from their mean by, squared and added up: infinite where that overflows, and
// NaN where an element is infinite, since it differs from an infinite mean by NaN.
template <class T>
TF_DEVICE T squared_deviations(Moments<T> a) {
  const T of_mean = a.sum * mean_from_origin(a);
  return a.squares - (isinf(a.squares) ? a.sum - a.sum : of_mean);
}
// Welford's algorithm as Chan, Golub and LeVeque have it for sets of elements.
struct Welford {
  static constexpr bool kCommutes = false;
  template <class T>
  static TF_DEVICE Moments<T> take(Moments<T> a, T element) {
    const T origin = a.count == T(0) ? element : a.origin;
    const T apart = element - origin;
    return {a.count + T(1), origin, a.sum + apart, a.squares + apart * apart};
  }
  // The first `present` elements of a vector, one at least.
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
    // What is small is not rounded as what is large.
    const T from_a = mean_from_origin(a), from_b = mean_from_origin(b);
    const T apart = (b.origin - a.origin) + (from_b - from_a);
    const T step = from_a + apart * share;
    const T mean = a.origin + step;
    const T rest = (a.origin - mean) + step;
    const T within = squared_deviations(a) + squared_deviations(b);
    const T between = apart * (apart * (a.count * share));
    const T squares = within + between + rest * (rest * count);
    // Nothing and some elements are these elements, to the last bit.
    const bool first = a.count == T(0);
    return {count, first ? b.origin : mean, first ? b.sum : rest * count,
            first ? b.squares : squares};
  }
};

// The largest of some elements, and exponentials of what they differ from it by, added up. A largest
// of -inf counts as 0 there: nothing has the exponential 0 then, and not that of NaN.
template <class T>
struct Exponentials {
  T largest, sum;
};
// NaN where the largest is infinite, as the difference of two infinities is.
template <class T>
TF_DEVICE T sum_of_exponentials(Exponentials<T> a) {
  return a.sum + (a.largest - a.largest);
}
TF_DEVICE float lowest(float) { return from_bits(0xff7fffffu); }
TF_DEVICE double lowest(double) { return from_bits(0xffefffffffffffffull); }
// exp of what an element differs from the largest by, which is not positive: within
// 2^-21.7 + |x| 2^-28 of itself, and 0 below 2^-126. Instead of taking the exponent apart, what
// rounding it has lost is multiplied on; far below nothing is left to be lost, and -inf must not become NaN.
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
// The same of numbers that have 16 bits: within 2^-22.4 + |x| 2^-24, since what rounding the exponent
// loses differs from element to element. Nothing is to be bounded for -inf.
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
// NaN is not larger than anything.
template <class T>
TF_DEVICE T larger(T a, T b) {
  return b > a ? b : a;
}
#ifdef __CUDA_ARCH__
TF_DEVICE float larger(float a, float b) { return ::fmaxf(a, b); }
#endif
// The sum is rescaled where a larger element comes. NaN is in the sum and never the largest.
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
  // The first `present` elements of a vector, one at least.
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

// The value at `p`, past this multiprocessor's cache, which does not see what others write.
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

// The accumulators of the lanes of a vector, each member in an array of its own: a CPU's SIMD
// registers take it as it is.
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

// The accumulator of a lane, however those of a vector are kept.
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
