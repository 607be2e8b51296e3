//! Registrations: what peers know of private memory that a rank has registered and exported.
//!
//! The descriptor that a peer is sent is that of a page that says where the memory is, and whether it still is; the kernel
//! copies it ([`cross_memory`](crate::cross_memory)).

use std::sync::atomic::{AtomicU64, Ordering};

use campanile_host::memory::{MemoryError, Pages, SharedMemory};

/// What peers know of memory that a rank has registered: a page that it shares with them.
pub(crate) struct Registration {
    memory: SharedMemory,
}

#[repr(C)]
struct Words {
    /// 0 from the moment that the rank takes it back.
    registered: AtomicU64,
    address: AtomicU64,
}

impl Registration {
    /// Bytes of its memory.
    pub(crate) const BYTES: usize = 4096;

    /// Of memory at `address` of this rank.
    pub(crate) fn of(address: *mut u8) -> Result<Self, MemoryError> {
        let page = Self::new(SharedMemory::create("campanile-registration", Self::BYTES, Pages::Small)?);
        page.words().address.store(address.expose_provenance() as u64, Ordering::Relaxed);
        page.words().registered.store(1, Ordering::Release);
        Ok(page)
    }

    /// The one in that memory.
    pub(crate) fn new(memory: SharedMemory) -> Self {
        assert!(memory.len() >= Self::BYTES, "the memory of a registration is a page");
        Self { memory }
    }

    fn words(&self) -> &Words {
        // SAFETY: the mapping is page-aligned, a page long (`new`), sealed against shrinking (SharedMemory), lives as long
        // as `self`, and every field is an atomic for which any bits are valid.
        unsafe { &*self.memory.as_ptr().cast::<Words>() }
    }

    /// The memory, to be sent to peers.
    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// The word that is not 0 as long as the memory is registered.
    pub(crate) fn word(&self) -> *mut AtomicU64 {
        (&raw const self.words().registered).cast_mut()
    }

    /// Where the memory is, in its rank's address space.
    pub(crate) fn address(&self) -> *mut u8 {
        std::ptr::without_provenance_mut(self.words().address.load(Ordering::Relaxed) as usize)
    }

    /// The memory is taken back.
    pub(crate) fn end(&self) {
        self.words().registered.store(0, Ordering::SeqCst);
    }
}
