// Transpose of square tiles in SIMD registers.
#pragma once

namespace tf {
namespace host {

// Rows of 16 bytes, which every SIMD unit interleaves in one instruction: `low` interleaves the
// first halves of two rows, `high` the second halves.
template <int N>
struct Rows {
  static constexpr bool kExist = false;
};

#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define TF_ROWS(count, lane, low_order, high_order)                                            \
  template <>                                                                                  \
  struct Rows<count> {                                                                         \
    static constexpr bool kExist = true;                                                       \
    typedef lane Row __attribute__((vector_size(16)));                                         \
    static __forceinline__ Row low(Row a, Row b) {                                             \
      return __builtin_shufflevector(a, b, TF_ORDER low_order);                                \
    }                                                                                          \
    static __forceinline__ Row high(Row a, Row b) {                                            \
      return __builtin_shufflevector(a, b, TF_ORDER high_order);                               \
    }                                                                                          \
  };
#define TF_ORDER(...) __VA_ARGS__
TF_ROWS(2, unsigned long long, (0, 2), (1, 3))
TF_ROWS(4, unsigned, (0, 4, 1, 5), (2, 6, 3, 7))
TF_ROWS(8, unsigned short, (0, 8, 1, 9, 2, 10, 3, 11), (4, 12, 5, 13, 6, 14, 7, 15))
TF_ROWS(16, unsigned char, (0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
        (8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31))
#undef TF_ORDER
#undef TF_ROWS
#endif
#endif

template <class T, int N, int W>
constexpr bool kTurns = N == W && W * sizeof(T) == 16 && Rows<N>::kExist;

// Interleaves rows i and i + N/2 into rows 2 i and 2 i + 1; log2(N) such steps transpose the tile.
template <class T, int N>
TF_DEVICE void turn(const T (&in)[N][N], T (&out)[N][N]) {
  typedef typename Rows<N>::Row Row;
  Row from[N], to[N];
  // Row by row, as they were loaded: a load wider than the store before it stalls.
  TF_UNROLL_SHORT
  for (int i = 0; i < N; ++i) __builtin_memcpy(&from[i], in[i], sizeof from[i]);
  TF_UNROLL_SHORT
  for (int step = 1; step < N; step *= 2) {
    TF_UNROLL_SHORT
    for (int i = 0; i < N / 2; ++i) {
      to[2 * i] = Rows<N>::low(from[i], from[i + N / 2]);
      to[2 * i + 1] = Rows<N>::high(from[i], from[i + N / 2]);
    }
    TF_UNROLL_SHORT
    for (int i = 0; i < N; ++i) from[i] = to[i];
  }
  TF_UNROLL_SHORT
  for (int i = 0; i < N; ++i) __builtin_memcpy(out[i], &from[i], sizeof from[i]);
}

}  // namespace host
}  // namespace tf
