// Tile of shared memory that is written along one dimension and read along the other (transpose).
//
// Row-major with an XOR swizzle: units of 16 bytes are permuted depending on the row, so that
// neither writes of one column of different rows nor reads of consecutive elements have bank
// conflicts.
#pragma once
#include "vector.cuh"

namespace tf {

// out[w][n] = in[n][w]
template <class T, int N, int W>
TF_DEVICE void turn(const T (&in)[N][W], T (&out)[W][N]) {
  TF_FAST_TURN(T, N, W, in, out);
  TF_UNROLL
  for (int w = 0; w < W; ++w) {
    TF_UNROLL
    for (int n = 0; n < N; ++n) out[w][n] = in[n][w];
  }
}

// `Columns` elements per row. A thread writes `Width` rows at once; row group g is swizzled by XOR
// of the unit index with g * `Spread` % `Ways`.
template <class T, int Columns, int Width, int Spread, int Ways>
struct TransposeTile {
  static constexpr int kFull = 16 / (int)sizeof(T);
  static constexpr int kUnit = kFull < Columns ? kFull : Columns;
  T* at;

  static TF_DEVICE int place(int row, int column) {
    const int unit = (row * Columns + column) / kUnit;
    return (unit ^ row / Width * Spread % Ways) * kUnit + column % kUnit;
  }

  // Sets element (row + w, column + n) to in[n][w].
  template <int N>
  TF_DEVICE void store(int row, int column, const T (&in)[N][Width] TF_SITE_PARAM) {
    T turned[Width][N];
    turn(in, turned);
    TF_UNROLL
    for (int w = 0; w < Width; ++w) {
      tf::store<N>(at + place(row + w, column), turned[w] TF_SITE_ARG);
    }
  }

  // Sets out[v] to element (row, column + v).
  template <int V>
  TF_DEVICE void load(int row, int column, T (&out)[V] TF_SITE_PARAM) const {
    constexpr int M = V < kUnit || Ways == 1 ? V : kUnit;
    if constexpr (M == V) return tf::load<V>(at + place(row, column), out TF_SITE_ARG);
    TF_UNROLL
    for (int v = 0; v < V; v += M) {
      T piece[M];
      tf::load<M>(at + place(row, column + v), piece TF_SITE_ARG);
      TF_UNROLL
      for (int m = 0; m < M; ++m) out[v + m] = piece[m];
    }
  }
};

}  // namespace tf
