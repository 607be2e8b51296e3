// Litmus: does memory keep the order that the kernels rely on? A writer and a reader, on one device or two, pass rows back
// and forth; the reader counts rows that are not those of its round. What is left out of the rules is an argument, so
// that the same code shows that the rules hold, and how often it would fail without them.
//
// The questions are those of an AMD machine, where each die of a device has its own L2 (the manual's page on GPUs; LLVM,
// "Memory Model GFX942"): rows written through by blocks on several dies, then one word; a pull of lines that an L2 has
// from the round before; results that another kernel has left dirty in other L2s.
#ifndef CAMPANILE_LITMUS_LITMUS_H
#define CAMPANILE_LITMUS_LITMUS_H

#include "portable.h"
#include "wait.h"

namespace campanile {

enum class LeftOut : u32 {
  Nothing = 0,
  Release = 1,       // of the writer, before the word
  Barrier = 2,       // that each wave drains and the block meets before it
  Acquire = 3,       // of the reader, after the word
  WriteThrough = 4,  // rows by cached stores
  Bypass = 5,        // rows by cached loads
  KernelEnd = 6,     // of a kernel that leaves results by plain stores: a release by each block
};

struct LitmusArguments {
  Vec16* rows;
  u64 count;
  u64* signal;  // raised by the writer, in the reader's memory
  u64* ack;     // raised by the reader, in the writer's memory
  u64* blocks;  // that have finished a round, of this side, in own memory
  u64 base;     // its value before this launch
  u64* wrong;   // rows, of the reader
  u32* outcome;  // of this side
  Patience patience;
  u64 first;  // round
  u32 rounds;
  LeftOut left_out;
};

// What row `i` holds after a round.
CAMPANILE_DEVICE Vec16 row_of(u64 round, u64 i) {
  const u32 r = static_cast<u32>(round), k = static_cast<u32>(i);
  return {r, k, ~r, r * 31 + k};
}

// The whole block waits for a word; thread 0 acquires for it, unless that is left out. False: it ends.
CAMPANILE_DEVICE bool await_round(const LitmusArguments& a, const u64* word, u64 round, bool acquire) {
  CAMPANILE_SHARED Outcome outcome;
  block_barrier();
  if (thread_index() == 0) {
    u64 seen;
    outcome = wait_until(word, round, a.patience, seen);
    if (acquire) fence_acquire_window();
    if (outcome != Outcome::Done) store_relaxed<Scope::System>(a.outcome, static_cast<u32>(outcome));
  }
  block_barrier();
  return outcome == Outcome::Done;
}

// The block has finished `rounds` rounds: the last one raises a word.
CAMPANILE_DEVICE void finish_round(const LitmusArguments& a, u64* word, u64 round, bool meet, bool release) {
  if (meet) {
    drain();
    block_barrier();
  }
  if (thread_index() != 0) return;
  if (release) fence_release_window();
  const u64 before = fetch_add_relaxed<Scope::Device>(a.blocks, u64{1});
  if (before - a.base != (round - a.first + 1) * grid_blocks() - 1) return;
  if (release) fence_window();
  store_relaxed<Scope::System>(word, round);
}

}  // namespace campanile

#endif
