// The barrier over ranks: nobody leaves before everybody has entered, and all that was stored before is seen after.
//
// Model. Every rank raises one word at every other and waits for theirs: one step, whose latency is that of a flag. Words
// count barriers; they are never reset, and a rank is at most one ahead of another. The count lives in device memory, so
// that a captured graph can be launched again.
//
// With several blocks the last one to come raises the words, its own rank's too, and each block waits for all of them,
// and so acquires for itself. Blocks must be co-resident (Residency::Together). All have read the epoch before they are
// counted, so the last one may advance it; who has seen its rank's word sees the new epoch.
//
// Where the transport's queues take a post of whole waves only, a wave raises one word after another; of whole blocks there
// is no barrier, and it does not compile.
//
// After a failure nothing is published; the barrier, like the communicator, is over.
#ifndef CAMPANILE_DEVICE_BARRIER_H
#define CAMPANILE_DEVICE_BARRIER_H

#include "device/failure.h"
#include "device/signal.h"
#include "device/team.h"

namespace campanile {

// Of one barrier on one rank, in device memory, zeroed. An epoch that does not begin at 0 begins there in all words.
struct BarrierState {
  u64 epoch;
  u64 arrived, base;  // blocks that have ever come, and how many of them before this barrier
};

struct BarrierView {
  TeamView team;
  BarrierState* state;
  u32 first_slot;  // word of the team's first member; the others follow
  u32 operation;
};

// All threads of all blocks of the grid call it. The outcome is the same for all threads of a block.
CAMPANILE_DEVICE Outcome barrier(const CommunicatorView& c, const BarrierView& b) {
  CAMPANILE_SHARED Outcome shared;
  const bool alone = grid_blocks() == 1;
  BarrierState* state = b.state;
  u64 epoch = 0;
  u32 last = 1, failed = 0;
  // On their way while the block meets.
  if (thread_index() == 0) {
    epoch = load_relaxed<Scope::Device>(&state->epoch) + 1;
    failed = has_failed(c);
  }
  Block::meet();
  if (wave_index() == 0) {
    if (lane() == 0 && failed == 0) {
      if (!alone) {
        const u64 base = load_relaxed<Scope::Device>(&state->base);
        fence_release_window();
        const u64 arrived = fetch_add_relaxed<Scope::Device>(&state->arrived, u64{1}) + 1;
        last = arrived - base == grid_blocks();
        if (last) {
          fence_acquire_window();
          store_relaxed<Scope::Device>(&state->base, arrived);
          store_relaxed<Scope::Device>(&state->epoch, epoch);
        }
      }
    }
    wave_barrier();
    epoch = wave_shuffle(epoch, 0);
    last = wave_shuffle(last, 0);
    failed = wave_shuffle(failed, 0);
    Outcome outcome = failed == 0 ? Outcome::Done : Outcome::Aborted;
    if (failed == 0) {
      if constexpr (QUEUE_SMALLEST_SCOPE == Thread::SCOPE) {
        for (u32 position = lane(); position < b.team.size && last; position += WAVE) {
          if (alone && position == b.team.position) continue;
          signal(c, Thread(), member(b.team, position), b.first_slot + b.team.position, epoch);
        }
      } else {
        for (u32 position = 0; position < b.team.size && last; position++) {
          if (alone && position == b.team.position) continue;
          signal(c, Wave(), member(b.team, position), b.first_slot + b.team.position, epoch);
        }
      }
      // Nobody else reads it, so the release above need not wait for it.
      if (alone && lane() == 0) store_relaxed<Scope::Device>(&state->epoch, epoch);
      for (u32 position = lane(); position < b.team.size && outcome == Outcome::Done; position += WAVE) {
        if (alone && position == b.team.position) continue;
        outcome = await_signal(c, member(b.team, position), b.first_slot + position, epoch, b.operation);
      }
    }
    // The first lane's that is not Done, for the block.
    const u64 bad = wave_ballot(outcome != Outcome::Done);
    if (lane() == (bad == 0 ? 0 : first_set(bad))) shared = outcome;
  }
  block_barrier();
  const Outcome outcome = shared;
  // Before the next barrier writes it.
  block_barrier();
  return outcome;
}

}  // namespace campanile

#endif
