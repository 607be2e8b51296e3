// The smallest kernels that touch everything of portable.h: each is run on every target before anything larger is.
#include "grid.h"
#include "portable.h"
#include "wait.h"

using namespace campanile;

// Copies `count` times 16 bytes.
struct CopyArguments {
  const Vec16* source;
  Vec16* target;
  u64 count;
};

CAMPANILE_KERNEL(smoke_copy, 1024, CopyArguments, a) {
  for (u64 i = grid_thread_index(); i < a.count; i += grid_threads())
    store16_stream(a.target + i, load16_stream(a.source + i));
}

// Puts `count` times 16 bytes into a peer's window and raises the peer's signal to `value`: visible, the rows are too.
struct PutSignalArguments {
  const Vec16* source;
  Vec16* target;
  u64 count;
  u64* finished;  // grid counter, in own memory
  u64 base;       // its value before this launch
  u64* signal;    // in the peer's window
  u64 value;
};

CAMPANILE_KERNEL(smoke_put_signal, 1024, PutSignalArguments, a) {
  for (u64 i = grid_thread_index(); i < a.count; i += grid_threads())
    store16_window(a.target + i, load16_stream(a.source + i));
  // Each wave has drained its rows; the counter tells the last block that those of all blocks have landed.
  drain();
  block_barrier();
  if (thread_index() == 0) {
#if !defined(CAMPANILE_BUG_NO_RELEASE)
    fence_release_window();
#endif
    u64 before = fetch_add_relaxed<Scope::Device>(a.finished, u64{1});
    if (before - a.base == grid_blocks() - 1) {
      fence_acquire_window();
      fence_release_window();
      store_relaxed<Scope::System>(a.signal, a.value);
    }
  }
}

// Waits for a signal, then copies the rows that it announced out of the window.
struct WaitArguments {
  const u64* signal;
  u64 value;
  Patience patience;
  const Vec16* window;
  Vec16* target;
  u64 count;
  u32* outcome;  // one a block
};

CAMPANILE_KERNEL(smoke_wait, 1024, WaitArguments, a) {
  CAMPANILE_SHARED Outcome outcome;
  if (thread_index() == 0) {
    u64 seen;
    outcome = wait_until(a.signal, a.value, a.patience, seen);
    fence_acquire_window();
    store_relaxed<Scope::System>(a.outcome + block_index(), static_cast<u32>(outcome));
  }
  block_barrier();
  if (outcome != Outcome::Done) return;
  for (u64 i = grid_thread_index(); i < a.count; i += grid_threads())
    store16(a.target + i, load16_window(a.window + i));
}

// `rounds` times: each block writes its cell, all meet, each block reads all cells; counts what it finds wrong.
struct BarrierArguments {
  u64* counter;
  u64 base;
  Patience patience;
  u32* cells;   // one a block
  u32* errors;  // one a block, added to
  u32 rounds;
  u32* outcome;  // one a block
};

CAMPANILE_KERNEL(smoke_barrier, 1024, BarrierArguments, a) {
  Outcome outcome = Outcome::Done;
  u64 meeting = 0;
  for (u32 round = 1; round <= a.rounds; round++) {
    if (thread_index() == 0) a.cells[block_index()] = round;
    outcome = grid_barrier(a.counter, a.base, meeting++, a.patience);
    if (outcome != Outcome::Done) break;
    bool wrong = false;
    for (u32 i = thread_index(); i < grid_blocks(); i += block_threads()) wrong |= a.cells[i] != round;
    u64 wrong_lanes = wave_ballot(wrong);
    if (lane() == 0 && wrong_lanes != 0)
      fetch_add_relaxed<Scope::Device>(a.errors + block_index(), popcount(wrong_lanes));
    // Nobody writes the next round before all have read this one.
    outcome = grid_barrier(a.counter, a.base, meeting++, a.patience);
    if (outcome != Outcome::Done) break;
  }
  if (thread_index() == 0) store_relaxed<Scope::System>(a.outcome + block_index(), static_cast<u32>(outcome));
}

