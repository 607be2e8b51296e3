// Operations of a whole grid: a barrier over its blocks, and finding the block that finishes last.
//
// Counters are monotone and never reset, so that a launch that gave up leaves nothing behind that the next would
// misread: a launch latches the base, the value of the counter when no block of it had arrived, as an argument or from
// its epoch. All blocks of a grid that meets must be co-resident, which the host checks (Residency::Together).
#ifndef CAMPANILE_GRID_H
#define CAMPANILE_GRID_H

#include "wait.h"

namespace campanile {

// Counts a block that has finished; true in the block that was the last of `grid_blocks()` since `base`, for all its
// threads, with everything that the others stored before visible to it. All threads of all blocks call it.
CAMPANILE_DEVICE bool last_block(u64* counter, u64 base) {
  CAMPANILE_SHARED u32 last;
  drain();
  block_barrier();
  if (thread_index() == 0) {
    fence_release<Scope::Device>();
    last = fetch_add_relaxed<Scope::Device>(counter, u64{1}) - base == grid_blocks() - 1;
    fence_acquire<Scope::Device>();
  }
  block_barrier();
  return last != 0;
}

// Meets all blocks. `round` counts the barriers since `base`, from 0. Stores before it are visible after it, on this
// device. The outcome is the same for all threads of a block, and may differ between blocks.
CAMPANILE_DEVICE Outcome grid_barrier(u64* counter, u64 base, u64 round, const Patience& patience) {
  CAMPANILE_SHARED Outcome outcome;
  drain();
  block_barrier();
  if (thread_index() == 0) {
    fence_release<Scope::Device>();
    fetch_add_relaxed<Scope::Device>(counter, u64{1});
    u64 seen;
    outcome = wait_until(counter, base + (round + 1) * grid_blocks(), patience, seen);
    fence_acquire<Scope::Device>();
  }
  block_barrier();
  return outcome;
}

}  // namespace campanile

#endif
