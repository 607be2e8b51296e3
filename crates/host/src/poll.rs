//! Polling with a deadline.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

/// The time until `deadline`, 0 if it has passed.
pub(crate) fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Polls until an event or the deadline: whether there was an event. Looks at least once; goes on after signals.
pub(crate) fn poll_until(fds: &mut [PollFd<'_>], deadline: Instant) -> Result<bool, Errno> {
    loop {
        // More seconds than a Timespec can hold are no timeout.
        let timeout = Timespec::try_from(left(deadline)).ok();
        match poll(fds, timeout.as_ref()) {
            Err(Errno::INTR) => {}
            result => return Ok(result? > 0),
        }
    }
}
