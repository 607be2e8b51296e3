//! One clock for all processes of a machine.
//!
//! `CLOCK_MONOTONIC` is read through the vDSO (about 20 ns, no system call), never steps, and counts from the same
//! origin in every process of a kernel, so a time taken by one rank may be compared with a time taken by another on the
//! same node. It says nothing between nodes.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`. Comparable between processes of one machine (and one time namespace).
#[inline]
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // The monotonic clock is never negative, and 2^64 ns are 584 years.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::now_ns;

    #[test]
    fn never_runs_backwards_also_between_threads() {
        let before = now_ns();
        let other = std::thread::spawn(now_ns).join().expect("the thread only reads a clock");
        let after = now_ns();
        assert!(before <= other && other <= after, "{before} {other} {after}");
    }
}
