// portable.h for HIP: gfx942 and gfx950, wave 64. Compiler builtins and inline assembly only, so that hipRTC, hipcc and
// a bare clang (-x hip -nogpuinc -nogpulib) all take it.
//
// Reading the instructions: sc0 sc1 is system scope, sc1 device scope; buffer_wbl2 writes dirty L2 lines back,
// buffer_inv invalidates; nt is non-temporal. Source: the AMDGPU memory model of LLVM, "Memory Model GFX942".
#ifndef CAMPANILE_PORTABLE_HIP_H
#define CAMPANILE_PORTABLE_HIP_H

#if !defined(__gfx942__) && !defined(__gfx950__)
#error "portable/hip.h: the release sequences are written for gfx942 and gfx950; another GPU needs its own"
#endif

#define CAMPANILE_DEVICE static __attribute__((device, always_inline)) inline
#define CAMPANILE_MEMBER __attribute__((device, always_inline)) inline
#define CAMPANILE_SHARED static __attribute__((device, shared))
#define CAMPANILE_UNROLL _Pragma("unroll")
#define CAMPANILE_NO_UNROLL _Pragma("unroll 1")
#define CAMPANILE_DYNAMIC_SHARED(T, name) extern __attribute__((device, shared)) T name[]
// All fields that are used anywhere would be loaded into scalar registers at once, which there are not enough of.
#define CAMPANILE_LARGE_ARGUMENT(T, name, a)    \
  CAMPANILE_SHARED T name;                      \
  if (campanile::thread_index() == 0) name = a; \
  campanile::block_barrier()
#define CAMPANILE_KERNEL(name, max_threads, Arguments, a)                                       \
  extern "C" {                                                                                  \
  __attribute__((device, used)) unsigned name##_argument_bytes = sizeof(Arguments);             \
  }                                                                                             \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, max_threads))) void name(Arguments a)

namespace campanile {

constexpr u32 WAVE = 64;

CAMPANILE_DEVICE u32 thread_index() { return __builtin_amdgcn_workitem_id_x(); }
CAMPANILE_DEVICE u32 block_index() { return __builtin_amdgcn_workgroup_id_x(); }
CAMPANILE_DEVICE u32 block_threads() { return __builtin_amdgcn_workgroup_size_x(); }
CAMPANILE_DEVICE u32 grid_blocks() { return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(); }
CAMPANILE_DEVICE u32 lane() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }

CAMPANILE_DEVICE void block_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
// The lanes of a wave run in step; only the compiler has to be told.
CAMPANILE_DEVICE void wave_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
CAMPANILE_DEVICE u64 wave_ballot(bool predicate) { return __builtin_amdgcn_ballot_w64(predicate); }
CAMPANILE_DEVICE u32 wave_shuffle(u32 value, u32 source) {
  return static_cast<u32>(__builtin_amdgcn_ds_bpermute(static_cast<int>(source << 2), static_cast<int>(value)));
}
CAMPANILE_DEVICE u32 popcount(u64 bits) { return __builtin_popcountll(bits); }
CAMPANILE_DEVICE u32 first_set(u64 bits) { return __builtin_ctzll(bits); }

CAMPANILE_DEVICE void pause() { __builtin_amdgcn_s_sleep(1); }
// The constant clock: 100 MHz on gfx942 and gfx950.
CAMPANILE_DEVICE u64 global_nanoseconds() { return __builtin_amdgcn_s_memrealtime() * 10; }
CAMPANILE_DEVICE u64 clock_cycles() { return __builtin_readcyclecounter(); }

// Each wave waits for its own accesses; see portable.h, "Memory order".
CAMPANILE_DEVICE void drain() { asm volatile("s_waitcnt vmcnt(0)" ::: "memory"); }

