// Contexts: a stack and where to go on. `switch_context(from, to)` leaves one and enters the other.
//
// Sixteen instructions on x86-64, ucontext elsewhere (and with -DCAMPANILE_UCONTEXT), whose swapcontext costs a system
// call for the signal mask.
#ifndef CAMPANILE_EMULATOR_CONTEXT_H
#define CAMPANILE_EMULATOR_CONTEXT_H

#include <cstddef>

#if defined(__x86_64__) && !defined(CAMPANILE_UCONTEXT)

namespace emulator {

struct Context {
  void* stack_pointer = nullptr;
};

// System V: rbx, rbp and r12 to r15 are the callee's to keep; everything else is saved by the caller.
extern "C" void campanile_switch_stack(void** save, void* load);
asm(R"(
.text
.hidden campanile_switch_stack
.globl campanile_switch_stack
.type campanile_switch_stack, @function
campanile_switch_stack:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size campanile_switch_stack, . - campanile_switch_stack
)");

inline void switch_context(Context& from, Context& to) {
  campanile_switch_stack(&from.stack_pointer, to.stack_pointer);
}

// A context that begins in `entry`, which must not return. The stack is 16-byte aligned, `bytes` long.
inline void make_context(Context& context, char* stack, size_t bytes, void (*entry)()) {
  void** top = reinterpret_cast<void**>(stack + bytes);
  *--top = nullptr;  // the return address of `entry`, and its alignment
  *--top = reinterpret_cast<void*>(entry);
  for (int saved = 0; saved < 6; saved++) *--top = nullptr;
  context.stack_pointer = top;
}

}  // namespace emulator

#else

#include <ucontext.h>

namespace emulator {

struct Context {
  ucontext_t state;
};

inline void switch_context(Context& from, Context& to) { swapcontext(&from.state, &to.state); }

inline void make_context(Context& context, char* stack, size_t bytes, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = bytes;
  context.state.uc_link = nullptr;
  ::makecontext(&context.state, entry, 0);
}

}  // namespace emulator

#endif

#endif
