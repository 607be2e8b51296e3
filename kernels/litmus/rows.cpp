// Rows from many blocks, then one word. Pushed, where they lie in the reader's memory; pulled, where in the writer's.
#include "litmus/litmus.h"

using namespace campanile;

CAMPANILE_KERNEL(litmus_write, 256, LitmusArguments, a) {
  for (u64 round = a.first; round != a.first + a.rounds; round++) {
    if (!await_round(a, a.ack, round - 1, true)) return;
    for (u64 i = grid_thread_index(); i < a.count; i += grid_threads()) {
      if (a.left_out == LeftOut::WriteThrough)
        store16(a.rows + i, row_of(round, i));
      else
        store16_window(a.rows + i, row_of(round, i));
    }
    finish_round(a, a.signal, round, a.left_out != LeftOut::Barrier, a.left_out != LeftOut::Release);
  }
}

CAMPANILE_KERNEL(litmus_read, 256, LitmusArguments, a) {
  u64 wrong = 0;
  for (u64 round = a.first; round != a.first + a.rounds; round++) {
    if (!await_round(a, a.signal, round, a.left_out != LeftOut::Acquire)) break;
    // Rows of one block are read by many, each round by others.
    for (u64 k = grid_thread_index(); k < a.count; k += grid_threads()) {
      const u64 i = (k + round * 67) % a.count;
      const Vec16 v = a.left_out == LeftOut::Bypass ? load16(a.rows + i) : load16_window(a.rows + i);
      const Vec16 w = row_of(round, i);
      wrong += v.x != w.x || v.y != w.y || v.z != w.z || v.w != w.w;
    }
    finish_round(a, a.ack, round, true, true);
  }
  if (wrong != 0) fetch_add_relaxed<Scope::Device>(a.wrong, wrong);
}
