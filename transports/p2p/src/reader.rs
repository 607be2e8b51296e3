//! Readers: words of device memory, for the host.
//!
//! A reader copies the word into pinned memory on a stream of its own, which nothing else keeps busy, and waits for that.
//! Each waiter takes one and gives it back. One is there with the first memory, since making it may have to wait for
//! kernels that run; more are made when more wait at once.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_gpu::{Address, CallError, Device, HostMemory, Stream};

struct Reader {
    stream: Stream,
    pinned: HostMemory,
}

impl Reader {
    fn new(device: &Device) -> Result<Self, CallError> {
        Ok(Self { stream: device.stream()?, pinned: device.allocate_host(8)? })
    }
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

    /// Makes the first reader, if there is none.
    pub(crate) fn prepare(&self) -> Result<(), CallError> {
        if self.idle().is_empty() {
            let reader = Reader::new(&self.device)?;
            self.idle().push(reader);
        }
        Ok(())
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Reader>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Value of a word.
    ///
    /// # Safety
    /// The 8 bytes are mapped and aligned.
    pub(crate) unsafe fn load(&self, word: Address) -> Result<u64, CallError> {
        let taken = self.idle().pop();
        let reader = taken.map_or_else(|| Reader::new(&self.device), Ok)?;
        // SAFETY: the caller's promise for the word; the pinned memory lives until the wait has ended, or for ever.
        let copied = unsafe { reader.stream.copy(reader.pinned.address(), word, 8) };
        if let Err(error) = copied.and_then(|()| reader.stream.synchronize(self.timeout)) {
            // The copy may still come.
            std::mem::forget(reader);
            return Err(error);
        }
        // SAFETY: 8 bytes of pinned memory that this reader's copy has written, aligned to a page.
        let value = unsafe { reader.pinned.as_ptr().cast::<u64>().read_volatile() };
        self.idle().push(reader);
        Ok(value)
    }
}
