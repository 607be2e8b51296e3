// portable.h for CUDA: sm_90, compiled by NVRTC. Inline PTX only, so no include directory is needed.
#ifndef CAMPANILE_PORTABLE_CUDA_H
#define CAMPANILE_PORTABLE_CUDA_H

#define CAMPANILE_DEVICE static __device__ __forceinline__
#define CAMPANILE_MEMBER __device__ __forceinline__
#define CAMPANILE_SHARED __shared__
#define CAMPANILE_UNROLL _Pragma("unroll")
#define CAMPANILE_NO_UNROLL _Pragma("unroll 1")
#define CAMPANILE_DYNAMIC_SHARED(T, name) extern __shared__ T name[]
#define CAMPANILE_LARGE_ARGUMENT(T, name, a) const T& name = a
#define CAMPANILE_KERNEL(name, max_threads, Arguments, a) \
  extern "C" __global__ void __launch_bounds__(max_threads) name(const __grid_constant__ Arguments a)

namespace campanile {

constexpr u32 WAVE = 32;

CAMPANILE_DEVICE u32 thread_index() { return threadIdx.x; }
CAMPANILE_DEVICE u32 block_index() { return blockIdx.x; }
CAMPANILE_DEVICE u32 block_threads() { return blockDim.x; }
CAMPANILE_DEVICE u32 grid_blocks() { return gridDim.x; }
CAMPANILE_DEVICE u32 lane() {
  u32 index;
  asm("mov.u32 %0, %%laneid;" : "=r"(index));
  return index;
}

CAMPANILE_DEVICE void block_barrier() { __syncthreads(); }
CAMPANILE_DEVICE void wave_barrier() { __syncwarp(); }
CAMPANILE_DEVICE u64 wave_ballot(bool predicate) { return __ballot_sync(0xffffffffu, predicate); }
CAMPANILE_DEVICE u32 wave_shuffle(u32 value, u32 source) { return __shfl_sync(0xffffffffu, value, source); }
CAMPANILE_DEVICE u32 popcount(u64 bits) { return __popcll(bits); }
CAMPANILE_DEVICE u32 first_set(u64 bits) { return __ffsll(bits) - 1; }

CAMPANILE_DEVICE void pause() { __nanosleep(20); }
CAMPANILE_DEVICE u64 global_nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
CAMPANILE_DEVICE u64 clock_cycles() { return clock64(); }

// The addresses are global: the generic forms cost a check, and shared memory has no business here.
#define CAMPANILE_PTX(T, bits, reg)                                                                               \
  template <Scope S>                                                                                              \
  CAMPANILE_DEVICE T load_relaxed(const T* p) {                                                                   \
    T v;                                                                                                          \
    if constexpr (S == Scope::System)                                                                             \
      asm volatile("ld.relaxed.sys.global.u" bits " %0, [%1];" : "=" reg(v) : "l"(p) : "memory");                 \
    else                                                                                                          \
      asm volatile("ld.relaxed.gpu.global.u" bits " %0, [%1];" : "=" reg(v) : "l"(p) : "memory");                 \
    return v;                                                                                                     \
  }                                                                                                               \
  template <Scope S>                                                                                              \
  CAMPANILE_DEVICE T load_acquire(const T* p) {                                                                   \
    T v;                                                                                                          \
    if constexpr (S == Scope::System)                                                                             \
      asm volatile("ld.acquire.sys.global.u" bits " %0, [%1];" : "=" reg(v) : "l"(p) : "memory");                 \
    else                                                                                                          \
      asm volatile("ld.acquire.gpu.global.u" bits " %0, [%1];" : "=" reg(v) : "l"(p) : "memory");                 \
    return v;                                                                                                     \
  }                                                                                                               \
  template <Scope S>                                                                                              \
  CAMPANILE_DEVICE void store_relaxed(T* p, T v) {                                                                \
    if constexpr (S == Scope::System)                                                                             \
      asm volatile("st.relaxed.sys.global.u" bits " [%0], %1;" ::"l"(p), reg(v) : "memory");                      \
    else                                                                                                          \
      asm volatile("st.relaxed.gpu.global.u" bits " [%0], %1;" ::"l"(p), reg(v) : "memory");                      \
  }                                                                                                               \
  template <Scope S>                                                                                              \
  CAMPANILE_DEVICE void store_release(T* p, T v) {                                                                \
    if constexpr (S == Scope::System)                                                                             \
      asm volatile("st.release.sys.global.u" bits " [%0], %1;" ::"l"(p), reg(v) : "memory");                      \
    else                                                                                                          \
      asm volatile("st.release.gpu.global.u" bits " [%0], %1;" ::"l"(p), reg(v) : "memory");                      \
  }                                                                                                               \
  template <Scope S>                                                                                              \
  CAMPANILE_DEVICE T fetch_add_relaxed(T* p, T v) {                                                               \
    T old;                                                                                                        \
    if constexpr (S == Scope::System)                                                                             \
      asm volatile("atom.relaxed.sys.global.add.u" bits " %0, [%1], %2;" : "=" reg(old) : "l"(p), reg(v) : "memory"); \
    else                                                                                                          \
      asm volatile("atom.relaxed.gpu.global.add.u" bits " %0, [%1], %2;" : "=" reg(old) : "l"(p), reg(v) : "memory"); \
    return old;                                                                                                   \
  }                                                                                                               \
  template <Scope S>                                                                                              \
  CAMPANILE_DEVICE T fetch_add_release(T* p, T v) {                                                               \
    T old;                                                                                                        \
    if constexpr (S == Scope::System)                                                                             \
      asm volatile("atom.release.sys.global.add.u" bits " %0, [%1], %2;" : "=" reg(old) : "l"(p), reg(v) : "memory"); \
    else                                                                                                          \
      asm volatile("atom.release.gpu.global.add.u" bits " %0, [%1], %2;" : "=" reg(old) : "l"(p), reg(v) : "memory"); \
    return old;                                                                                                   \
  }                                                                                                               \
  template <Scope S>                                                                                              \
  CAMPANILE_DEVICE T exchange_relaxed(T* p, T v) {                                                                \
    T old;                                                                                                        \
    if constexpr (S == Scope::System)                                                                             \
      asm volatile("atom.relaxed.sys.global.exch.b" bits " %0, [%1], %2;" : "=" reg(old) : "l"(p), reg(v) : "memory"); \
    else                                                                                                          \
      asm volatile("atom.relaxed.gpu.global.exch.b" bits " %0, [%1], %2;" : "=" reg(old) : "l"(p), reg(v) : "memory"); \
    return old;                                                                                                   \
  }                                                                                                               \
  template <Scope S>                                                                                              \
  CAMPANILE_DEVICE T compare_swap_relaxed(T* p, T expected, T v) {                                                \
    T old;                                                                                                        \
    if constexpr (S == Scope::System)                                                                             \
      asm volatile("atom.relaxed.sys.global.cas.b" bits " %0, [%1], %2, %3;"                                      \
                   : "=" reg(old) : "l"(p), reg(expected), reg(v) : "memory");                                    \
    else                                                                                                          \
      asm volatile("atom.relaxed.gpu.global.cas.b" bits " %0, [%1], %2, %3;"                                      \
                   : "=" reg(old) : "l"(p), reg(expected), reg(v) : "memory");                                    \
    return old;                                                                                                   \
  }

CAMPANILE_PTX(u32, "32", "r")
CAMPANILE_PTX(u64, "64", "l")
#undef CAMPANILE_PTX

template <Scope S>
CAMPANILE_DEVICE void fence_release() {
  if constexpr (S == Scope::System)
    asm volatile("fence.acq_rel.sys;" ::: "memory");
  else
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
template <Scope S>
CAMPANILE_DEVICE void fence_acquire() {
  fence_release<S>();
}
CAMPANILE_DEVICE void fence_release_window() { fence_release<Scope::System>(); }
// Cumulative: the fence of the block that completes the release covers what is visible on this device.
CAMPANILE_DEVICE void fence_release_part() { fence_release<Scope::Device>(); }
CAMPANILE_DEVICE void fence_acquire_window() { fence_acquire<Scope::System>(); }
CAMPANILE_DEVICE void fence_window() { fence_release<Scope::System>(); }
CAMPANILE_DEVICE u64 load_acquire_window(const u64* p) { return load_acquire<Scope::System>(p); }
// A barrier orders the block's stores, and fences are cumulative: nothing to wait for.
CAMPANILE_DEVICE void drain() {}

template <class T>
CAMPANILE_DEVICE T load(const T* p) {
  return *p;
}
template <class T>
CAMPANILE_DEVICE void store(T* p, T v) {
  *p = v;
}
CAMPANILE_DEVICE void store_window(u32* p, u32 v) { asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
CAMPANILE_DEVICE void add_shared(u32* p, u32 v) { atomicAdd(p, v); }

// One instruction; a NaN comes out as 0x7fff, which is put right.
#define CAMPANILE_NARROW_BF16
CAMPANILE_DEVICE u32 narrow_bf16(float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  if (low != low) pair = (pair & 0xffff0000u) | 0x7fc0u;
  if (high != high) pair = (pair & 0xffffu) | 0x7fc00000u;
  return pair;
}

#define CAMPANILE_LOAD16(name, op)                                      \
  CAMPANILE_DEVICE Vec16 name(const Vec16* p) {                         \
    Vec16 v;                                                            \
    asm volatile(op ".v4.u32 {%0, %1, %2, %3}, [%4];"                   \
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)           \
                 : "l"(p)                                               \
                 : "memory");                                           \
    return v;                                                           \
  }
#define CAMPANILE_STORE16(name, op)                                     \
  CAMPANILE_DEVICE void name(Vec16* p, Vec16 v) {                       \
    asm volatile(op ".v4.u32 [%0], {%1, %2, %3, %4};"                   \
                 ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)       \
                 : "memory");                                           \
  }
CAMPANILE_LOAD16(load16, "ld.global")
CAMPANILE_LOAD16(load16_stream, "ld.global.L1::no_allocate")
CAMPANILE_LOAD16(load16_window, "ld.global.L1::no_allocate")
CAMPANILE_STORE16(store16, "st.global")
CAMPANILE_STORE16(store16_stream, "st.global.cs")
CAMPANILE_STORE16(store16_window, "st.global.L1::no_allocate")
#undef CAMPANILE_LOAD16
#undef CAMPANILE_STORE16
// Independent loads overlap by themselves.
template <int N>
CAMPANILE_DEVICE void load16_window(const Vec16* const (&p)[N], Vec16 (&v)[N]) {
  static_assert(N == 2 || N == 4 || N == 8, "as many as portable/hip.h has");
  CAMPANILE_UNROLL
  for (int i = 0; i < N; i++) v[i] = load16_window(p[i]);
}

}  // namespace campanile

#endif
