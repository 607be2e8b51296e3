//! What the ranks of this process share: their ends, and the memory that keys name, all under one lock.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use campanile_core::Rank;

/// One rank's end. Peers hold it, so that it can be asked about after its end.
pub struct End {
    pub id: u64,
    pub rank: Rank,
    /// Whether it has called connect.
    pub connects: AtomicBool,
    /// The first fault, as a word.
    pub fault: AtomicU64,
    /// Why it is gone, as a fault's word: 0 while it is there.
    pub gone: AtomicU64,
    /// Whom it waits for: the rank + 1, 0 for nobody.
    pub waits: AtomicU64,
}

/// What a key names: memory of its user, or a region that its user has imported.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The end that may use the key.
    pub user: u64,
    pub address: usize,
    pub bytes: u64,
    /// The key that the owner of an imported region uses.
    pub target: Option<u64>,
}

#[derive(Default)]
pub struct World {
    numbers: u64,
    pub ends: HashMap<u64, Arc<End>>,
    entries: HashMap<u64, Entry>,
}

impl World {
    pub fn get() -> MutexGuard<'static, Self> {
        static WORLD: LazyLock<Mutex<World>> = LazyLock::new(Mutex::default);
        WORLD.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that is never given again: a stale key or address names nothing.
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// The first byte of a range of what `user` calls `key`, which is `owner`'s memory; `None` if it is stale or outside.
    pub fn range(&self, user: u64, key: u64, owner: u64, offset: u64, bytes: u64) -> Option<*mut u8> {
        let mut entry = self.entries.get(&key).filter(|entry| entry.user == user)?;
        if let Some(target) = entry.target {
            entry = self.entries.get(&target).filter(|entry| entry.user == owner)?;
        } else if user != owner {
            return None;
        }
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= entry.bytes);
        inside.then(|| std::ptr::with_exposed_provenance_mut::<u8>(entry.address).wrapping_add(offset as usize))
    }
}

/// Zeroed memory, which the system gives when it is touched.
pub struct Memory {
    address: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is plain memory; access is by the ordering contract.
unsafe impl Send for Memory {}
// SAFETY: as for Send.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn zeroed(bytes: usize) -> Option<Self> {
        // Aligned for words. A region of no bytes is legal; an allocation of none is not.
        let layout = Layout::from_size_align(bytes.max(1), 8).ok()?;
        // SAFETY: the layout has at least one byte.
        let address = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { address, layout })
    }

    pub fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, and freed once.
        unsafe { dealloc(self.address.as_ptr(), self.layout) }
    }
}

/// A key, for as long as this lives. The lock is taken to remove it, so that nobody is in the middle of a copy.
pub struct Key {
    pub number: u64,
    /// Freed after the key is gone.
    _memory: Option<Memory>,
}

impl Key {
    pub fn new(entry: Entry, memory: Option<Memory>) -> Self {
        let mut world = World::get();
        let number = world.number();
        world.entries.insert(number, entry);
        Self { number, _memory: memory }
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        World::get().entries.remove(&self.number);
    }
}
