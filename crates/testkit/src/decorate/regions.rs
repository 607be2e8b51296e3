//! Regions that a layer keeps track of.
//!
//! A layer that holds operations back, or checks them, must know at once whether an address is one. [`Regions`] hands
//! out regions of its own, with the keys and addresses of the transport's, and learns from their keepers when the last
//! clone is dropped. It does not keep memory alive: what reads a region ([`with`](Regions::with)) holds the lock that
//! dropping it takes. Keys are never reused, and those of dropped regions are remembered, to be told from unknown ones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use campanile_core::{
    AtomicOp, LocalAddress, MemoryKind, Op, Rank, Region, RegionKey, RemoteAddress, RemoteKey, RemoteRegion,
};

/// The regions of one transport, local and imported.
#[derive(Default)]
pub struct Regions {
    /// `None`: dropped.
    locals: Mutex<HashMap<RegionKey, Option<Local>>>,
    remotes: Mutex<HashMap<RemoteKey, Option<Remote>>>,
}

#[derive(Clone, Copy)]
struct Local {
    address: usize,
    bytes: usize,
    kind: MemoryKind,
}

#[derive(Clone, Copy)]
struct Remote {
    owner: Rank,
    bytes: usize,
}

/// Keeper of a local region of ours.
struct KeptLocal {
    regions: Arc<Regions>,
    region: Region,
}

impl Drop for KeptLocal {
    fn drop(&mut self) {
        lock(&self.regions.locals).insert(self.region.key(), None);
    }
}

/// Keeper of an imported region of ours.
struct KeptRemote {
    regions: Arc<Regions>,
    region: RemoteRegion,
}

impl Drop for KeptRemote {
    fn drop(&mut self) {
        lock(&self.regions.remotes).insert(self.region.key(), None);
    }
}

impl Regions {
    /// A region that stands for `region`.
    pub(super) fn keep(self: &Arc<Self>, region: Region) -> Region {
        let (key, address, bytes, kind) = (region.key(), region.address(), region.bytes(), region.kind());
        lock(&self.locals).insert(key, Some(Local { address: address.expose_provenance(), bytes, kind }));
        Region::new(key, address, bytes, kind, Arc::new(KeptLocal { regions: Arc::clone(self), region }))
    }

    /// A region that stands for the imported `region`.
    pub(super) fn keep_remote(self: &Arc<Self>, region: RemoteRegion) -> RemoteRegion {
        let (key, owner, bytes, kind) = (region.key(), region.peer(), region.bytes(), region.kind());
        lock(&self.remotes).insert(key, Some(Remote { owner, bytes }));
        RemoteRegion::new(key, owner, bytes, kind, Arc::new(KeptRemote { regions: Arc::clone(self), region }))
    }

