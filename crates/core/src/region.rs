//! Regions: registered memory, and the part of a peer's that was imported.
//!
//! Both are handles with an end of life: when the last clone of a [`Region`] drops, the memory is deregistered (and
//! freed, if the transport allocated it); when the last clone of a [`RemoteRegion`] drops, the mapping ends. What an
//! operation carries is not the handle but its [`key`](Region::key), plain data that can stand in a command ring or
//! cross a C table. A key names one registration for ever: it is never reused, so an operation that outlives its
//! region fails instead of touching what took its place.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::{MemoryKind, Rank};

/// Names one local registration of one transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct RegionKey(pub u64);

/// Names one imported region of one transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct RemoteKey(pub u64);

/// Memory of this rank that its transport knows.
#[derive(Clone)]
pub struct Region {
    key: RegionKey,
    address: *mut u8,
    bytes: usize,
    kind: MemoryKind,
    keeper: Arc<dyn Any + Send + Sync>,
}

// SAFETY: a region is an address range plus a shared keeper; it dereferences nothing itself, and whoever reads or
// writes through the address answers for races by the ordering contract.
unsafe impl Send for Region {}
// SAFETY: as for Send: every method takes plain data out of an immutable struct.
unsafe impl Sync for Region {}

impl Region {
    /// A region of `bytes` at `address`, alive as long as `keeper`. For transports.
    pub fn new(
        key: RegionKey,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
        keeper: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { key, address, bytes, kind, keeper }
    }

    /// What operations carry.
    pub fn key(&self) -> RegionKey {
        self.key
    }

    /// First byte. Valid while a clone of this region lives.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it lives.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// What the transport keeps alive with it.
    pub fn keeper(&self) -> &(dyn Any + Send + Sync) {
        &*self.keeper
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region {{ key: {:#x}, bytes: {}, kind: {} }}", self.key.0, self.bytes, self.kind)
    }
}

/// Memory of a peer that this rank's transport can address.
#[derive(Clone)]
pub struct RemoteRegion {
    key: RemoteKey,
    peer: Rank,
    bytes: usize,
    kind: MemoryKind,
    keeper: Arc<dyn Any + Send + Sync>,
}

impl RemoteRegion {
    /// `bytes` of `peer`, reachable as long as `keeper` lives. For transports.
    pub fn new(key: RemoteKey, peer: Rank, bytes: usize, kind: MemoryKind, keeper: Arc<dyn Any + Send + Sync>) -> Self {
        Self { key, peer, bytes, kind, keeper }
    }

    /// What operations carry.
    pub fn key(&self) -> RemoteKey {
        self.key
    }

    /// Whose memory it is.
    pub fn peer(&self) -> Rank {
        self.peer
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it lives.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// What the transport keeps alive with it.
    pub fn keeper(&self) -> &(dyn Any + Send + Sync) {
        &*self.keeper
    }
}

impl fmt::Debug for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteRegion {{ key: {:#x}, peer: {}, bytes: {} }}", self.key.0, self.peer, self.bytes)
    }
}
