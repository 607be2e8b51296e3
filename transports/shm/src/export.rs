//! Exports: how a peer comes to a region of this rank.
//!
//! A descriptor goes down the channel of each peer that will import, with the blob; the blob that the peer was given by
//! other means says which one it is. Of memory that the transport allocated the descriptor is the memory, which the peer
//! maps. Of memory that was registered it is a page that says where it is, and whether it still is
//! ([`Registration`]); the kernel copies it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use campanile_core::{ControlError, Pending, Rank, RemoteRegion};
use campanile_host::channel::ChannelError;
use campanile_host::memory::{MemoryError, Pages, SharedMemory};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::registry::Reach;
use crate::transport::{Allocation, Inner, Peer, mapped_bytes};

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

/// What keeps an imported region: nobody looks at it again.
#[expect(dead_code, reason = "it is there to be dropped")]
pub(crate) enum Keeper {
    /// It is mapped.
    Memory(SharedMemory),
    /// The kernel copies it.
    Registration(Arc<Registration>),
    /// It is this rank's own, and mapped.
    Own(Arc<Allocation>),
}

/// The key blob of an export, and what accompanies its descriptor.
#[derive(Clone, Copy)]
pub(crate) struct Export {
    /// Number of the export, for peers.
    pub(crate) number: u64,
    /// Key of the region, for this rank itself.
    pub(crate) key: u64,
    pub(crate) bytes: u64,
    /// Whether the descriptor is that of a [`Registration`] and not of the memory.
    pub(crate) registered: bool,
}

impl Export {
    /// Bytes of a blob.
    pub(crate) const BYTES: usize = 32;

    pub(crate) fn to_blob(self) -> Vec<u8> {
        [self.number, self.key, self.bytes, self.registered.into()].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    pub(crate) fn from_blob(blob: &[u8]) -> Option<Self> {
        let blob: &[u8; Self::BYTES] = blob.try_into().ok()?;
        let word = |at: usize| u64::from_le_bytes(blob[at..at + 8].try_into().expect("8 bytes"));
        Some(Self { number: word(0), key: word(8), bytes: word(16), registered: word(24) != 0 })
    }
}

/// An import that waits for its descriptor.
pub(crate) struct Importing {
    pub(crate) inner: Arc<Inner>,
    pub(crate) peer: Rank,
    pub(crate) export: Export,
}

impl Importing {
    fn take(&self) -> Option<Result<OwnedFd, ControlError>> {
        let Some((peer, channel)) = self.inner.peer(self.peer).and_then(|p| Some((p, p.channel()?))) else {
            let what = "importing a region before connecting to it".to_owned();
            return Some(Err(ControlError::PeerGone { peer: self.peer, what }));
        };
        let mut inbox = peer.inbox();
        loop {
            if let Some(position) = inbox.iter().position(|(number, _, _)| *number == self.export.number) {
                let (_, bytes, fd) = inbox.remove(position).expect("the position was just found");
                if bytes == self.export.bytes {
                    return Some(Ok(fd));
                }
                return Some(Err(self.bad(format!("its descriptor says {bytes} bytes"))));
            }
            match channel.recv(Instant::now()) {
                Ok((message, Some(fd))) => match Export::from_blob(&message) {
                    Some(export) => inbox.push_back((export.number, export.bytes, fd)),
                    None => return Some(Err(self.bad("its message is not an export".to_owned()))),
                },
                Ok((_, None)) => return Some(Err(self.bad("its message carries no descriptor".to_owned()))),
                Err(ChannelError::Timeout { .. }) => return None,
                Err(ChannelError::Gone { .. }) => {
                    let what = "importing its memory".to_owned();
                    return Some(Err(ControlError::PeerGone { peer: self.peer, what }));
                }
                Err(error) => {
                    let what = format!("importing memory of {}", self.peer);
                    return Some(Err(ControlError::System { what, reason: error.to_string() }));
                }
            }
        }
    }

    fn bad(&self, reason: String) -> ControlError {
        ControlError::BadPeerData { peer: self.peer, what: "region", reason }
    }
}

impl Pending<RemoteRegion> for Importing {
    fn test(&mut self) -> Option<Result<RemoteRegion, ControlError>> {
        let fd = match self.take()? {
            Ok(fd) => fd,
            Err(error) => return Some(Err(error)),
        };
        let bytes = self.export.bytes as usize;
        let memory_bytes = if self.export.registered { Registration::BYTES } else { mapped_bytes(bytes) };
        let memory = SharedMemory::open(fd, memory_bytes).map_err(|error| self.bad(error.to_string()));
        Some(memory.and_then(|memory| {
            if !self.export.registered {
                let address = memory.as_ptr();
                return self.inner.remote(self.peer, address, bytes, Reach::LoadStore, Keeper::Memory(memory));
            }
            self.inner.registered(self.peer, bytes, Arc::new(Registration::new(memory)))
        }))
    }

    fn park(&mut self, timeout: Duration) {
        if let Some(channel) = self.inner.peer(self.peer).and_then(Peer::channel) {
            // An interrupted or refused poll only means that the next test comes early.
            let _ = poll(&mut [PollFd::new(channel, PollFlags::IN)], Timespec::try_from(timeout).ok().as_ref());
        }
    }

    fn describe(&self) -> String {
        format!("shm: {} importing memory of {}", self.inner.rank(), self.peer)
    }
}
