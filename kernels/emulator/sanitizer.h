// What ThreadSanitizer is told: fibers that switch without synchronising, barriers that synchronise, and fences.
//
// Build the kernels with -fsanitize=thread, and runtime.cpp without it but with -DCAMPANILE_TSAN: then every access of
// a kernel is watched, and the runtime's own bookkeeping orders nothing behind the tool's back. Without CAMPANILE_TSAN
// all of this is empty.
//
// Fences. ThreadSanitizer has no model of std::atomic_thread_fence. Here each GPU thread has two helper fibers that
// never run and whose vector clocks stand for its fences:
//   outgoing   what the last release fences covered. A relaxed store releases the clock of `outgoing`, not that of the
//              thread, so that stores made between the fence and the flag stay unordered.
//   incoming   what relaxed loads have read from. An acquire fence acquires its clock.
#ifndef CAMPANILE_EMULATOR_SANITIZER_H
#define CAMPANILE_EMULATOR_SANITIZER_H

#if defined(CAMPANILE_TSAN)

#include <sanitizer/tsan_interface.h>

namespace emulator {

constexpr unsigned NO_SYNC = 1;

inline void release(void* address) { __tsan_release(address); }
inline void acquire(void* address) { __tsan_acquire(address); }

struct Shadow {
  void* fiber = nullptr;
  void* outgoing = nullptr;
  void* incoming = nullptr;
  char fence_out = 0, fence_in = 0;  // addresses that carry a clock

  void attach() { fiber = __tsan_get_current_fiber(); }
  void create() {
    fiber = __tsan_create_fiber(NO_SYNC);
    outgoing = __tsan_create_fiber(NO_SYNC);
    incoming = __tsan_create_fiber(NO_SYNC);
  }
  void destroy() {
    __tsan_destroy_fiber(fiber);
    __tsan_destroy_fiber(outgoing);
    __tsan_destroy_fiber(incoming);
  }
  void enter() { __tsan_switch_to_fiber(fiber, NO_SYNC); }

  void fence_release() {
    __tsan_release(&fence_out);
    __tsan_switch_to_fiber(outgoing, NO_SYNC);
    __tsan_acquire(&fence_out);
    enter();
  }
  void fence_acquire() { __tsan_acquire(&fence_in); }
  void before_relaxed_store(void* address) {
    __tsan_switch_to_fiber(outgoing, NO_SYNC);
    __tsan_release(address);
    enter();
  }
  void after_relaxed_load(void* address) {
    __tsan_switch_to_fiber(incoming, NO_SYNC);
    __tsan_acquire(address);
    __tsan_release(&fence_in);
    enter();
  }
};

}  // namespace emulator

#else

namespace emulator {

inline void release(void*) {}
inline void acquire(void*) {}

struct Shadow {
  void attach() {}
  void create() {}
  void destroy() {}
  void enter() {}
  void fence_release() { __atomic_thread_fence(__ATOMIC_RELEASE); }
  void fence_acquire() { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
  void before_relaxed_store(void*) {}
  void after_relaxed_load(void*) {}
};

}  // namespace emulator

#endif

#endif
