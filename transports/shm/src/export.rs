//! Exports: key blobs, and the descriptors that travel beside them.
//!
//! Exporting sends a descriptor down the channel of each peer that will import, with the blob in front; importing takes
//! the one of its blob's number, whatever came before it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use campanile_core::{ControlError, MemoryKind, Pending, Rank, Region, RemoteRegion, Request};
use campanile_host::channel::ChannelError;
use campanile_host::memory::SharedMemory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::device::Backing;
use crate::region::{Allocation, Mapped, remote};
use crate::transport::Inner;

/// The key blob of an export.
#[derive(Clone, Copy)]
struct Export {
    /// Number of the export, for peers.
    number: u64,
    /// Key, for this rank itself.
    key: u64,
    bytes: u64,
    /// Bytes behind the descriptor.
    extent: u64,
    kind: MemoryKind,
}

/// Bytes of a key blob: five words.
const BLOB_BYTES: usize = 40;

impl Export {
    fn to_blob(self) -> Vec<u8> {
        let kind = match self.kind {
            MemoryKind::Device(ordinal) => u64::from(ordinal) + 1,
            _ => 0,
        };
        [self.number, self.key, self.bytes, self.extent, kind].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn from_blob(blob: &[u8]) -> Option<Self> {
        let blob: &[u8; BLOB_BYTES] = blob.try_into().ok()?;
        let word = |at: usize| u64::from_le_bytes(blob[8 * at..8 * at + 8].try_into().expect("8 bytes"));
        let kind = match word(4) {
            0 => MemoryKind::Host,
            device => MemoryKind::Device(u32::try_from(device - 1).ok()?),
        };
        let (bytes, extent) = (word(2), word(3));
        (bytes <= extent).then_some(Self { number: word(0), key: word(1), bytes, extent, kind })
    }
}

/// Sends a descriptor of a region to these peers; the key blob by which they import it.
pub(crate) fn export(inner: &Inner, region: &Region, peers: &[Rank]) -> Result<Vec<u8>, ControlError> {
    let unsupported = |reason: String| ControlError::Unsupported { transport: inner.name(), what: "export", reason };
    let backing = region.keeper().downcast_ref::<Allocation>().and_then(Allocation::backing);
    let backing = backing.ok_or_else(|| {
        unsupported("memory that was registered cannot be shared with other processes; allocate it".to_owned())
    })?;
    let (number, key) = (inner.exports.fetch_add(1, Ordering::Relaxed), region.key().0);
    let (bytes, extent) = (region.bytes() as u64, backing.extent() as u64);
    let blob = Export { number, key, bytes, extent, kind: region.kind() }.to_blob();
    let descriptor = backing.descriptor().map_err(unsupported)?;
    for &rank in peers {
        let peer = inner.peer(rank).ok_or_else(|| unsupported(format!("{rank} is not connected")))?;
        let Some(channel) = &peer.channel else { continue };
        let sent = channel.send(&blob, Some(descriptor.as_fd()), Instant::now() + inner.timeout());
        sent.map_err(|error| match error {
            ChannelError::Gone { .. } => {
                ControlError::PeerGone { peer: rank, what: "exporting memory to it".to_owned() }
            }
            error => ControlError::System { what: format!("exporting memory to {rank}"), reason: error.to_string() },
        })?;
    }
    Ok(blob)
}

/// Maps what a peer, or this rank itself, has exported.
pub(crate) fn import(inner: &Arc<Inner>, peer: Rank, blob: &[u8]) -> Request<RemoteRegion> {
    let inner = Arc::clone(inner);
    let bad = |reason: String| ControlError::BadPeerData { peer, what: "key blob", reason };
    let Some(export) = Export::from_blob(blob) else {
        let reason = format!("a key blob of this transport has {BLOB_BYTES} bytes, this one {}", blob.len());
        return Request::done(Err(bad(reason)));
    };
    if peer != inner.rank() {
        return Request::pending(Importing { inner, peer, export });
    }
    let exported = inner.exports.load(Ordering::Relaxed).wrapping_sub(inner.token());
    let ours = export.number.wrapping_sub(inner.token()) < exported;
    let own = inner.own.lock().unwrap_or_else(PoisonError::into_inner);
    let found = own.iter().find(|(key, _)| ours && *key == export.key).and_then(|(_, allocation)| allocation.upgrade());
    drop(own);
    let found = found.ok_or_else(|| bad("it names no region of this rank, or one that is gone".to_owned()));
    Request::done(
        found.and_then(|allocation| remote(&inner, peer, export.bytes as usize, export.kind, Mapped::Own(allocation))),
    )
}

/// An import that waits for its descriptor.
struct Importing {
    inner: Arc<Inner>,
    peer: Rank,
    export: Export,
}

impl Importing {
    fn take(&self) -> Option<Result<OwnedFd, ControlError>> {
        let Some((peer, channel)) = self.inner.peer(self.peer).and_then(|p| Some((p, p.channel.as_ref()?))) else {
            let what = "importing a region before connecting to it".to_owned();
            return Some(Err(ControlError::PeerGone { peer: self.peer, what }));
        };
        let mut inbox = peer.inbox.lock().unwrap_or_else(PoisonError::into_inner);
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
                Err(error) => return Some(Err(self.refused(error.to_string()))),
            }
        }
    }

    fn map(&self, descriptor: OwnedFd) -> Result<Box<dyn Backing>, ControlError> {
        let extent = self.export.extent as usize;
        match self.export.kind {
            MemoryKind::Host => match SharedMemory::open(descriptor, extent) {
                Ok(memory) => Ok(Box::new(memory)),
                Err(error) => Err(self.bad(error.to_string())),
            },
            kind => {
                let devices = self.inner.devices().ok_or_else(|| self.bad(format!("it is {kind} memory")))?;
                devices.open(self.peer, descriptor, extent).map_err(|reason| self.refused(reason))
            }
        }
    }

    fn bad(&self, reason: String) -> ControlError {
        ControlError::BadPeerData { peer: self.peer, what: "region", reason }
    }

    fn refused(&self, reason: String) -> ControlError {
        ControlError::System { what: format!("importing memory of {}", self.peer), reason }
    }
}

impl Pending<RemoteRegion> for Importing {
    fn test(&mut self) -> Option<Result<RemoteRegion, ControlError>> {
        let mapped = self.take()?.and_then(|descriptor| self.map(descriptor));
        Some(mapped.and_then(|backing| {
            let Export { bytes, kind, .. } = self.export;
            remote(&self.inner, self.peer, bytes as usize, kind, Mapped::Peer(Some(backing)))
        }))
    }

    fn park(&mut self, timeout: Duration) {
        if let Some(channel) = self.inner.peer(self.peer).and_then(|peer| peer.channel.as_ref()) {
            // An interrupted or refused poll only means that the next test comes early.
            let _ = poll(&mut [PollFd::new(channel, PollFlags::IN)], Timespec::try_from(timeout).ok().as_ref());
        }
    }

    fn describe(&self) -> String {
        format!("{}: {} importing memory of {}", self.inner.name(), self.inner.rank(), self.peer)
    }
}
