//! Waiting for another process (or thread) to change a word of shared memory.
//!
//! Two parts. [`futex_wait`] and [`futex_wake`] sleep on a word and wake its sleepers, across processes.
//! [`SpinPolicy`] and [`Waiter`] decide when to spin, when to yield the core and when to sleep; what to check between
//! the steps and which word to sleep on is the caller's:
//!
//! ```
//! use std::sync::atomic::{AtomicU32, Ordering};
//! use campanile_host::wait::{SpinPolicy, Step, Waiter, futex_wait};
//!
//! # let word = AtomicU32::new(1);
//! let mut waiter = Waiter::new(SpinPolicy::for_ranks(8, 2));
//! loop {
//!     let seen = word.load(Ordering::Acquire);
//!     if seen != 0 {
//!         break;
//!     }
//!     match waiter.step() {
//!         Step::Spin => std::hint::spin_loop(),
//!         Step::Yield => std::thread::yield_now(),
//!         // Check for a dead peer, an abort and the deadline here: at least once a slice.
//!         Step::Sleep(slice) => {
//!             futex_wait(&word, seen, slice);
//!         }
//!     }
//! }
//! ```
//!
//! **What the numbers rest on** (two-core guest, Linux 6.18; one-way): a line travels between two spinning cores in
//! 0.2 µs; `sched_yield` hands a core to another rank in 1.1 to 1.3 µs, and returns in 0.1 µs when no other wants it;
//! a futex wake costs 2 µs on the same core and 7 µs across cores (an idle core must be woken), part of which the
//! waker pays. A spinner that never yields on a core that others need loses it only at the scheduler's tick, 4 ms:
//! three orders of magnitude above everything else here.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;

/// Why [`futex_wait`] returned. None of them promises anything about the word: look at it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakeup {
    /// A [`futex_wake`], a signal, or nothing at all (spurious wake-ups exist).
    Woken,
    /// The word was not the expected value, so nobody slept.
    Changed,
    /// Nobody woke us within the timeout.
    TimedOut,
}

/// Sleeps while `word` is `expected`, until a [`futex_wake`] on the same memory from any process, or `timeout`.
///
/// The comparison and falling asleep are one step for the kernel, so a waker that changes the word first and wakes
/// then is never missed. The word is in memory shared between processes (the futex is not `FUTEX_PRIVATE`); plain
/// memory works too.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) -> Wakeup {
    // A timeout of more seconds than fit (i64) is no timeout.
    let timeout = futex::Timespec::try_from(timeout).ok();
    match futex::wait(word, futex::Flags::empty(), expected, timeout.as_ref()) {
        Err(Errno::AGAIN) => Wakeup::Changed,
        Err(Errno::TIMEDOUT) => Wakeup::TimedOut,
        // EINTR. The other errors need a misaligned or unmapped word, which a reference is not.
        Ok(()) | Err(_) => Wakeup::Woken,
    }
}

/// Wakes at most `waiters` sleepers of [`futex_wait`] on `word`, in any process; returns how many it woke. Change the
/// word before. [`u32::MAX`] wakes all.
pub fn futex_wake(word: &AtomicU32, waiters: u32) -> usize {
    // The kernel reads the count as an i32, and wakes one for a negative.
    let waiters = waiters.min(i32::MAX as u32);
    // No error is possible for an aligned, mapped word.
    futex::wake(word, futex::Flags::empty(), waiters).unwrap_or(0)
}

/// How long a wait spins, then yields, before it sleeps, and for how long it sleeps at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpinPolicy {
    /// Looks at the word with a pause instruction in between (10 to 50 ns each).
    pub spins: u32,
    /// Looks with a `sched_yield` in between, after the spins.
    pub yields: u32,
    /// The longest sleep, after the yields, before the caller looks again at what no futex tells: a dead peer, an
    /// abort, a deadline.
    pub sleep_slice: Duration,
}

impl SpinPolicy {
    /// Every rank has a core of its own: spinning takes nothing from anyone, and an arrival is seen in the time a line
    /// travels. Some 100 µs to 1 ms of it cover the skew between ranks in a collective. Then the ranks are out of step,
    /// and the core is offered to others before it is given up.
    pub const DEDICATED: Self = Self { spins: 20_000, yields: 200, sleep_slice: Duration::from_millis(1) };

    /// Ranks share cores: the rank waited for may need this very core. Spin less than a yield costs (1 µs), so that
    /// at most a fraction of the core is wasted; then yield, which passes the core around the ranks on it for 1.3 µs
    /// a hop, cheaper than a futex for as long as any of them has work; then sleep, so that idle ranks do not slow
    /// working ones with their yields.
    pub const SHARED: Self = Self { spins: 20, yields: 500, sleep_slice: Duration::from_millis(1) };

