//! Regions: memory of this rank and mappings of others', from their registration to their end.
//!
//! A key is taken back first, then engines that may still move bytes there are waited for, then the memory goes.

use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};

use campanile_core::{ControlError, Memory, MemoryKind, Rank, Region, RegionKey, RemoteKey, RemoteRegion};
use campanile_host::memory::SharedMemory;

use crate::device::Backing;
use crate::transport::Inner;

/// Most regions of either side.
const FULL: &str = "65536 regions are there already; drop some";

impl Backing for SharedMemory {
    fn address(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn extent(&self) -> usize {
        self.len()
    }

    fn descriptor(&self) -> Result<OwnedFd, String> {
        self.fd().try_clone_to_owned().map_err(|error| error.to_string())
    }
}

/// Memory behind a local region.
pub(crate) struct Allocation {
    inner: Arc<Inner>,
    key: u64,
    /// `None` for the caller's own memory.
    backing: Option<Box<dyn Backing>>,
}

impl Allocation {
    /// What others map, unless it is the caller's own memory.
    pub(crate) fn backing(&self) -> Option<&dyn Backing> {
        self.backing.as_deref()
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.inner.locals.remove(self.key);
        keep_if_busy(&self.inner, &mut self.backing);
    }
}

/// A mapping behind a remote region.
pub(crate) struct Mapping {
    inner: Arc<Inner>,
    key: u64,
    pub(crate) address: *mut u8,
    /// Keeps the mapping: its own memory, or for this rank's own region the allocation.
    memory: Mapped,
}

/// What keeps a mapping.
pub(crate) enum Mapped {
    /// Memory of a peer. `None` once it was given up.
    Peer(Option<Box<dyn Backing>>),
    /// This rank's own.
    Own(Arc<Allocation>),
}

// SAFETY: the address belongs to the mapping that `memory` keeps; access is by the ordering contract.
unsafe impl Send for Mapping {}
// SAFETY: as for Send; immutable.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.inner.remotes.remove(self.key);
        if let Mapped::Peer(backing) = &mut self.memory {
            keep_if_busy(&self.inner, backing);
        }
    }
}

/// Leaves memory mapped for ever that a device may still touch: one that has not done its work in all that time is broken.
fn keep_if_busy(inner: &Inner, backing: &mut Option<Box<dyn Backing>>) {
    if inner.devices().is_some_and(|devices| !devices.settle()) {
        tracing::warn!(rank = inner.rank().0, "memory stays mapped: a device has not done with it within the deadline");
        std::mem::forget(backing.take());
    }
}

/// Registers memory of this rank.
pub(crate) fn local(
    inner: &Arc<Inner>,
    memory: Memory,
    backing: Option<Box<dyn Backing>>,
) -> Result<Region, ControlError> {
    let Memory { address, bytes, kind } = memory;
    let full = || ControlError::Memory { bytes, kind, reason: FULL.to_owned() };
    let key = inner.locals.insert(inner.rank(), &memory).ok_or_else(full)?;
    let allocation = Arc::new(Allocation { inner: Arc::clone(inner), key, backing });
    if allocation.backing.is_some() {
        let mut own = inner.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.retain(|(_, allocation)| allocation.strong_count() > 0);
        own.push((key, Arc::downgrade(&allocation)));
    }
    Ok(Region::new(RegionKey(key), address, bytes, kind, allocation))
}

/// Registers memory of a peer, or of this rank as its own peer.
pub(crate) fn remote(
    inner: &Arc<Inner>,
    peer: Rank,
    bytes: usize,
    kind: MemoryKind,
    memory: Mapped,
) -> Result<RemoteRegion, ControlError> {
    let backing = match &memory {
        Mapped::Peer(backing) => backing.as_deref(),
        Mapped::Own(allocation) => allocation.backing(),
    };
    let address = backing.expect("only what is shared is imported").address();
    let full = || ControlError::Memory { bytes, kind, reason: FULL.to_owned() };
    let key = inner.remotes.insert(peer, &Memory { address, bytes, kind }).ok_or_else(full)?;
    let mapping = Mapping { inner: Arc::clone(inner), key, address, memory };
    Ok(RemoteRegion::new(RemoteKey(key), peer, bytes, kind, Arc::new(mapping)))
}
