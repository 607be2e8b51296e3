//! The engine of a queue: a stream of the rank's device.
//!
//! The stream writes its marks into a word of pinned host memory, so that asking how far it is costs a load. Bytes that
//! travel inline go through pinned memory too, a place for each slot of the queue. Nothing is allocated after the engine is
//! made, and nothing here waits but [`StreamEngine::settle`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use campanile_core::Inline;
use campanile_gpu::{Address, CallError, Device, HostMemory, Stream};
use campanile_shm::device::Engine;

/// Looks that find no progress between two questions whether the stream has failed, which cost a call.
const ASK_EVERY: u32 = 256;

/// Bytes of the mark in front of the places for inline bytes.
const HEADER: usize = 64;

/// A stream and its pinned memory.
#[derive(Debug)]
pub(crate) struct StreamEngine {
    /// Dropped first: see `Drop`.
    stream: Stream,
    pinned: HostMemory,
    /// The mark that was seen last.
    seen: AtomicU64,
    looks: AtomicU32,
    timeout: Duration,
}

impl StreamEngine {
    pub(crate) fn new(device: &Device, depth: usize, timeout: Duration) -> Result<Self, CallError> {
        let (stream, pinned) = (device.stream()?, device.allocate_host(HEADER + depth * Inline::MAX)?);
        Ok(Self { stream, pinned, seen: AtomicU64::new(0), looks: AtomicU32::new(0), timeout })
    }

    /// Waits until all that was started is done.
    pub(crate) fn settle(&self) -> Result<(), CallError> {
        self.stream.synchronize(self.timeout)
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the first 8 bytes of pinned memory, page-aligned, alive as long as `self`; the stream stores it whole.
        unsafe { AtomicU64::from_ptr(self.pinned.as_ptr().cast()) }
    }
}

impl Drop for StreamEngine {
    fn drop(&mut self) {
        // What is in flight reads and writes the pinned memory, and regions that nobody else would wait for.
        if let Err(error) = self.settle() {
            tracing::warn!(%error, "a queue of a device was dropped before its work was done");
        }
    }
}

/// The engine that a queue owns, and settling shares.
pub(crate) struct QueueEngine(pub(crate) Arc<StreamEngine>);

impl Engine for QueueEngine {
    unsafe fn copy(&self, target: *mut u8, source: *const u8, bytes: usize) -> Result<(), String> {
        // SAFETY: the caller's promise.
        unsafe { self.0.stream.copy(target as Address, source as Address, bytes) }.map_err(text)
    }

    unsafe fn copy_inline(&self, target: *mut u8, bytes: &[u8], slot: usize) -> Result<(), String> {
        if bytes.is_empty() {
            return Ok(());
        }
        let place = HEADER + slot * Inline::MAX;
        // SAFETY: the place is this slot's alone until its operation is done, and inside the memory, which has one for each
        // slot; the target is the caller's promise.
        unsafe {
            let staged = self.0.pinned.as_ptr().add(place);
            staged.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            self.0.stream.copy(target as Address, staged as Address, bytes.len()).map_err(text)
        }
    }

    unsafe fn store(&self, word: *mut u8, value: u64) -> Result<(), String> {
        // SAFETY: the caller's promise.
        unsafe { self.0.stream.write_value(word as Address, value) }.map_err(text)
    }

    fn mark(&self, mark: u64) -> Result<(), String> {
        // SAFETY: the word lives as long as the stream, which `Drop` waits for.
        unsafe { self.0.stream.write_value(self.0.pinned.address(), mark) }.map_err(text)
    }

    fn reached(&self) -> Result<u64, String> {
        let reached = self.0.word().load(Ordering::Acquire);
        let looks = if self.0.seen.swap(reached, Ordering::Relaxed) == reached {
            self.0.looks.fetch_add(1, Ordering::Relaxed) + 1
        } else {
            self.0.looks.store(0, Ordering::Relaxed);
            0
        };
        if looks == ASK_EVERY {
            self.0.looks.store(0, Ordering::Relaxed);
            self.0.stream.done().map_err(text)?;
        }
        Ok(reached)
    }
}

pub(crate) fn text(error: CallError) -> String {
    error.to_string()
}