    /// The policy for a rank of `ranks_on_node` ranks that may use `cores_available` cores together:
    /// [`DEDICATED`](Self::DEDICATED) if each can have its own, [`SHARED`](Self::SHARED) if not.
    ///
    /// Take `cores_available` from [`std::thread::available_parallelism`], which heeds cgroup quotas, before the
    /// thread is bound: afterwards it is the size of the binding.
    #[must_use]
    pub const fn for_ranks(ranks_on_node: usize, cores_available: usize) -> Self {
        if ranks_on_node <= cores_available { Self::DEDICATED } else { Self::SHARED }
    }
}

/// What to do before the next look at the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// [`std::hint::spin_loop`].
    Spin,
    /// [`std::thread::yield_now`].
    Yield,
    /// Sleep at most this long, best with [`futex_wait`] on the word that was looked at.
    Sleep(Duration),
}

/// The state of one wait. Pure: counts its steps, and does nothing itself.
#[derive(Debug, Clone)]
pub struct Waiter {
    policy: SpinPolicy,
    steps: u32,
}

impl Waiter {
    /// A wait that has not looked yet.
    #[inline]
    #[must_use]
    pub const fn new(policy: SpinPolicy) -> Self {
        Self { policy, steps: 0 }
    }

    /// The next step: `spins` times [`Step::Spin`], `yields` times [`Step::Yield`], then [`Step::Sleep`] for ever.
    #[inline]
    pub const fn step(&mut self) -> Step {
        let SpinPolicy { spins, yields, sleep_slice } = self.policy;
        if self.steps < spins {
            self.steps += 1;
            Step::Spin
        } else if self.steps < spins.saturating_add(yields) {
            self.steps += 1;
            Step::Yield
        } else {
            Step::Sleep(sleep_slice)
        }
    }

    /// Starts again: something has moved, though not all that is waited for.
    #[inline]
    pub const fn restart(&mut self) {
        self.steps = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    fn steps(policy: SpinPolicy, count: usize) -> Vec<Step> {
        let mut waiter = Waiter::new(policy);
        (0..count).map(|_| waiter.step()).collect()
    }

    #[test]
    fn spins_then_yields_then_sleeps() {
        let slice = Duration::from_micros(5);
        let policy = SpinPolicy { spins: 2, yields: 1, sleep_slice: slice };
        assert_eq!(steps(policy, 5), [Step::Spin, Step::Spin, Step::Yield, Step::Sleep(slice), Step::Sleep(slice)]);
    }

    #[test]
    fn restart_spins_again() {
        let mut waiter = Waiter::new(SpinPolicy { spins: 1, yields: 0, sleep_slice: Duration::ZERO });
        assert_eq!(waiter.step(), Step::Spin);
        assert_eq!(waiter.step(), Step::Sleep(Duration::ZERO));
        waiter.restart();
        assert_eq!(waiter.step(), Step::Spin);
    }

    #[test]
    fn the_largest_counts_do_not_overflow() {
        let policy = SpinPolicy { spins: 1, yields: u32::MAX, sleep_slice: Duration::ZERO };
        assert_eq!(steps(policy, 2), [Step::Spin, Step::Yield]);
        let mut waiter = Waiter { policy, steps: u32::MAX - 1 };
        assert_eq!(waiter.step(), Step::Yield);
        assert_eq!(waiter.step(), Step::Sleep(Duration::ZERO));
        assert_eq!(waiter.step(), Step::Sleep(Duration::ZERO));
    }

    #[test]
    fn one_rank_too_many_shares() {
        assert_eq!(SpinPolicy::for_ranks(2, 2), SpinPolicy::DEDICATED);
        assert_eq!(SpinPolicy::for_ranks(3, 2), SpinPolicy::SHARED);
        assert_eq!(SpinPolicy::for_ranks(1, 0), SpinPolicy::SHARED);
    }

    #[test]
    fn a_changed_word_is_not_slept_on() {
        let word = AtomicU32::new(1);
        assert_eq!(futex_wait(&word, 0, Duration::MAX), Wakeup::Changed);
        assert_eq!(futex_wait(&word, 1, Duration::ZERO), Wakeup::TimedOut);
    }

    #[test]
    fn nobody_sleeps_nobody_wakes() {
        let word = AtomicU32::new(0);
        assert_eq!(futex_wake(&word, u32::MAX), 0);
    }

    #[test]
    fn a_wake_ends_the_wait_of_each_thread() {
        const PATIENCE: Duration = Duration::from_secs(20);
        let word = AtomicU32::new(0);
        let deadline = Instant::now() + PATIENCE;
        let woken = std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while word.load(Ordering::Acquire) == 0 {
                        futex_wait(&word, 0, PATIENCE);
                    }
                });
            }
            // Without a change of the word every sleeper goes back to sleep, so each of the three can be seen asleep.
            let mut woken = 0;
            while woken < 3 && Instant::now() < deadline {
                woken = futex_wake(&word, u32::MAX);
                std::thread::yield_now();
            }
            word.store(1, Ordering::Release);
            futex_wake(&word, u32::MAX);
            woken
        });
        assert_eq!(woken, 3);
    }
}