// Every operation on words, at both scopes and widths. Of each array: [0] and [1] are added to, [2] counts by
// compare-and-swap, [3] goes from hand to hand, [4] adds up what was taken from it, [5] counts what is wrong; from [8] on
// each thread has its own.
struct WordsArguments {
  u32* device32;
  u64* device64;
  u32* system32;
  u64* system64;
};

template <Scope S, class T>
CAMPANILE_DEVICE void try_words(T* words) {
  T me = static_cast<T>(grid_thread_index() + 1);
  fetch_add_relaxed<S>(words, T{1});
  fetch_add_release<S>(words + 1, T{2});
  T seen = load_relaxed<S>(words + 2);
  while (true) {
    T found = compare_swap_relaxed<S>(words + 2, seen, static_cast<T>(seen + 1));
    if (found == seen) break;
    seen = found;
    pause();
  }
  fetch_add_relaxed<S>(words + 4, exchange_relaxed<S>(words + 3, me));
  T* mine = words + 7 + me;
  store_release<S>(mine, me);
  if (load_acquire<S>(mine) != me) fetch_add_relaxed<S>(words + 5, T{1});
  fence_release<S>();
  store_relaxed<S>(mine, static_cast<T>(me + 1));
  fence_acquire<S>();
}

CAMPANILE_KERNEL(smoke_words, 512, WordsArguments, a) {
  try_words<Scope::Device>(a.device32);
  try_words<Scope::Device>(a.device64);
  try_words<Scope::System>(a.system32);
  try_words<Scope::System>(a.system64);
}

// Sums 8 rows of windows, 32-bit words wrapping: a pull from 8 peers, with 8, 4 and 2 loads at once.
struct PullArguments {
  const Vec16* windows[8];
  Vec16* target;
  u64 count;
};

CAMPANILE_DEVICE Vec16 add(Vec16 a, Vec16 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

template <int N>
CAMPANILE_DEVICE Vec16 pull(const Vec16* const* windows, u64 row) {
  const Vec16* p[N];
  Vec16 v[N], sum = {0, 0, 0, 0};
  CAMPANILE_UNROLL
  for (int i = 0; i < N; i++) p[i] = windows[i] + row;
  load16_window(p, v);
  CAMPANILE_UNROLL
  for (int i = 0; i < N; i++) sum = add(sum, v[i]);
  return sum;
}

CAMPANILE_KERNEL(smoke_pull, 512, PullArguments, a) {
  for (u64 i = grid_thread_index(); i < a.count; i += grid_threads()) {
    Vec16 all = pull<8>(a.windows, i);
    Vec16 parts = add(pull<4>(a.windows, i), add(pull<2>(a.windows + 4, i), pull<2>(a.windows + 6, i)));
    bool same = all.x == parts.x && all.y == parts.y && all.z == parts.z && all.w == parts.w;
    store16(a.target + i, same ? all : Vec16{~0u, ~0u, ~0u, ~0u});
  }
}

// What lanes, votes and shuffles say, as 4 words a thread.
struct LanesArguments {
  u32* words;
};

CAMPANILE_KERNEL(smoke_lanes, 1024, LanesArguments, a) {
  CAMPANILE_DYNAMIC_SHARED(u32, turned);
  u32 t = thread_index();
  turned[block_threads() - 1 - t] = t;
#if !defined(CAMPANILE_BUG_NO_BARRIER)
  block_barrier();
#endif
  u64 odd = wave_ballot(lane() % 2 == 1);
  u32* mine = a.words + grid_thread_index() * 4;
  mine[0] = turned[t];
  mine[1] = popcount(odd) << 8 | first_set(odd);
  mine[2] = wave_shuffle_xor(t, 1u);
  mine[3] = wave_shuffle(static_cast<float>(t), 3u) == static_cast<float>(wave_index() * WAVE + 3) ? WAVE : 0;
}
