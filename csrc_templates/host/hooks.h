// Annotations of fibers for sanitizers; empty in an ordinary build.
//
// AddressSanitizer has to know the bounds of the stack in use. ThreadSanitizer treats each fiber as
// a separate thread and is told which collectives order them, so that accesses left unordered (by a
// missing barrier, fence or atomic) are reported with both source lines.
#pragma once
#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef TF_TSAN
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace tf {

// Sanitizer state of one stack, of a fiber or of an OS thread.
struct StackHooks {
  const void* bottom = nullptr;
  size_t bytes = 0;
  void* fake_stack = nullptr;
  void* tsan = nullptr;

  void create_fiber(const void* stack, size_t stack_bytes) {
    bottom = stack;
    bytes = stack_bytes;
#ifdef TF_TSAN
    tsan = __tsan_create_fiber(0);
#endif
  }

  void destroy_fiber() {
#ifdef TF_TSAN
    if (tsan) __tsan_destroy_fiber(tsan);
#endif
  }

  void adopt_os_thread() {
#ifdef TF_TSAN
    tsan = __tsan_get_current_fiber();
#endif
  }

  // Around a switch: from.leave(to) before it, from.arrive() when `from` runs again.
  void leave(StackHooks& to) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake_stack, to.bottom, to.bytes);
#endif
#ifdef TF_TSAN
    __tsan_switch_to_fiber(to.tsan, 1 /* without synchronisation */);
#endif
    (void)to;
  }
  void arrive() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }
  // Must be called first on a new fiber; records the bounds of the OS thread's stack.
  static void arrive_first(StackHooks& os_thread) {
#if defined(__SANITIZE_ADDRESS__)
    const void* from;
    size_t from_bytes;
    __sanitizer_finish_switch_fiber(nullptr, &from, &from_bytes);
    if (!os_thread.bottom) {
      os_thread.bottom = from;
      os_thread.bytes = from_bytes;
    }
#endif
    (void)os_thread;
  }
};

// Everything before a release(object) happens before everything after an acquire of it.
inline void release(void* object) {
#ifdef TF_TSAN
  __tsan_release(object);
#endif
  (void)object;
}
inline void acquire(void* object) {
#ifdef TF_TSAN
  __tsan_acquire(object);
#endif
  (void)object;
}

// Reusable synchronisation point: accesses of each thread before a meeting happen before those of
// all threads after it. It alternates between two objects, so that the early arrival of a fast
// thread at the next meeting does not order it before the slow ones' departure from this one.
struct Meeting {
  unsigned count = 0;
  char object[2];

  char* arrive() {
    char* mine = &object[count & 1];
    release(mine);
    return mine;
  }
  void complete() { ++count; }
  static void depart(char* mine) { acquire(mine); }
};

inline void poison(void* memory, size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(memory, bytes);
#endif
  (void)memory, (void)bytes;
}
inline void unpoison(void* memory, size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(memory, bytes);
#endif
  (void)memory, (void)bytes;
}

}  // namespace tf
