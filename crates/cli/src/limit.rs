//! The memory limit: what it takes as many ranks to copy the same bytes, and nothing else.
//!
//! Every rank copies, for each rank, as many bytes as the exchange moves there, in one run, into that rank's part of a
//! window; all at once, from memory that is not in a cache. No routing, no words, no rows.

use std::sync::Arc;

use campanile::host::clock::now_ns;
use campanile::host::copy::Copier;

use campanile::{Barrier, Communicator, MemoryKind, Window};

use crate::buffer::Buffer;

/// A copy of given bytes between all ranks.
pub struct Limit {
    window: Window,
    source: Buffer,
    /// Bytes from this rank to each rank.
    bytes: Vec<usize>,
    rank: usize,
    stride: usize,
}

impl Limit {
    /// Makes it, for `bytes[p]` bytes from this rank to rank p; no rank copies more than `most` to another. Collective.
    /// `None` where load / store does not reach every rank.
    pub fn new(comm: &Arc<Communicator>, bytes: Vec<usize>, most: usize) -> anyhow::Result<Option<Self>> {
        if !comm.maps_all() {
            return Ok(None);
        }
        let stride = most.next_multiple_of(4096);
        let window = comm.window(stride * comm.ranks(), MemoryKind::Host)?;
        let mut source = Buffer::new(bytes.iter().sum())?;
        source.as_mut_slice().fill(1);
        Ok(Some(Self { window, source, bytes, rank: comm.rank(), stride }))
    }

    /// Copies once, between two barriers; start and end of this rank's part in nanoseconds.
    pub fn copy(&self, barrier: &mut Barrier) -> anyhow::Result<[u64; 2]> {
        barrier.wait()?;
        let start = now_ns();
        let copier = Copier::for_bytes(self.source.as_slice().len());
        let (ranks, mut at) = (self.bytes.len(), 0);
        for step in 0..ranks {
            let peer = (self.rank + step) % ranks;
            let base = self.window.map(peer).expect("load / store reaches every rank (checked when it was made)");
            // SAFETY: this rank's part of the peer's window, `stride` bytes of which only this rank writes; the source
            // has the sum of all `bytes`.
            unsafe {
                let to = base.as_ptr().add(self.rank * self.stride);
                copier.copy(to, self.source.as_slice().as_ptr().add(at), self.bytes[peer]);
            }
            at += self.bytes[peer];
        }
        copier.fence();
        let end = now_ns();
        barrier.wait()?;
        Ok([start, end])
    }
}
