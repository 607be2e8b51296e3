//! Events: [`Event`], a point in a stream.

use std::time::Duration;

use crate::calls::EventHandle;
use crate::stream::poll;
use crate::{CallError, Device, Stream};

/// A point in a stream, that others wait for and that keeps the time.
#[derive(Debug)]
pub struct Event {
    device: Device,
    handle: EventHandle,
}

impl Event {
    pub(crate) fn new(device: &Device) -> Result<Self, CallError> {
        let handle = device.gpu().calls().event_create(device.ordinal())?;
        Ok(Self { device: device.clone(), handle })
    }

    /// The library's handle (`CUevent`, `hipEvent_t`).
    #[must_use]
    pub fn handle(&self) -> EventHandle {
        self.handle
    }

    /// Records what the stream has been given so far.
    ///
    /// # Errors
    /// Those of the call.
    pub fn record(&self, stream: &Stream) -> Result<(), CallError> {
        // SAFETY: own handles.
        unsafe { self.device.gpu().calls().event_record(self.handle, stream.handle()) }
    }

    /// Whether what was recorded is done; true before anything was.
    ///
    /// # Errors
    /// Those of the work.
    pub fn done(&self) -> Result<bool, CallError> {
        // SAFETY: own handle.
        unsafe { self.device.gpu().calls().event_done(self.handle) }
    }

    /// Waits until what was recorded is done, up to `patience`.
    ///
    /// # Errors
    /// [`CallError::Timeout`], and errors of the work.
    pub fn synchronize(&self, patience: Duration) -> Result<(), CallError> {
        poll(patience, "an event", || self.done())
    }

    /// Time from `start` to here; both are done. Steps of 0.5 µs.
    ///
    /// # Errors
    /// Those of the call: one of them is not done.
    pub fn since(&self, start: &Self) -> Result<Duration, CallError> {
        // SAFETY: own handles.
        let milliseconds = unsafe { self.device.gpu().calls().event_elapsed(start.handle, self.handle)? };
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: own handle, destroyed once.
        if let Err(error) = unsafe { self.device.gpu().calls().event_destroy(self.handle) } {
            tracing::warn!(%error, "an event was not destroyed");
        }
    }
}
