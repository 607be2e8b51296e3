// portable.h for the CPU: kernels run in the emulator (emulator/runtime.h). -DCAMPANILE_WAVE=32 or 64 sets the wave.
//
// Under ThreadSanitizer the fences are modelled exactly, which the tool does not do for std::atomic_thread_fence: a
// relaxed store carries what the last release fence covered and no more, an acquire fence covers what earlier relaxed
// loads read and no more. See emulator/runtime.cpp.
#ifndef CAMPANILE_PORTABLE_CPU_H
#define CAMPANILE_PORTABLE_CPU_H

#include "emulator/runtime.h"

#ifndef CAMPANILE_WAVE
#define CAMPANILE_WAVE 64
#endif

#define CAMPANILE_DEVICE [[maybe_unused]] static inline
#define CAMPANILE_MEMBER
#define CAMPANILE_SHARED static thread_local /* a block is one OS thread */
#define CAMPANILE_UNROLL
#define CAMPANILE_NO_UNROLL
#define CAMPANILE_DYNAMIC_SHARED(T, name) T* name = static_cast<T*>(emulator_dynamic_shared())
#define CAMPANILE_LARGE_ARGUMENT(T, name, a) const T& name = a
#define CAMPANILE_KERNEL(name, max_threads, Arguments, a)                       \
  static void name##_body(Arguments a);                                         \
  extern "C" {                                                                  \
  extern const unsigned name##_argument_bytes;                                  \
  extern const unsigned name##_max_threads;                                     \
  const unsigned name##_argument_bytes = sizeof(Arguments);                     \
  const unsigned name##_max_threads = max_threads;                              \
  void name(const void* arguments) {                                            \
    name##_body(*static_cast<const Arguments*>(arguments));                     \
  }                                                                             \
  }                                                                             \
  static void name##_body([[maybe_unused]] Arguments a)

