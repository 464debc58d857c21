// Coroutine context: a suspended flow of control with its own stack, and the switch between
// contexts.
//
// The switch saves the callee-saved registers of the calling convention, about a dozen, and costs a
// few nanoseconds. ucontext, the fallback for other processors, makes two system calls.
#pragma once
#include <stddef.h>

#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(TF_UCONTEXT)
#define TF_UCONTEXT
#endif
#ifdef TF_UCONTEXT
#include <ucontext.h>
#endif

#ifndef TF_UCONTEXT
// Pushes the callee-saved registers, stores the stack pointer in *save, sets it to `next` and pops
// the registers from there (context.cpp).
extern "C" void tf_swap_stacks(void** save, void* next);
#endif

namespace tf {

class Context {
 public:
  // The next switch to this context calls `entry`, which must not return, on the given stack.
  void prepare(unsigned char* stack, size_t bytes, void (*entry)());

  // Suspends the running flow into `from` and continues `to`; returns when `from` is continued.
  static void swap(Context& from, Context& to) {
#ifdef TF_UCONTEXT
    swapcontext(&from.state_, &to.state_);
#else
    tf_swap_stacks(&from.stack_pointer_, to.stack_pointer_);
#endif
  }

 private:
#ifdef TF_UCONTEXT
  ucontext_t state_;
#else
  void* stack_pointer_ = nullptr;
#endif
};

}  // namespace tf
