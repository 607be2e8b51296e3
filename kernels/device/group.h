// Groups: the threads that do an operation together. All of them call it, converged.
//
//   SCOPE             0 a thread, 1 a wave, 2 a block
//   index(), count()  this thread's number, of how many
//   meet()            all have come, and the stores of each have been issued and drained: thread 0 may now fence for all
//   share(value)      thread 0's, for all
#ifndef CAMPANILE_DEVICE_GROUP_H
#define CAMPANILE_DEVICE_GROUP_H

#include "portable.h"

namespace campanile {

CAMPANILE_DEVICE u32 share_in_block(u32 value) {
  CAMPANILE_SHARED u32 shared;
  if (thread_index() == 0) shared = value;
  block_barrier();
  const u32 result = shared;
  // Before the next one is written.
  block_barrier();
  return result;
}

struct Thread {
  static constexpr u32 SCOPE = 0;
  static CAMPANILE_MEMBER u32 index() { return 0; }
  static CAMPANILE_MEMBER u32 count() { return 1; }
  static CAMPANILE_MEMBER void meet() { drain(); }
  static CAMPANILE_MEMBER u32 share(u32 value) { return value; }
};

struct Wave {
  static constexpr u32 SCOPE = 1;
  static CAMPANILE_MEMBER u32 index() { return lane(); }
  static CAMPANILE_MEMBER u32 count() { return WAVE; }
  static CAMPANILE_MEMBER void meet() {
    drain();
    wave_barrier();
  }
  static CAMPANILE_MEMBER u32 share(u32 value) {
    wave_barrier();
    return wave_shuffle(value, 0);
  }
};

struct Block {
  static constexpr u32 SCOPE = 2;
  static CAMPANILE_MEMBER u32 index() { return thread_index(); }
  static CAMPANILE_MEMBER u32 count() { return block_threads(); }
  static CAMPANILE_MEMBER void meet() {
    drain();
#if !defined(CAMPANILE_BUG_NO_BARRIER)
    block_barrier();
#endif
  }
  static CAMPANILE_MEMBER u32 share(u32 value) { return share_in_block(value); }
};

}  // namespace campanile

#endif
