// Results that a kernel leaves by plain stores, as a caller's GEMM does; a later kernel of the stream raises the word, and
// the reader of rows.cpp pulls them.
#include "litmus/litmus.h"

using namespace campanile;

// One round.
CAMPANILE_KERNEL(litmus_leave, 256, LitmusArguments, a) {
  if (!await_round(a, a.ack, a.first - 1, true)) return;
  for (u64 i = grid_thread_index(); i < a.count; i += grid_threads()) store16(a.rows + i, row_of(a.first, i));
  if (a.left_out == LeftOut::KernelEnd) return;
  // Blocks run on every die: each writes its own L2 back.
  drain();
  block_barrier();
  if (thread_index() == 0) fence_release<Scope::System>();
}

// One thread.
CAMPANILE_KERNEL(litmus_raise, 64, LitmusArguments, a) {
  if (thread_index() != 0 || load_relaxed<Scope::System>(a.outcome) != 0) return;
  fence_release_window();
  store_relaxed<Scope::System>(a.signal, a.first);
}
