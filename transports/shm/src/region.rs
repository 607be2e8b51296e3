//! Regions: memory of this rank and what it imported of others, from their registration to their end.
//!
//! A key is taken back first, then engines that may still move bytes there are waited for, then the memory goes.

use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, OnceLock, PoisonError};

use campanile_core::{ControlError, Memory, MemoryKind, Rank, Region, RegionKey, RemoteKey, RemoteRegion};
use campanile_host::memory::SharedMemory;

use crate::cross_memory::own_process;
use crate::device::Backing;
use crate::registration::Registration;
use crate::registry::Reach;
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
    memory: Memory,
    /// `None` for the caller's own memory.
    backing: Option<Box<dyn Backing>>,
    /// What peers know of the caller's own memory, once it is exported.
    registration: OnceLock<Arc<Registration>>,
}

// SAFETY: the address is that of the region, which its users answer for (`Region`); all else is shared by locks.
unsafe impl Send for Allocation {}
// SAFETY: as for Send.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// What others map, unless it is the caller's own memory.
    pub(crate) fn backing(&self) -> Option<&dyn Backing> {
        self.backing.as_deref()
    }

    /// What others know of the caller's own memory, if it was exported.
    pub(crate) fn registration(&self) -> Option<&Arc<Registration>> {
        self.registration.get()
    }

    /// What a peer is sent to reach it, and whether that is a registration.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn shared(&self) -> Result<(&dyn Backing, bool), String> {
        if let Some(backing) = self.backing() {
            return Ok((backing, false));
        }
        if self.memory.kind.is_device() {
            return Err("device memory that was registered cannot be shared; allocate it".to_owned());
        }
        if self.registration.get().is_none() {
            let registration = Registration::of(self.memory.address).map_err(|error| error.to_string())?;
            self.registration.get_or_init(|| Arc::new(registration));
        }
        let registration = self.registration.get().expect("it was just made");
        Ok((registration.memory(), true))
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some(registration) = self.registration.get() {
            registration.end();
        }
        self.inner.locals.remove(self.key);
        keep_if_busy(&self.inner, &mut self.backing);
    }
}

/// What is behind a remote region.
pub(crate) struct Mapping {
    inner: Arc<Inner>,
    key: u64,
    /// `None` where load / store does not reach.
    pub(crate) address: Option<NonNull<u8>>,
    held: Held,
}

/// What keeps an imported region.
pub(crate) enum Held {
    /// Memory of a peer, mapped. `None` once it was given up.
    Peer(Option<Box<dyn Backing>>),
    /// Private memory, which the kernel copies.
    Registration(Arc<Registration>),
    /// This rank's own, mapped.
    Own(Arc<Allocation>),
}

// SAFETY: the address belongs to the mapping that `held` keeps; access is by the ordering contract.
unsafe impl Send for Mapping {}
// SAFETY: as for Send; immutable.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.inner.remotes.remove(self.key);
        if let Held::Peer(backing) = &mut self.held {
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
    let reach = match memory.is_address_space() {
        true => Reach::Kernel { process: own_process(), registered: null_mut() },
        false => Reach::LoadStore,
    };
    let key = inner.locals.insert(inner.rank(), &memory, reach).ok_or_else(full)?;
    let registration = OnceLock::new();
    let allocation = Arc::new(Allocation { inner: Arc::clone(inner), key, memory, backing, registration });
    let mut own = inner.own.lock().unwrap_or_else(PoisonError::into_inner);
    own.retain(|(_, allocation)| allocation.strong_count() > 0);
    own.push((key, Arc::downgrade(&allocation)));
    drop(own);
    Ok(Region::new(RegionKey(key), address, bytes, kind, allocation))
}

/// Registers memory of a peer, or of this rank as its own peer.
pub(crate) fn remote(
    inner: &Arc<Inner>,
    peer: Rank,
    bytes: usize,
    kind: MemoryKind,
    held: Held,
) -> Result<RemoteRegion, ControlError> {
    let mapped = |backing: Option<&dyn Backing>| {
        let address = backing.expect("only what is shared is imported").address();
        (address, Reach::LoadStore)
    };
    let (address, reach) = match &held {
        Held::Peer(backing) => mapped(backing.as_deref()),
        Held::Own(allocation) => mapped(allocation.backing()),
        Held::Registration(registration) => {
            let reach = Reach::Kernel { process: inner.process(peer)?, registered: registration.word() };
            (registration.address(), reach)
        }
    };
    let full = || ControlError::Memory { bytes, kind, reason: FULL.to_owned() };
    let key = inner.remotes.insert(peer, &Memory { address, bytes, kind }, reach).ok_or_else(full)?;
    let address = NonNull::new(address).filter(|_| matches!(reach, Reach::LoadStore));
    let mapping = Mapping { inner: Arc::clone(inner), key, address, held };
    Ok(RemoteRegion::new(RemoteKey(key), peer, bytes, kind, Arc::new(mapping)))
}
