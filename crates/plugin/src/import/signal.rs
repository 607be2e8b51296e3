//! Waiting for a signal on behalf of a transport that cannot.
//!
//! The host looks at the word itself, so it must be in memory of the host. It drives the transport's queues, spins, yields
//! and naps, as [`SpinPolicy`] says; it looks at the job's fault at every step after the spins, and at the peer's life and
//! the clock at every nap and every [`LOOK_EVERY`]th yield. Naps are short, because nobody wakes a napper.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use campanile_core::{Fault, FaultKind, MemoryKind, Wait, WaitError};
use campanile_host::wait::{SpinPolicy, Step, Waiter};

use super::transport::Opened;
use crate::failure::wait_state;

/// Yields between two looks at what costs a system call.
const LOOK_EVERY: u32 = 64;
/// Longest nap.
const NAP: Duration = Duration::from_micros(100);

pub(super) fn wait(opened: &Opened, wait: &Wait<'_>) -> Result<u64, WaitError> {
    let word = word(wait)?;
    let holds = || {
        let seen = word.load(Ordering::Acquire);
        (wait.condition.holds(seen), seen)
    };
    let (true, seen) = holds() else { return slow(opened, wait, holds) };
    Ok(seen)
}

fn word<'a>(wait: &Wait<'a>) -> Result<&'a AtomicU64, WaitError> {
    let invalid = |reason: String| WaitError::Invalid { operation: wait.operation, reason };
    let (offset, bytes) = (wait.offset, wait.region.bytes());
    if wait.region.kind() != MemoryKind::Host {
        return Err(invalid(format!("a word in {} memory: the host cannot look at it", wait.region.kind())));
    }
    if !offset.is_multiple_of(8) || offset >= bytes || bytes - offset < 8 {
        return Err(invalid(format!(
            "a word at {offset} of a region of {bytes} bytes: offsets are multiples of 8 inside it"
        )));
    }
    let address = wait.region.address().wrapping_add(offset).cast::<u64>();
    if !address.is_aligned() {
        return Err(invalid(format!("a word at address {address:p}: words are 8-byte aligned")));
    }
    // SAFETY: inside the region and aligned (checked), and alive as long as `wait` borrows the region; words are only
    // accessed as atomics (the ordering contract).
    Ok(unsafe { AtomicU64::from_ptr(address) })
}

#[cold]
fn slow(opened: &Opened, wait: &Wait<'_>, holds: impl Fn() -> (bool, u64)) -> Result<u64, WaitError> {
    let operation = wait.operation;
    let invalid = |reason: String| Err(WaitError::Invalid { operation, reason });
    if !opened.peers().contains(&wait.peer) {
        return invalid(format!("{} is not connected", wait.peer));
    }
    if opened.masked(wait.peer) {
        return invalid(format!("{} is masked: this rank goes on without it", wait.peer));
    }
    let (ranks, cores) = opened.share();
    let cores = if cores == 0 { std::thread::available_parallelism().map_or(1, Into::into) } else { cores };
    let mut waiter = Waiter::new(SpinPolicy { sleep_slice: NAP, ..SpinPolicy::for_ranks(ranks, cores) });
    let start = Instant::now();
    let mut yields = 0;
    loop {
        if opened.progress() > 0 {
            waiter.restart();
        }
        if let (true, seen) = holds() {
            return Ok(seen);
        }
        let step = waiter.step();
        let look = match step {
            Step::Spin => {
                std::hint::spin_loop();
                continue;
            }
            Step::Yield => {
                std::thread::yield_now();
                yields += 1;
                yields % LOOK_EVERY == 0
            }
            Step::Sleep(slice) => {
                std::thread::park_timeout(slice);
                true
            }
        };
        let ended = match opened.fault() {
            Some(fault) => Some(fault),
            None if look => {
                let kind = opened.gone(wait.peer);
                kind.map(|kind| opened.report(Fault { culprit: wait.peer, kind, reporter: opened.rank() }))
            }
            None => None,
        };
        if let Some(fault) = ended {
            // It may have signalled before.
            opened.progress();
            let (true, seen) = holds() else {
                return Err(WaitError::Fault { operation, fault, state: wait_state(opened.rank(), wait, holds().1) });
            };
            return Ok(seen);
        }
        let waited = start.elapsed();
        if look && waited >= opened.timeout() {
            let stalled = Fault { culprit: wait.peer, kind: FaultKind::Stalled, reporter: opened.rank() };
            let (fault, state) = (opened.report(stalled), wait_state(opened.rank(), wait, holds().1));
            return Err(WaitError::Timeout { operation, fault, state, waited });
        }
    }
}
