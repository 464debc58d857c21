// CUDA's atomics and fences: atomics are relaxed, and only fences order memory.
#pragma once

#ifdef TF_TSAN
static inline void __threadfence() { tf_tsan_fence(); }
#else
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
#endif

template <class T>
static inline T tf_fetch_add_integer(T* p, T v) {
  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

// Fetch-and-update through compare-and-swap on the unsigned word that overlays *p.
template <class Word, class T, class Update>
static inline T tf_fetch_update(T* p, Update update) {
  Word* word = reinterpret_cast<Word*>(p);
  Word seen = __atomic_load_n(word, __ATOMIC_RELAXED), next;
  T old;
  do {
    __builtin_memcpy(&old, &seen, sizeof old);
    const T value = update(old);
    __builtin_memcpy(&next, &value, sizeof next);
  } while (!__atomic_compare_exchange_n(word, &seen, next, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
  return old;
}

static inline int atomicAdd(int* p, int v) { return tf_fetch_add_integer(p, v); }
static inline unsigned atomicAdd(unsigned* p, unsigned v) { return tf_fetch_add_integer(p, v); }
static inline unsigned long long atomicAdd(unsigned long long* p, unsigned long long v) {
  return tf_fetch_add_integer(p, v);
}
static inline float atomicAdd(float* p, float v) {
  return tf_fetch_update<unsigned>(p, [v](float old) { return old + v; });
}
static inline double atomicAdd(double* p, double v) {
  return tf_fetch_update<unsigned long long>(p, [v](double old) { return old + v; });
}
// Counts modulo limit + 1: 0, 1, ..., limit, 0, 1, ...
static inline unsigned atomicInc(unsigned* p, unsigned limit) {
  return tf_fetch_update<unsigned>(p, [limit](unsigned old) { return old >= limit ? 0 : old + 1; });
}
