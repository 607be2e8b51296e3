//! Waiting for a word, in host memory or of a device: spin, then yield, then sleep; deadlines, deaths, and whom to blame.
//!
//! The fast path is a load. While spinning nothing else is looked at; from the first yield on the waiter says in its
//! control block whom it waits for, and looks at the job's fault word at every step, at the peer's life and the clock at every
//! [`LOOK_EVERY`]th yield and at every sleep.
//!
//! A time-out blames the end of the chain: whoever the peer itself waits for, as its control block says, unless its
//! heart-beat has stopped (a waiter beats, a stopped process does not) or it does not wait at all.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use campanile_core::{Fault, FaultKind, Rank, Wait, WaitError, WaitState};
use campanile_host::clock::now_ns;
use campanile_host::wait::{Step, Waiter};

use crate::device::Devices;
use crate::transport::{Inner, Peer};

/// Yields between two looks at what costs a system call.
const LOOK_EVERY: u32 = 64;
/// A waiter beats at least once a sleep slice (1 ms) or 64 yields; one that has not for this long is not running.
/// Generous, because eight ranks may share a core with other jobs.
const STALE: Duration = Duration::from_millis(250);

/// A word that is waited for.
trait Word {
    /// Whether a look costs no more than a load, so that spinning on it is worth it.
    const IS_NEAR: bool;

    /// Its value, which may have taken a bounded time to get.
    fn load(&self) -> Result<u64, String>;
}

impl Word for &AtomicU64 {
    const IS_NEAR: bool = true;

    #[inline]
    fn load(&self) -> Result<u64, String> {
        Ok(AtomicU64::load(self, Ordering::Acquire))
    }
}

/// A word in device memory.
struct Far<'a> {
    devices: &'a dyn Devices,
    word: *const u8,
}

impl Word for Far<'_> {
    const IS_NEAR: bool = false;

    fn load(&self) -> Result<u64, String> {
        // SAFETY: inside a region and aligned (`place`), which lives as long as the wait borrows it.
        unsafe { self.devices.load(self.word) }
    }
}

#[inline]
pub(crate) fn signal_wait(inner: &Inner, wait: &Wait<'_>) -> Result<u64, WaitError> {
    let place = place(wait)?;
    if let (true, Some(devices)) = (wait.region.kind().is_device(), inner.devices()) {
        return slow(inner, wait, &Far { devices, word: place });
    }
    // SAFETY: inside the region and aligned (`place`), and alive as long as `wait` borrows the region; words are only
    // accessed as atomics (the ordering contract).
    let word = unsafe { AtomicU64::from_ptr(place.cast()) };
    let seen = word.load(Ordering::Acquire);
    if wait.condition.holds(seen) {
        return Ok(seen);
    }
    slow(inner, wait, &word)
}

/// Where the word is. Regions begin at a page, so that it is aligned if its offset is.
fn place(wait: &Wait<'_>) -> Result<*mut u8, WaitError> {
    let (offset, bytes) = (wait.offset, wait.region.bytes());
    if !offset.is_multiple_of(8) || offset >= bytes || bytes - offset < 8 {
        let reason = format!("a word at {offset} of a region of {bytes} bytes: offsets are multiples of 8 inside it");
        return Err(WaitError::Invalid { operation: wait.operation, reason });
    }
    Ok(wait.region.address().wrapping_add(offset))
}

/// Takes back what this rank's control block says when the wait ends, however it ends.
struct Announced<'a>(&'a Inner);

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.0.own_control().clear_waiting();
    }
}