    /// The transport's region that `region` stands for; itself if it is none of ours.
    pub(super) fn inner<'a>(&self, region: &'a Region) -> &'a Region {
        match region.keeper().downcast_ref::<KeptLocal>() {
            Some(kept) if std::ptr::eq(&*kept.regions, self) => &kept.region,
            _ => region,
        }
    }

    /// As [`inner`](Self::inner), of an imported region.
    pub(super) fn inner_remote<'a>(&self, region: &'a RemoteRegion) -> &'a RemoteRegion {
        match region.keeper().downcast_ref::<KeptRemote>() {
            Some(kept) if std::ptr::eq(&*kept.regions, self) => &kept.region,
            _ => region,
        }
    }

    /// Whose memory an imported region is, while it is there.
    pub fn owner(&self, key: RemoteKey) -> Option<Rank> {
        lock(&self.remotes).get(&key).copied().flatten().map(|remote| remote.owner)
    }

    /// Lends `bytes` at `at` to `read`, if they are host memory that is still there.
    pub(super) fn with<R>(&self, at: LocalAddress, bytes: u64, read: impl FnOnce(*const u8, usize) -> R) -> Option<R> {
        let locals = lock(&self.locals);
        let local = locals.get(&at.region).copied().flatten()?;
        inside(at.offset, bytes, local.bytes).filter(|()| local.kind == MemoryKind::Host)?;
        let address = std::ptr::with_exposed_provenance::<u8>(local.address).wrapping_add(at.offset as usize);
        let result = read(address, bytes as usize);
        // Dropping the region waits until here.
        drop(locals);
        Some(result)
    }

    /// Whether an operation for `peer` (any, for an engine) names memory that is there: what the caller did otherwise.
    ///
    /// # Errors
    /// In words, with what is allowed.
    pub fn check(&self, op: &Op, peer: Option<Rank>) -> Result<(), String> {
        if let Some(signal) = op.signal() {
            self.check_word("signal", signal.target, peer)?;
        }
        match *op {
            Op::Put { source, target, bytes } | Op::PutSignal { source, target, bytes, .. } => {
                self.check_local("source", source, bytes)?;
                self.check_remote("target", target, bytes, peer)
            }
            Op::PutInline { data, target } => self.check_remote("target", target, data.as_slice().len() as u64, peer),
            Op::Get { source, target, bytes } => {
                self.check_remote("source", source, bytes, peer)?;
                self.check_local("target", target, bytes)
            }
            Op::Atomic { op, target } => {
                self.check_word("atomic", target, peer)?;
                match op {
                    AtomicOp::Add { .. } => Ok(()),
                    AtomicOp::FetchAdd { result, .. }
                    | AtomicOp::CompareSwap { result, .. }
                    | AtomicOp::Swap { result, .. } => self.check_local("result", result, 8),
                }
            }
            _ => Ok(()),
        }
    }

    fn check_local(&self, what: &str, at: LocalAddress, bytes: u64) -> Result<(), String> {
        let key = at.region.0;
        match lock(&self.locals).get(&at.region) {
            Some(Some(local)) => in_range(what, "local", at.offset, bytes, local.bytes),
            Some(None) => Err(gone(what, "local", key)),
            None => Err(unknown(what, "local", key)),
        }
    }

    fn check_remote(&self, what: &str, at: RemoteAddress, bytes: u64, peer: Option<Rank>) -> Result<(), String> {
        let key = at.region.0;
        match lock(&self.remotes).get(&at.region) {
            Some(Some(remote)) => match peer.filter(|peer| *peer != remote.owner) {
                Some(peer) => Err(format!(
                    "its {what} is in a remote region that belongs to {}, the queue leads to {peer}",
                    remote.owner
                )),
                None => in_range(what, "remote", at.offset, bytes, remote.bytes),
            },
            Some(None) => Err(gone(what, "remote", key)),
            None => Err(unknown(what, "remote", key)),
        }
    }

    fn check_word(&self, what: &str, at: RemoteAddress, peer: Option<Rank>) -> Result<(), String> {
        if !at.offset.is_multiple_of(8) {
            return Err(format!("its {what} is at offset {}; words are 8-byte aligned", at.offset));
        }
        self.check_remote(what, at, 8, peer)
    }
}

fn inside(offset: u64, bytes: u64, limit: usize) -> Option<()> {
    offset.checked_add(bytes).filter(|&end| end <= limit as u64).map(|_| ())
}

fn in_range(what: &str, side: &str, offset: u64, bytes: u64, limit: usize) -> Result<(), String> {
    inside(offset, bytes, limit).ok_or_else(|| {
        format!("its {what}, {bytes} bytes at offset {offset}, is outside its {side} region of {limit} bytes")
    })
}

fn gone(what: &str, side: &str, key: u64) -> String {
    format!("its {what} is in {side} region {key:#x}, which the caller dropped; keep a region until completion")
}

fn unknown(what: &str, side: &str, key: u64) -> String {
    format!("its {what} is in {side} region {key:#x}, which does not exist; take the key of a region of this transport")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that can panic runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