namespace campanile {

constexpr u32 WAVE = CAMPANILE_WAVE;
static_assert(WAVE == 32 || WAVE == 64, "a wave is 32 or 64 lanes");

CAMPANILE_DEVICE u32 thread_index() { return emulator_thread_index(); }
CAMPANILE_DEVICE u32 block_index() { return emulator_block_index(); }
CAMPANILE_DEVICE u32 block_threads() { return emulator_block_threads(); }
CAMPANILE_DEVICE u32 grid_blocks() { return emulator_grid_blocks(); }
CAMPANILE_DEVICE u32 lane() { return thread_index() % WAVE; }

CAMPANILE_DEVICE void block_barrier() { emulator_block_barrier(); }
CAMPANILE_DEVICE void wave_barrier() { emulator_wave_barrier(WAVE); }
CAMPANILE_DEVICE u64 wave_ballot(bool predicate) { return emulator_ballot(predicate, WAVE); }
CAMPANILE_DEVICE u32 wave_shuffle(u32 value, u32 source) { return emulator_shuffle(value, source, WAVE); }
CAMPANILE_DEVICE u32 popcount(u64 bits) { return __builtin_popcountll(bits); }
CAMPANILE_DEVICE u32 first_set(u64 bits) { return __builtin_ctzll(bits); }

CAMPANILE_DEVICE void pause() { emulator_pause(); }
CAMPANILE_DEVICE u64 global_nanoseconds() { return emulator_nanoseconds(); }
CAMPANILE_DEVICE u64 clock_cycles() { return emulator_nanoseconds(); }
CAMPANILE_DEVICE void drain() {}

// GPUs fault where CPUs do not.
template <class T>
CAMPANILE_DEVICE T* aligned(T* p) {
  if (reinterpret_cast<u64>(p) % sizeof(T) != 0) emulator_misaligned(p, sizeof(T));
  return p;
}

// What a relaxed access adds under ThreadSanitizer; nothing elsewhere.
#if defined(__SANITIZE_THREAD__)
#define CAMPANILE_BEFORE_STORE(p) emulator_before_relaxed_store(p)
#define CAMPANILE_AFTER_LOAD(p) emulator_after_relaxed_load(p)
#else
#define CAMPANILE_BEFORE_STORE(p) static_cast<void>(p)
#define CAMPANILE_AFTER_LOAD(p) static_cast<void>(p)
#endif

template <Scope S, class T>
CAMPANILE_DEVICE T load_relaxed(const T* p) {
  T v = __atomic_load_n(aligned(p), __ATOMIC_RELAXED);
  CAMPANILE_AFTER_LOAD(p);
  return v;
}
template <Scope S, class T>
CAMPANILE_DEVICE T load_acquire(const T* p) {
  return __atomic_load_n(aligned(p), __ATOMIC_ACQUIRE);
}
template <Scope S, class T>
CAMPANILE_DEVICE void store_relaxed(T* p, T v) {
  CAMPANILE_BEFORE_STORE(p);
  __atomic_store_n(aligned(p), v, __ATOMIC_RELAXED);
}
template <Scope S, class T>
CAMPANILE_DEVICE void store_release(T* p, T v) {
  __atomic_store_n(aligned(p), v, __ATOMIC_RELEASE);
}
template <Scope S, class T>
CAMPANILE_DEVICE T fetch_add_relaxed(T* p, T v) {
  CAMPANILE_BEFORE_STORE(p);
  T old = __atomic_fetch_add(aligned(p), v, __ATOMIC_RELAXED);
  CAMPANILE_AFTER_LOAD(p);
  return old;
}
template <Scope S, class T>
CAMPANILE_DEVICE T fetch_add_release(T* p, T v) {
  T old = __atomic_fetch_add(aligned(p), v, __ATOMIC_RELEASE);
  CAMPANILE_AFTER_LOAD(p);
  return old;
}
template <Scope S, class T>
CAMPANILE_DEVICE T exchange_relaxed(T* p, T v) {
  CAMPANILE_BEFORE_STORE(p);
  T old = __atomic_exchange_n(aligned(p), v, __ATOMIC_RELAXED);
  CAMPANILE_AFTER_LOAD(p);
  return old;
}
template <Scope S, class T>
CAMPANILE_DEVICE T compare_swap_relaxed(T* p, T expected, T v) {
  CAMPANILE_BEFORE_STORE(p);
  __atomic_compare_exchange_n(aligned(p), &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  CAMPANILE_AFTER_LOAD(p);
  return expected;
}
#undef CAMPANILE_BEFORE_STORE
#undef CAMPANILE_AFTER_LOAD

template <Scope S>
CAMPANILE_DEVICE void fence_release() {
  emulator_fence_release();
}
template <Scope S>
CAMPANILE_DEVICE void fence_acquire() {
  emulator_fence_acquire();
}
CAMPANILE_DEVICE void fence_release_window() { emulator_fence_release(); }
CAMPANILE_DEVICE void fence_release_part() { emulator_fence_release(); }
CAMPANILE_DEVICE void fence_acquire_window() { emulator_fence_acquire(); }
CAMPANILE_DEVICE void fence_window() {
  emulator_fence_acquire();
  emulator_fence_release();
}

CAMPANILE_DEVICE u64 load_acquire_window(const u64* p) { return load_acquire<Scope::System>(p); }

template <class T>
CAMPANILE_DEVICE T load(const T* p) {
  return *aligned(p);
}
template <class T>
CAMPANILE_DEVICE void store(T* p, T v) {
  *aligned(p) = v;
}
CAMPANILE_DEVICE void store_window(u32* p, u32 v) { *aligned(p) = v; }
CAMPANILE_DEVICE void add_shared(u32* p, u32 v) { __atomic_fetch_add(aligned(p), v, __ATOMIC_RELAXED); }

CAMPANILE_DEVICE Vec16 load16(const Vec16* p) { return *aligned(p); }
CAMPANILE_DEVICE Vec16 load16_stream(const Vec16* p) { return *aligned(p); }
CAMPANILE_DEVICE Vec16 load16_window(const Vec16* p) { return *aligned(p); }
CAMPANILE_DEVICE void store16(Vec16* p, Vec16 v) { *aligned(p) = v; }
CAMPANILE_DEVICE void store16_stream(Vec16* p, Vec16 v) { *aligned(p) = v; }
CAMPANILE_DEVICE void store16_window(Vec16* p, Vec16 v) { *aligned(p) = v; }
template <int N>
CAMPANILE_DEVICE void load16_window(const Vec16* const (&p)[N], Vec16 (&v)[N]) {
  static_assert(N == 2 || N == 4 || N == 8, "as many as portable/hip.h has");
  for (int i = 0; i < N; i++) v[i] = load16_window(p[i]);
}

}  // namespace campanile

#endif