// By hand: clang up to 22 and ROCm up to 7.2 leave out the wait after buffer_wbl2 where they believe that no store is
// pending (all waves drained before a barrier, or stores in inline assembly), so that the flag could overtake the
// write-back. llvm/llvm-project#178316.
template <Scope S>
CAMPANILE_DEVICE void fence_release() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  if constexpr (S == Scope::System)
    asm volatile("s_waitcnt vmcnt(0)\n\tbuffer_wbl2 sc0 sc1\n\ts_waitcnt vmcnt(0)" ::: "memory");
  else
    asm volatile("s_waitcnt vmcnt(0)\n\tbuffer_wbl2 sc1\n\ts_waitcnt vmcnt(0)" ::: "memory");
}
template <Scope S>
CAMPANILE_DEVICE void fence_acquire() {
  if constexpr (S == Scope::System)
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "");
  else
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
}
// Window rows bypass the caches that these would write back or invalidate: what is left is the order of issue.
CAMPANILE_DEVICE void fence_release_window() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
}
CAMPANILE_DEVICE void fence_release_part() { fence_release_window(); }
CAMPANILE_DEVICE void fence_acquire_window() {
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
}
CAMPANILE_DEVICE void fence_window() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "workgroup");
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
}

// Words live in global memory: said so, the compiler uses global_ and not flat_ instructions.
template <class T>
using Global = __attribute__((address_space(1))) T;

template <Scope S>
constexpr int scope_of = S == Scope::System ? __HIP_MEMORY_SCOPE_SYSTEM : __HIP_MEMORY_SCOPE_AGENT;

template <Scope S, class T>
CAMPANILE_DEVICE T load_relaxed(const T* p) {
  return __hip_atomic_load((const Global<T>*)p, __ATOMIC_RELAXED, scope_of<S>);
}
template <Scope S, class T>
CAMPANILE_DEVICE T load_acquire(const T* p) {
  T v = load_relaxed<S>(p);
  fence_acquire<S>();
  return v;
}
template <Scope S, class T>
CAMPANILE_DEVICE void store_relaxed(T* p, T v) {
  __hip_atomic_store((Global<T>*)p, v, __ATOMIC_RELAXED, scope_of<S>);
}
template <Scope S, class T>
CAMPANILE_DEVICE void store_release(T* p, T v) {
  fence_release<S>();
  store_relaxed<S>(p, v);
}
template <Scope S, class T>
CAMPANILE_DEVICE T fetch_add_relaxed(T* p, T v) {
  return __hip_atomic_fetch_add((Global<T>*)p, v, __ATOMIC_RELAXED, scope_of<S>);
}
template <Scope S, class T>
CAMPANILE_DEVICE T fetch_add_release(T* p, T v) {
  fence_release<S>();
  return fetch_add_relaxed<S>(p, v);
}
template <Scope S, class T>
CAMPANILE_DEVICE T exchange_relaxed(T* p, T v) {
  return __hip_atomic_exchange((Global<T>*)p, v, __ATOMIC_RELAXED, scope_of<S>);
}
template <Scope S, class T>
CAMPANILE_DEVICE T compare_swap_relaxed(T* p, T expected, T v) {
  __hip_atomic_compare_exchange_strong((Global<T>*)p, &expected, v, __ATOMIC_RELAXED, __ATOMIC_RELAXED, scope_of<S>);
  return expected;
}

CAMPANILE_DEVICE u64 load_acquire_window(const u64* p) {
  u64 v = load_relaxed<Scope::System>(p);
  fence_acquire_window();
  return v;
}