#[cold]
fn slow<W: Word>(inner: &Inner, wait: &Wait<'_>, word: &W) -> Result<u64, WaitError> {
    // A device that cannot be read ends the job, by this rank's name.
    let load = || {
        word.load().map_err(|reason| {
            let rank = inner.rank();
            tracing::error!(rank = rank.0, operation = wait.operation, reason, "a word cannot be read");
            let fault = inner.report(Fault { culprit: rank, kind: FaultKind::Failed, reporter: rank });
            failed(inner, wait, fault, 0)
        })
    };
    let peer = inner.peer(wait.peer).ok_or_else(|| WaitError::Invalid {
        operation: wait.operation,
        reason: format!("{} is not connected", wait.peer),
    })?;
    if peer.masked() {
        let reason = format!("{} is masked: this rank goes on without it", wait.peer);
        return Err(WaitError::Invalid { operation: wait.operation, reason });
    }
    let mut waiter = Waiter::new(inner.spin());
    let (mut seen, mut step);
    loop {
        seen = load()?;
        if wait.condition.holds(seen) {
            return Ok(seen);
        }
        step = waiter.step();
        if step != Step::Spin || !W::IS_NEAR {
            break;
        }
        std::hint::spin_loop();
    }

    let control = inner.own_control();
    let start = now_ns();
    let timeout = u64::try_from(inner.timeout().as_nanos()).unwrap_or(u64::MAX);
    control.set_waiting(wait.peer, start);
    let _announced = Announced(inner);
    let mut yields = 0;
    loop {
        if let Some(fault) = inner.fault() {
            seen = load()?;
            if wait.condition.holds(seen) {
                return Ok(seen);
            }
            return Err(failed(inner, wait, fault, seen));
        }
        let look = match step {
            Step::Sleep(slice) => {
                control.sleep(slice, || wait.condition.holds(load().unwrap_or(seen)) || inner.fault().is_some());
                true
            }
            Step::Yield | Step::Spin => {
                std::thread::yield_now();
                yields += 1;
                yields % LOOK_EVERY == 0
            }
        };
        seen = load()?;
        if wait.condition.holds(seen) {
            return Ok(seen);
        }
        if look {
            let now = now_ns();
            control.set_waiting(wait.peer, now);
            if let Some(kind) = peer.gone() {
                // It may have signalled before it went.
                seen = load()?;
                if wait.condition.holds(seen) {
                    return Ok(seen);
                }
                let fault = inner.report(Fault { culprit: wait.peer, kind, reporter: inner.rank() });
                return Err(failed(inner, wait, fault, seen));
            }
            if now - start >= timeout {
                let fault = inner.report(blame(inner, wait.peer, peer, now));
                let waited = Duration::from_nanos(now - start);
                let (operation, state) = (wait.operation, state(inner, wait, seen));
                return Err(WaitError::Timeout { operation, fault, state, waited });
            }
        }
        step = waiter.step();
    }
}

/// Follows the chain of waits from `first` to whoever holds it up.
fn blame(inner: &Inner, first: Rank, peer: &Peer, now: u64) -> Fault {
    let stale = STALE.min(inner.timeout() / 2).as_nanos() as u64;
    let stalled = |culprit| Fault { culprit, kind: FaultKind::Stalled, reporter: inner.rank() };
    let (mut culprit, mut at) = (first, peer);
    let mut visited = vec![inner.rank(), first];
    loop {
        if let Some(kind) = at.gone() {
            return Fault { culprit, kind, reporter: inner.rank() };
        }
        let Some((next, beat)) = at.control().waiting() else { return stalled(culprit) };
        if now.saturating_sub(beat) > stale {
            return stalled(culprit);
        }
        // A ring of waits has no first culprit: the peer that this rank sees is named.
        if visited.contains(&next) {
            return stalled(first);
        }
        let Some(peer) = inner.peer(next).filter(|peer| !peer.masked()) else { return stalled(culprit) };
        visited.push(next);
        (culprit, at) = (next, peer);
    }
}

fn state(inner: &Inner, wait: &Wait<'_>, seen: u64) -> Box<WaitState> {
    Box::new(WaitState {
        rank: inner.rank(),
        peer: wait.peer,
        slot: wait.slot,
        offset: wait.offset,
        epoch: wait.epoch,
        expected: wait.condition,
        seen,
    })
}

fn failed(inner: &Inner, wait: &Wait<'_>, fault: Fault, seen: u64) -> WaitError {
    WaitError::Fault { operation: wait.operation, fault, state: state(inner, wait, seen) }
}
