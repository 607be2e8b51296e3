//! Readers: words of device memory, for the host.
//!
//! A reader copies the word into pinned memory on a stream of its own, which nothing else keeps busy, and waits for that.
//! Each waiter takes one and gives it back; there are as many as there ever were waiters at once.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use campanile_gpu::{Address, CallError, Device, HostMemory, Stream};

struct Reader {
    stream: Stream,
    pinned: HostMemory,
}

/// The readers of a rank.
pub(crate) struct Readers {
    device: Device,
    timeout: Duration,
    idle: Mutex<Vec<Reader>>,
}

impl Readers {
    pub(crate) fn new(device: &Device, timeout: Duration) -> Self {
        Self { device: device.clone(), timeout, idle: Mutex::default() }
    }

    /// Value of a word.
    ///
    /// # Safety
    /// The 8 bytes are mapped and aligned.
    pub(crate) unsafe fn load(&self, word: Address) -> Result<u64, CallError> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = idle().pop();
        let reader = match taken {
            Some(reader) => reader,
            None => Reader { stream: self.device.stream()?, pinned: self.device.allocate_host(8)? },
        };
        // SAFETY: the caller's promise for the word; the pinned memory lives until the wait has ended, or for ever.
        let copied = unsafe { reader.stream.copy(reader.pinned.address(), word, 8) };
        if let Err(error) = copied.and_then(|()| reader.stream.synchronize(self.timeout)) {
            // The copy may still come.
            std::mem::forget(reader);
            return Err(error);
        }
        // SAFETY: 8 bytes of pinned memory that this reader's copy has written, aligned to a page.
        let value = unsafe { reader.pinned.as_ptr().cast::<u64>().read_volatile() };
        idle().push(reader);
        Ok(value)
    }
}
