// Signals: words in windows, raised by one rank and awaited by another.
#ifndef CAMPANILE_DEVICE_SIGNAL_H
#define CAMPANILE_DEVICE_SIGNAL_H

#include "device/failure.h"
#include "device/group.h"
#include "device/put.h"
#include "device/queue.h"
#include "wait.h"

namespace campanile {

// Polls of a wait between two looks at the host's abort word: reads of host memory are slow, and in the way of rows for
// peers. Failures of this rank are seen every POLLS_PER_CHECK.
constexpr u32 POLLS_PER_ABORT = 16 * POLLS_PER_CHECK;

// Raises a mapped word: a release by the calling thread, of what it has stored and of what was stored before it met.
CAMPANILE_DEVICE void raise(const CommunicatorView& c, u32 peer, u32 slot, u64 value) {
#if !defined(CAMPANILE_BUG_NO_RELEASE)
  fence_release_window();
#endif
  store_relaxed<Scope::System>(signal_word(c, peer, slot), value);
}

template <class Group>
CAMPANILE_DEVICE void signal(const CommunicatorView& c, Group group, u32 peer, u32 slot, u64 value) {
  if (!is_mapped(c, peer)) return Queue::signal(c, group, peer, slot, value);
  group.meet();
  if (group.index() == 0) raise(c, peer, slot, value);
}

template <class Group>
CAMPANILE_DEVICE void put_signal(const CommunicatorView& c, Group group, u32 peer, u64 offset, const void* source,
                                 u64 bytes, u32 slot, u64 value) {
  if (!is_mapped(c, peer)) return Queue::put_signal(c, group, peer, offset, source, bytes, slot, value);
  put(c, group, peer, offset, source, bytes);
  signal(c, group, peer, slot, value);
}

// Waits, the calling thread alone. Each poll is an acquire, which costs less than a fence behind the last one.
CAMPANILE_DEVICE Outcome await_signal(const CommunicatorView& c, u32 peer, u32 slot, u64 value, u32 operation) {
  const u64* word = signal_word(c, c.rank, slot);
  Watch watch;
  while (true) {
    const u64 seen = load_acquire_window(word);
    if (reached(seen, value)) return Outcome::Done;
    Outcome outcome = watch.poll_again({c.failed, c.deadline});
    if (outcome == Outcome::Done && watch.polls % POLLS_PER_ABORT == 0 && load_relaxed<Scope::System>(c.abort) != 0)
      outcome = Outcome::Aborted;
    if (outcome == Outcome::Done) continue;
    fail(c, outcome, operation, peer, slot, value, seen);
    return outcome;
  }
}

template <class Group>
CAMPANILE_DEVICE Outcome wait(const CommunicatorView& c, Group group, u32 peer, u32 slot, u64 value, u32 operation) {
  Outcome outcome = Outcome::Done;
  if (group.index() == 0) outcome = await_signal(c, peer, slot, value, operation);
  return static_cast<Outcome>(group.share(static_cast<u32>(outcome)));
}

}  // namespace campanile

#endif
