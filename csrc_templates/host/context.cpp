#include "context.h"

#include <stdint.h>

namespace tf {

#ifdef TF_UCONTEXT

void Context::prepare(unsigned char* stack, size_t bytes, void (*entry)()) {
  getcontext(&state_);
  state_.uc_stack.ss_sp = stack;
  state_.uc_stack.ss_size = bytes;
  state_.uc_link = nullptr;
  makecontext(&state_, entry, 0);
}

#else

#if defined(__x86_64__)
asm(R"(
  .text
  .p2align 4
  .hidden tf_swap_stacks
  .globl tf_swap_stacks
  .type tf_swap_stacks, @function
tf_swap_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size tf_swap_stacks, .-tf_swap_stacks
)");
enum { kSavedWords = 8, kReturnAddress = 6 };  // 6 registers, the return address, its alignment

#else
asm(R"(
  .text
  .p2align 4
  .hidden tf_swap_stacks
  .globl tf_swap_stacks
  .type tf_swap_stacks, %function
tf_swap_stacks:
  stp x29, x30, [sp, #-160]!
  stp x19, x20, [sp, #16]
  stp x21, x22, [sp, #32]
  stp x23, x24, [sp, #48]
  stp x25, x26, [sp, #64]
  stp x27, x28, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #16]
  ldp x21, x22, [sp, #32]
  ldp x23, x24, [sp, #48]
  ldp x25, x26, [sp, #64]
  ldp x27, x28, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  ldp x29, x30, [sp], #160
  ret
  .size tf_swap_stacks, .-tf_swap_stacks
)");
enum { kSavedWords = 20, kReturnAddress = 1 };
#endif

void Context::prepare(unsigned char* stack, size_t bytes, void (*entry)()) {
  const uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{63};
  void** saved = reinterpret_cast<void**>(top) - kSavedWords;
  for (int i = 0; i < kSavedWords; ++i) saved[i] = nullptr;
  saved[kReturnAddress] = reinterpret_cast<void*>(entry);
  stack_pointer_ = saved;
}

#endif

}  // namespace tf