template <class T>
CAMPANILE_DEVICE T load(const T* p) {
  return *(const Global<T>*)p;
}
template <class T>
CAMPANILE_DEVICE void store(T* p, T v) {
  *(Global<T>*)p = v;
}
CAMPANILE_DEVICE void store_window(u32* p, u32 v) {
  asm volatile("global_store_dword %0, %1, off sc0 sc1 nt" ::"v"((Global<u32>*)p), "v"(v) : "memory");
}
CAMPANILE_DEVICE void add_shared(u32* p, u32 v) {
  __hip_atomic_fetch_add((__attribute__((address_space(3))) u32*)p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

typedef u32 Native16 __attribute__((ext_vector_type(4)));

CAMPANILE_DEVICE Vec16 load16(const Vec16* p) {
  return __builtin_bit_cast(Vec16, *(const Global<Native16>*)p);
}
CAMPANILE_DEVICE Vec16 load16_stream(const Vec16* p) {
  return __builtin_bit_cast(Vec16, __builtin_nontemporal_load((const Global<Native16>*)p));
}
CAMPANILE_DEVICE void store16(Vec16* p, Vec16 v) {
  *(Global<Native16>*)p = __builtin_bit_cast(Native16, v);
}
CAMPANILE_DEVICE void store16_stream(Vec16* p, Vec16 v) {
  __builtin_nontemporal_store(__builtin_bit_cast(Native16, v), (Global<Native16>*)p);
}
// The compiler does not count what inline assembly has in flight, so the wait is part of it.
CAMPANILE_DEVICE Vec16 load16_window(const Vec16* p) {
  Native16 v;
  asm volatile("global_load_dwordx4 %0, %1, off sc0 sc1 nt\n\ts_waitcnt vmcnt(0)"
               : "=v"(v)
               : "v"((const Global<Native16>*)p)
               : "memory");
  return __builtin_bit_cast(Vec16, v);
}
// Early clobber: the first results arrive while later addresses are still to be read.
CAMPANILE_DEVICE void load16_window(const Vec16* const (&p)[2], Vec16 (&v)[2]) {
  Native16 r[2];
  asm volatile(
      "global_load_dwordx4 %0, %2, off sc0 sc1 nt\n\t"
      "global_load_dwordx4 %1, %3, off sc0 sc1 nt\n\t"
      "s_waitcnt vmcnt(0)"
      : "=&v"(r[0]), "=&v"(r[1])
      : "v"((const Global<Native16>*)p[0]), "v"((const Global<Native16>*)p[1])
      : "memory");
  for (int i = 0; i < 2; i++) v[i] = __builtin_bit_cast(Vec16, r[i]);
}
CAMPANILE_DEVICE void load16_window(const Vec16* const (&p)[4], Vec16 (&v)[4]) {
  Native16 r[4];
  asm volatile(
      "global_load_dwordx4 %0, %4, off sc0 sc1 nt\n\t"
      "global_load_dwordx4 %1, %5, off sc0 sc1 nt\n\t"
      "global_load_dwordx4 %2, %6, off sc0 sc1 nt\n\t"
      "global_load_dwordx4 %3, %7, off sc0 sc1 nt\n\t"
      "s_waitcnt vmcnt(0)"
      : "=&v"(r[0]), "=&v"(r[1]), "=&v"(r[2]), "=&v"(r[3])
      : "v"((const Global<Native16>*)p[0]), "v"((const Global<Native16>*)p[1]),
        "v"((const Global<Native16>*)p[2]), "v"((const Global<Native16>*)p[3])
      : "memory");
  for (int i = 0; i < 4; i++) v[i] = __builtin_bit_cast(Vec16, r[i]);
}
CAMPANILE_DEVICE void load16_window(const Vec16* const (&p)[8], Vec16 (&v)[8]) {
  Native16 r[8];
  asm volatile(
      "global_load_dwordx4 %0, %8, off sc0 sc1 nt\n\t"
      "global_load_dwordx4 %1, %9, off sc0 sc1 nt\n\t"
      "global_load_dwordx4 %2, %10, off sc0 sc1 nt\n\t"
      "global_load_dwordx4 %3, %11, off sc0 sc1 nt\n\t"
      "global_load_dwordx4 %4, %12, off sc0 sc1 nt\n\t"
      "global_load_dwordx4 %5, %13, off sc0 sc1 nt\n\t"
      "global_load_dwordx4 %6, %14, off sc0 sc1 nt\n\t"
      "global_load_dwordx4 %7, %15, off sc0 sc1 nt\n\t"
      "s_waitcnt vmcnt(0)"
      : "=&v"(r[0]), "=&v"(r[1]), "=&v"(r[2]), "=&v"(r[3]), "=&v"(r[4]), "=&v"(r[5]), "=&v"(r[6]), "=&v"(r[7])
      : "v"((const Global<Native16>*)p[0]), "v"((const Global<Native16>*)p[1]),
        "v"((const Global<Native16>*)p[2]), "v"((const Global<Native16>*)p[3]),
        "v"((const Global<Native16>*)p[4]), "v"((const Global<Native16>*)p[5]),
        "v"((const Global<Native16>*)p[6]), "v"((const Global<Native16>*)p[7])
      : "memory");
  for (int i = 0; i < 8; i++) v[i] = __builtin_bit_cast(Vec16, r[i]);
}
CAMPANILE_DEVICE void store16_window(Vec16* p, Vec16 v) {
  asm volatile("global_store_dwordx4 %0, %1, off sc0 sc1 nt" ::"v"((Global<Native16>*)p),
               "v"(__builtin_bit_cast(Native16, v))
               : "memory");
}

}  // namespace campanile

#endif
