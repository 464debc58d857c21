// Non-temporal stores of whole cache lines, which avoid reading the lines first.
#pragma once

namespace tf {
namespace host {

constexpr int kLineBytes = 64;

// Stores one register to an aligned address. Disabled under sanitizers, which do not see such
// stores.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
typedef long long Streamed __attribute__((vector_size(kRegisterBytes)));
constexpr bool kCanStream = true;
static __forceinline__ void write_past(Streamed* p, Streamed v) {
#if defined(__clang__)
  __builtin_nontemporal_store(v, p);
#elif defined(__AVX512F__)
  __builtin_ia32_movntdq512(p, v);
#elif defined(__AVX__)
  __builtin_ia32_movntdq256(p, v);
#else
  __builtin_ia32_movntdq(p, v);
#endif
}
#else
struct Streamed {};
constexpr bool kCanStream = false;
static __forceinline__ void write_past(Streamed*, Streamed) {}
#endif

template <class T, int N>
constexpr bool kStreams = kCanStream && N * sizeof(T) % kLineBytes == 0;

static __forceinline__ bool starts_register(const void* p) {
  return (unsigned long long)p % kRegisterBytes == 0;
}

// p[i] = in[i] for i < N
template <class T, int N>
TF_DEVICE void stream(T* p, const T (&in)[N]) {
  constexpr int lanes = kRegisterBytes / sizeof(T);
  TF_UNROLL_SHORT
  for (int i = 0; i < N; i += lanes) {
    Streamed v;
    __builtin_memcpy(&v, in + i, sizeof v);
    write_past((Streamed*)(p + i), v);
  }
}

}  // namespace host
}  // namespace tf
