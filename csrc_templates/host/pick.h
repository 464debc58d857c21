// tf::pick in SIMD registers: lanes of a short vector are inserted into a long one by shuffles.
#pragma once

namespace tf {
namespace host {

#if defined(__AVX512F__)
constexpr int kRegisterBytes = 64;
#elif defined(__AVX__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif

// Integer type of `Bytes` bytes, as a vector element.
template <int Bytes>
struct Bits {
  static constexpr bool kExist = false;
};
#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define TF_BITS(bytes, type)            \
  template <>                           \
  struct Bits<bytes> {                  \
    static constexpr bool kExist = true; \
    typedef type Type;                  \
  };
TF_BITS(1, unsigned char) TF_BITS(2, unsigned short) TF_BITS(4, unsigned)
TF_BITS(8, unsigned long long)
#undef TF_BITS
#endif
#endif

template <int... Is>
struct Numbers {};
template <int N, int... Is>
struct UpTo : UpTo<N - 1, N - 1, Is...> {};
template <int... Is>
struct UpTo<0, Is...> {
  typedef Numbers<Is...> Type;
};

// Index in the window for each lane; -1, and lanes behind the last index: unchanged.
template <int... Picks>
struct Order {
  static constexpr int count = sizeof...(Picks);
  static constexpr int picks[] = {Picks...};
  static constexpr int at(int lane) { return lane < count ? picks[lane] : -1; }
  static constexpr bool any(int begin, int end) {
    for (int lane = begin; lane < end; ++lane) {
      if (at(lane) >= 0) return true;
    }
    return false;
  }
};

template <class T, int M, int N>
constexpr bool kPicks = Bits<sizeof(T)>::kExist && M > 1 && (M & (M - 1)) == 0 &&
                        (N & (N - 1)) == 0 && N >= M && M * sizeof(T) <= kRegisterBytes;

// SIMD vector of N lanes.
template <class Lane, int N>
using Vector __attribute__((vector_size(N * sizeof(Lane)))) = Lane;

// Extends a vector to `Long` lanes, by doubling: compilers concatenate more than two parts through
// memory.
template <int Long, class Lane, int M, int... Is>
TF_DEVICE auto lengthened(Vector<Lane, M> v, Numbers<Is...>) {
  if constexpr (M >= Long) {
    return v;
  } else {
    const Vector<Lane, 2 * M> twice = __builtin_shufflevector(v, v, Is..., (M + Is)...);
    return lengthened<Long, Lane, 2 * M>(twice, typename UpTo<2 * M>::Type());
  }
}

// tf::pick for the lanes of one register, from lane `From` on.
template <class Order, int From, class T, int M, int N, int... Is>
TF_DEVICE void pick_register(const T (&window)[M], T (&to)[N], Numbers<Is...>) {
  constexpr int count = sizeof...(Is);
  typedef typename Bits<sizeof(T)>::Type Lane;
  Vector<Lane, M> read;
  Vector<Lane, count> lanes;
  __builtin_memcpy(&read, window, sizeof read);
  __builtin_memcpy(&lanes, to + From, sizeof lanes);
  const Vector<Lane, count> picked = lengthened<count, Lane, M>(read, typename UpTo<M>::Type());
  lanes = __builtin_shufflevector(
      lanes, picked, (Order::at(From + Is) < 0 ? Is : count + Order::at(From + Is))...);
  __builtin_memcpy(to + From, &lanes, sizeof lanes);
}

// tf::pick, one register at a time.
template <class Order, int From = 0, class T, int M, int N>
TF_DEVICE void pick(const T (&window)[M], T (&to)[N]) {
  constexpr int most = kRegisterBytes / (int)sizeof(T), count = N < most ? N : most;
  if constexpr (Order::any(From, From + count)) {
    pick_register<Order, From>(window, to, typename UpTo<count>::Type());
  }
  if constexpr (From + count < N) pick<Order, From + count>(window, to);
}

}  // namespace host
}  // namespace tf
