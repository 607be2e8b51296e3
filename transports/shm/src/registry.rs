//! The registry: region keys and what they name.
//!
//! Reading is lock-free and is what queues do for every operation; adding and removing take a lock and belong to the
//! control plane. A key is (generation, index): an index is reused, a key never is, so a stale key is an error. An
//! operation that touches a region holds a [`Pin`]; removing waits for the pins, so memory is never unmapped under a
//! copy. Entries live in chunks that are allocated as needed and never move.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use campanile_core::{Memory, Rank};

const CHUNK: usize = 256;
const CHUNKS: usize = 256;
/// Low half of an entry's state: pins. High half: generation, odd while alive.
const PINS: u64 = 0xffff_ffff;

#[derive(Default)]
struct Entry {
    state: AtomicU64,
    address: AtomicPtr<u8>,
    bytes: AtomicUsize,
    owner: AtomicU32,
    on_device: AtomicBool,
}

/// Regions by key.
pub(crate) struct Registry {
    chunks: [OnceLock<Box<[Entry]>>; CHUNKS],
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    indexes: Vec<usize>,
    next: usize,
}

/// A region that cannot go away while this lives.
pub(crate) struct Pin<'a> {
    entry: &'a Entry,
    /// First byte.
    pub(crate) address: *mut u8,
    /// Length.
    pub(crate) bytes: usize,
    /// Whose memory it is.
    pub(crate) owner: Rank,
    /// Whether it is memory of a device, which the CPU does not touch.
    pub(crate) on_device: bool,
}

impl Pin<'_> {
    /// The byte at `offset`, which the caller has checked to be inside.
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.bytes as u64);
        self.address.wrapping_add(offset as usize)
    }
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS], free: Mutex::default() }
    }

    /// Adds a region of `owner`; `None` if there are 65536 already.
    pub(crate) fn insert(&self, owner: Rank, memory: &Memory) -> Option<u64> {
        let index = {
            let mut free = self.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match free.indexes.pop() {
                Some(index) => index,
                None if free.next < CHUNK * CHUNKS => {
                    free.next += 1;
                    free.next - 1
                }
                None => return None,
            }
        };
        let chunk = self.chunks[index / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Entry::default()).collect());
        let entry = &chunk[index % CHUNK];
        entry.address.store(memory.address, Ordering::Relaxed);
        entry.bytes.store(memory.bytes, Ordering::Relaxed);
        entry.owner.store(owner.0, Ordering::Relaxed);
        entry.on_device.store(memory.kind.is_device(), Ordering::Relaxed);
        // The index is ours alone (popped under the lock) and has no pins: only its generation changes.
        let state = entry.state.load(Ordering::Relaxed) + (1 << 32);
        entry.state.store(state, Ordering::Release);
        Some(state & !PINS | index as u64)
    }

    fn entry(&self, key: u64) -> Option<&Entry> {
        let index = (key & PINS) as usize;
        self.chunks.get(index / CHUNK)?.get().map(|chunk| &chunk[index % CHUNK])
    }

    /// Holds a region, or `None` if the key is stale.
    pub(crate) fn pin(&self, key: u64) -> Option<Pin<'_>> {
        let entry = self.entry(key)?;
        let mut state = entry.state.load(Ordering::Relaxed);
        loop {
            if state & !PINS != key & !PINS {
                return None;
            }
            match entry.state.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        Some(Pin {
            entry,
            address: entry.address.load(Ordering::Relaxed),
            bytes: entry.bytes.load(Ordering::Relaxed),
            owner: Rank(entry.owner.load(Ordering::Relaxed)),
            on_device: entry.on_device.load(Ordering::Relaxed),
        })
    }

    /// Removes a region and waits until nobody holds it. A pin lasts as long as one copy, so the wait is short.
    pub(crate) fn remove(&self, key: u64) {
        let Some(entry) = self.entry(key) else { return };
        let before = entry.state.fetch_add(1 << 32, Ordering::AcqRel);
        debug_assert_eq!(before & !PINS, key & !PINS, "a region is removed once");
        while entry.state.load(Ordering::Acquire) & PINS != 0 {
            std::thread::yield_now();
        }
        let mut free = self.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        free.indexes.push((key & PINS) as usize);
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.entry.state.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use campanile_core::MemoryKind;

    use super::*;

    fn host(address: usize, bytes: usize) -> Memory {
        Memory { address: std::ptr::without_provenance_mut(address), bytes, kind: MemoryKind::Host }
    }

    #[test]
    fn a_key_is_never_reused() {
        let registry = Registry::new();
        let first = registry.insert(Rank(0), &host(64, 10)).unwrap();
        assert_eq!(registry.pin(first).map(|pin| (pin.address.addr(), pin.bytes)), Some((64, 10)));
        registry.remove(first);
        assert!(registry.pin(first).is_none());
        let second = registry.insert(Rank(0), &host(128, 20)).unwrap();
        assert_ne!(first, second);
        assert_eq!(first & PINS, second & PINS, "the index is reused");
        assert!(registry.pin(first).is_none());
        assert_eq!(registry.pin(second).unwrap().bytes, 20);
        assert!(registry.pin(u64::MAX).is_none());
    }

    #[test]
    fn removing_waits_for_pins() {
        let registry = Registry::new();
        let key = registry.insert(Rank(0), &host(0, 1)).unwrap();
        let removed = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let pin = registry.pin(key).unwrap();
            let remover = scope.spawn(|| {
                registry.remove(key);
                removed.store(true, Ordering::SeqCst);
            });
            while registry.pin(key).is_some() {
                std::thread::yield_now();
            }
            assert!(!removed.load(Ordering::SeqCst), "removed under a pin");
            drop(pin);
            remover.join().unwrap();
        });
        assert!(removed.load(Ordering::SeqCst));
    }

    #[test]
    fn the_registry_says_when_it_is_full() {
        let registry = Registry::new();
        let keys: Vec<_> = (0..CHUNK * CHUNKS).map(|_| registry.insert(Rank(0), &host(0, 0)).unwrap()).collect();
        assert!(registry.insert(Rank(0), &host(0, 0)).is_none());
        registry.remove(keys[7]);
        assert!(registry.insert(Rank(0), &host(0, 0)).is_some());
    }
}
