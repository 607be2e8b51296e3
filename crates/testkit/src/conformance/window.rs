//! Memory that every rank has and every other one reaches, made straight from a transport.

use std::sync::atomic::AtomicU64;

use campanile_core::{LocalAddress, MemoryKind, Rank, Region, RemoteAddress, RemoteRegion, Transport};

use super::finding::{Expected, Proof};
use super::stage::Stage;

/// A region of this rank and what it imported of the others, itself included.
pub(super) struct Window {
    pub(super) region: Region,
    pub(super) remotes: Vec<RemoteRegion>,
}

impl Window {
    /// `bytes` on each rank. Collective.
    pub(super) fn new(stage: &Stage, transport: &dyn Transport, bytes: usize) -> Proof<Self> {
        let region = transport.allocate(bytes, MemoryKind::Host).wait(stage.timeout()).expected("memory")?;
        let everyone: Vec<_> = (0..stage.ranks()).map(Rank::new).collect();
        let blob = transport.export(&region, &everyone).expected("an export")?;
        let blobs = stage.exchange(&blob)?;
        let import = |(peer, blob): (usize, Vec<u8>)| {
            transport.import(Rank::new(peer), &blob).wait(stage.timeout()).expected("an import")
        };
        let remotes = blobs.into_iter().enumerate().map(import).collect::<Proof<_>>()?;
        stage.meet()?;
        Ok(Self { region, remotes })
    }

    pub(super) fn local(&self, offset: usize) -> LocalAddress {
        LocalAddress { region: self.region.key(), offset: offset as u64 }
    }

    pub(super) fn remote(&self, peer: usize, offset: usize) -> RemoteAddress {
        RemoteAddress { region: self.remotes[peer].key(), offset: offset as u64 }
    }

    /// This rank's word at an aligned offset.
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.region.bytes(), "a case uses words inside its window");
        // SAFETY: inside the region and aligned (checked), alive as long as `self`; cases use words as atomics only.
        unsafe { AtomicU64::from_ptr(self.region.address().add(offset).cast()) }
    }

    /// Writes where no peer does meanwhile.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.region.bytes(), "a case writes inside its window");
        // SAFETY: inside the region (checked), alive as long as `self`; races are excluded by the case.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.region.address().add(offset), bytes.len()) };
    }

    /// Reads what a signal, a completion or a meeting has announced.
    pub(super) fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        assert!(offset + bytes <= self.region.bytes(), "a case reads inside its window");
        let mut seen = vec![0; bytes];
        // SAFETY: inside the region (checked), alive as long as `self`; a transport that announces too early races here,
        // which is what the case is to find.
        unsafe { std::ptr::copy_nonoverlapping(self.region.address().add(offset), seen.as_mut_ptr(), bytes) };
        seen
    }
}

/// Bytes that differ from place to place and from number to number.
pub(super) fn pattern(number: u64, bytes: usize) -> Vec<u8> {
    let word = |at: u64| (number << 32 | at).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let mut pattern = vec![0; bytes.next_multiple_of(8)];
    pattern.chunks_exact_mut(8).zip(0..).for_each(|(chunk, at)| chunk.copy_from_slice(&word(at).to_le_bytes()));
    pattern.truncate(bytes);
    pattern
}
