/* A barrier over shared memory: each rank has a cache line of its own and all read all lines. It is never reset: the
 * epoch only grows. Release and acquire also order what was written before it. */
#pragma once
#include "wait.h"
#include <stdatomic.h>
#include <stdint.h>

/* A word alone in its line. 128 bytes, because x86 prefetches lines in pairs. */
struct line {
  _Alignas(128) _Atomic uint64_t value;
};

static inline void flag_barrier(struct line *lines, int rank, int ranks, uint64_t epoch) {
  atomic_store_explicit(&lines[rank].value, epoch, memory_order_release);
  for (int peer = 0; peer < ranks; peer++)
    WAIT_UNTIL(atomic_load_explicit(&lines[peer].value, memory_order_acquire) >= epoch);
}
