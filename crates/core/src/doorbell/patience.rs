//! Waiting without an operating system: clock, deadline, abort and pace are arguments.

use core::time::Duration;

/// A monotone clock. The core reads time through it alone, so that tests and models own the time.
pub trait Clock {
    /// Time since an origin of the clock's own; never goes back.
    fn now(&self) -> Duration;
}

/// How a caller waits: until when, stopped by what, and what it does between two polls.
///
/// There is no wait without one, hence none without a deadline and an abort flag.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    /// What `deadline` is measured by.
    pub clock: &'a dyn Clock,
    /// When the wait gives up, on `clock`.
    pub deadline: Duration,
    /// Whether the wait should end early: the abort flag of the communicator.
    pub abort: &'a dyn Fn() -> bool,
    /// Called between polls with the number of polls so far, saturating: spin, yield, park with a bound,
    /// or make progress (execute commands oneself). It must return.
    pub relax: &'a dyn Fn(u32),
}

/// Why a wait ended without its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The deadline passed.
    Deadline,
    /// The abort flag was raised.
    Aborted,
}

impl Patience<'_> {
    /// Polls `ready` until it answers `true`, fails, or the wait is stopped.
    ///
    /// After the stop it polls once more: a thread that was off the processor when its event came does
    /// not report a timeout. An event that is there at once costs no look at the clock.
    ///
    /// # Errors
    /// The outer error is that of `ready`; the inner one says that the wait was stopped.
    pub fn until<E>(&self, mut ready: impl FnMut() -> Result<bool, E>) -> Result<Result<(), Stop>, E> {
        let mut polls: u32 = 0;
        let mut stop = None;
        loop {
            if ready()? {
                return Ok(Ok(()));
            }
            if let Some(stop) = stop {
                return Ok(Err(stop));
            }
            polls = polls.saturating_add(1);
            (self.relax)(polls);
            stop = self.stop();
        }
    }

    fn stop(&self) -> Option<Stop> {
        if (self.abort)() {
            Some(Stop::Aborted)
        } else if self.clock.now() >= self.deadline {
            Some(Stop::Deadline)
        } else {
            None
        }
    }
}
