// portable.h: what a kernel may use, the same on every target.
//
// One kernel source is compiled for CUDA (sm_90, by NVRTC), HIP (gfx942 and gfx950, wave 64, by hipRTC or a bare clang)
// and for the CPU (the emulator, wave 32 or 64). No vendor header is included: a machine needs its driver and run-time
// compiler, nothing else. The headers in portable/ implement what is declared here, each for one target; this page is
// the contract.
//
// Kernels
//   CAMPANILE_KERNEL(name, max_threads, Arguments, a) { ... }
//                         defines a kernel of one argument, a plain struct passed by value. `name` is not mangled. The
//                         host checks the size of its own struct against sizeof(Arguments): on HIP and the CPU it reads
//                         `name_argument_bytes`, on CUDA it asks the driver.
//   CAMPANILE_LARGE_ARGUMENT(Arguments, b, a);
//                         first thing in a kernel whose argument has many fields: `b` is `a`, where it is best read.
//                         Pointers out of it need load, store and the like (below).
//   CAMPANILE_DEVICE      in front of every function that a kernel calls.
//   CAMPANILE_MEMBER      the same for a member function.
//   CAMPANILE_SHARED T x; memory of the block, in a kernel or a CAMPANILE_DEVICE function, not in a member function: there
//                         the emulator's could not be unloaded. CAMPANILE_DYNAMIC_SHARED(T, x) is the part sized at launch.
//   CAMPANILE_UNROLL      in front of a loop that must be unrolled, CAMPANILE_NO_UNROLL of one that must not.
//
// Ids: one-dimensional. thread_index() in block_threads(), block_index() in grid_blocks(); lane() in WAVE. Blocks are
// whole waves.
//
// Convergence: block_barrier() is for all threads of a block that have not ended, wave_barrier(), wave_ballot() and
// wave_shuffle() for all lanes of a wave that have not ended. Calling them in divergent code is a bug that the emulator
// reports.
//
// Memory order, in terms of the C++ model with scopes. `Scope::Device` covers the blocks of one device, `Scope::System`
// all devices and the host.
//   load_relaxed<S>, store_relaxed<S>, fetch_add_relaxed<S>, exchange_relaxed<S>, compare_swap_relaxed<S>
//                         u32 and u64, naturally aligned.
//   load_acquire<S>, store_release<S>, fetch_add_release<S>
//   fence_release<S>, fence_acquire<S>
//                         a fence before a relaxed store, after a relaxed load: std::atomic_thread_fence with a scope.
//
//   fence_window()        a release and an acquire in one, of window rows (below) and of words
//   load, store           plain accesses of global memory, of 1 to 8 bytes, through pointers that themselves were loaded:
//                         on AMD the compiler would take those for pointers to anything.
//   add_shared(p, v)      u32 in shared memory, relaxed
//
// A release covers what other threads of the block stored only if each wave has called drain() and the block has met in
// block_barrier() since: on AMD the barrier does not wait for stores in flight.
//
// Rows. 16 bytes at a time, aligned.
//   load16, store16                 cached.
//   load16_stream, store16_stream   data that this device will not touch again soon; cache hints only.
//   load16_window, store16_window   a row of a window: written by one device, read by another. They are ordered by
//                                   fence_release_window() and fence_acquire_window() (or by the stronger fences):
//                                   store16_window ... drain(), block_barrier(), fence_release_window(), store_relaxed
//                                   load_relaxed, fence_acquire_window(), [block_barrier(),] load16_window
//                                   On AMD rows go through to the memory (sc0 sc1), so that no fence writes back or
//                                   invalidates an L2; on NVIDIA they are weak accesses and the fences do the work.
//   fence_release_part()            a block's part of a release that another block of the device completes: the block counts
//                                   itself with a relaxed add behind it, whoever sees the count calls fence_window() and
//                                   stores the word.
//   load_acquire_window(p)          load_relaxed of a u64 and fence_acquire_window() in one, for polls: on NVIDIA it costs
//                                   less than the fence, which takes half a microsecond.
//   A fence_acquire_window() serves the block of the thread that calls it. Window loads never take the read-only path.
//   store_window(p, v)              4 bytes of a window: what goes with a row.
//   load16_window(p, v) with arrays of 2, 4 or 8 has that many loads in flight at once: for pulling from several peers.
//
// Time: global_nanoseconds() is one clock for all threads of a device, of coarse steps (up to 1 µs); clock_cycles() is
// fine and local. pause() belongs in every loop that waits: in the emulator it is what lets the others run.
#ifndef CAMPANILE_PORTABLE_H
#define CAMPANILE_PORTABLE_H

namespace campanile {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

static_assert(sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(void*) == 8, "LP64");

enum class Scope { Device, System };

struct alignas(16) Vec16 {
  u32 x, y, z, w;
};

}  // namespace campanile

#if defined(__CUDACC_RTC__) || defined(__CUDA_ARCH__)
#include "portable/cuda.h"
#elif defined(__AMDGCN__)
#include "portable/hip.h"
#else
#include "portable/cpu.h"
#endif

namespace campanile {

CAMPANILE_DEVICE u32 wave_index() { return thread_index() / WAVE; }
CAMPANILE_DEVICE u32 block_waves() { return (block_threads() + WAVE - 1) / WAVE; }

// Index over the whole grid, and how many there are.
CAMPANILE_DEVICE u64 grid_thread_index() { return static_cast<u64>(block_index()) * block_threads() + thread_index(); }
CAMPANILE_DEVICE u64 grid_threads() { return static_cast<u64>(grid_blocks()) * block_threads(); }

CAMPANILE_DEVICE u64 wave_shuffle(u64 value, u32 source) {
  u64 low = wave_shuffle(static_cast<u32>(value), source);
  u64 high = wave_shuffle(static_cast<u32>(value >> 32), source);
  return high << 32 | low;
}
CAMPANILE_DEVICE float wave_shuffle(float value, u32 source) {
  return __builtin_bit_cast(float, wave_shuffle(__builtin_bit_cast(u32, value), source));
}
template <class T>
CAMPANILE_DEVICE T wave_shuffle_xor(T value, u32 mask) {
  return wave_shuffle(value, lane() ^ mask);
}

}  // namespace campanile

#endif
