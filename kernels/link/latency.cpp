// What a flag costs: two sides raise each other's word in turn, `rounds` times. The other side is a kernel of another
// rank, or the host.
#include "portable.h"
#include "wait.h"

using namespace campanile;

struct PingArguments {
  u64* theirs;
  const u64* mine;
  Patience patience;
  u32* outcome;
  u64 base;  // what both words are
  u32 rounds;
  u32 first;  // whether this side begins
};

// The least that a waiter can do: most polls are without a pause.
CAMPANILE_DEVICE Outcome await(const PingArguments& a, u64 value) {
  Watch watch;
  u32 polls = 0;
  while (!reached(load_acquire_window(a.mine), value)) {
    if (++polls % POLLS_PER_CHECK != 0) continue;
    const Outcome outcome = watch.poll_again(a.patience);
    if (outcome != Outcome::Done) return outcome;
  }
  return Outcome::Done;
}

// One thread.
CAMPANILE_KERNEL(link_ping, 64, PingArguments, a) {
  if (thread_index() != 0) return;
  Outcome outcome = Outcome::Done;
  for (u64 value = a.base + 1; value != a.base + a.rounds + 1 && outcome == Outcome::Done; value++) {
    if (!a.first) outcome = await(a, value);
    if (outcome != Outcome::Done) break;
    fence_release_window();
    store_relaxed<Scope::System>(a.theirs, value);
    if (a.first) outcome = await(a, value);
  }
  store_relaxed<Scope::System>(a.outcome, static_cast<u32>(outcome));
}
