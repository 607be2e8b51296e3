// Waits on the device: bounded by a deadline, ended by an abort.
//
// A wait spins with relaxed loads and fences once, at its end. The clock and the abort word are looked at after every
// POLLS_PER_CHECK polls, since both cost more than the word itself: the abort word may lie in host memory.
#ifndef CAMPANILE_WAIT_H
#define CAMPANILE_WAIT_H

#include "portable.h"

namespace campanile {

constexpr u32 POLLS_PER_CHECK = 64;

// How a wait ended; the host has the same numbers.
enum class Outcome : u32 { Done = 0, Timeout = 1, Aborted = 2 };

// What bounds the waits of a kernel.
struct Patience {
  const u32* abort;  // not 0: give up. May lie in host memory. Null: nobody aborts.
  u64 nanoseconds;   // for each wait
};

// Whether `seen` has reached `wanted`, for counters that wrap.
CAMPANILE_DEVICE bool reached(u64 seen, u64 wanted) { return static_cast<long long>(seen - wanted) >= 0; }

// Counts the polls of one wait and says when to give up.
struct Watch {
  u64 start = 0;
  u32 polls = 0;

  // After a poll that did not see what it waits for: Done means poll again.
  CAMPANILE_MEMBER Outcome poll_again(const Patience& patience) {
    pause();
    if (++polls % POLLS_PER_CHECK != 0) return Outcome::Done;
    if (patience.abort != nullptr && load_relaxed<Scope::System>(patience.abort) != 0) return Outcome::Aborted;
    u64 now = global_nanoseconds();
    if (start == 0) start = now;
    return now - start > patience.nanoseconds ? Outcome::Timeout : Outcome::Done;
  }
};

// Waits until the word at `p`, which any device may write, has reached `wanted`. One thread calls it, with the fence
// that suits what the word announces to follow. `seen` is the last value read.
CAMPANILE_DEVICE Outcome wait_until(const u64* p, u64 wanted, const Patience& patience, u64& seen) {
  Watch watch;
  while (true) {
    seen = load_relaxed<Scope::System>(p);
    if (reached(seen, wanted)) return Outcome::Done;
    Outcome outcome = watch.poll_again(patience);
    if (outcome != Outcome::Done) return outcome;
  }
}

}  // namespace campanile

#endif
