//! The seam to devices: what a transport that adds device memory to this one brings.
//!
//! Regions, keys, descriptors, waits, faults and the ring are the same for host and device memory; what differs stands
//! here. [`Devices`] gives and maps memory, [`Engine`] moves bytes for one queue in order, beside the CPU. Addresses are
//! those of the device at which the memory is mapped; nothing on this side of the seam loads from or stores to them.

use std::os::fd::OwnedFd;

use campanile_core::Rank;

/// Memory behind a region, which other processes map by a descriptor.
pub trait Backing: Send + Sync {
    /// First byte, for the processor that the memory belongs to.
    fn address(&self) -> *mut u8;

    /// Bytes behind the descriptor: at least those of the region.
    fn extent(&self) -> usize;

    /// A descriptor of it.
    ///
    /// # Errors
    /// In words, if the system shares no such memory.
    fn descriptor(&self) -> Result<OwnedFd, String>;
}

/// The device of one rank.
pub trait Devices: Send + Sync {
    /// Zeroed memory of at least `bytes` bytes on the device of that number; 0 bytes are legal.
    ///
    /// # Errors
    /// In words: no such device, too little memory.
    fn allocate(&self, bytes: usize, ordinal: u32) -> Result<Box<dyn Backing>, String>;

    /// Maps the memory of `extent` bytes that `peer` has shared by a descriptor.
    ///
    /// # Errors
    /// In words: the two devices do not reach each other, or the system refuses.
    fn open(&self, peer: Rank, descriptor: OwnedFd, extent: usize) -> Result<Box<dyn Backing>, String>;

    /// The engine of a new queue of `depth` slots.
    ///
    /// # Errors
    /// In words.
    fn engine(&self, depth: usize) -> Result<Box<dyn Engine>, String>;

    /// Value of a word, read after the call began. Takes a bounded time.
    ///
    /// # Errors
    /// In words: the device has failed.
    ///
    /// # Safety
    /// The 8 bytes are mapped and aligned.
    unsafe fn load(&self, word: *const u8) -> Result<u64, String>;

    /// Waits until the engines have done all that they started, before memory that it may touch is unmapped. Takes a
    /// bounded time; `false` if it was over first.
    fn settle(&self) -> bool;
}

/// Does what it is given in order. One thread at a time calls it, but any.
pub trait Engine: Send + Sync {
    /// Starts a copy between any two memories.
    ///
    /// # Errors
    /// In words, here and below: the device has failed.
    ///
    /// # Safety
    /// Both are mapped for `bytes` bytes until [`Devices::settle`].
    unsafe fn copy(&self, target: *mut u8, source: *const u8, bytes: usize) -> Result<(), String>;

    /// Starts a copy of `bytes`, which are the caller's again on return. `slot`, below the depth, is not given again before
    /// this one is done.
    ///
    /// # Errors
    /// In words.
    ///
    /// # Safety
    /// As of [`copy`](Self::copy), for the target.
    unsafe fn copy_inline(&self, target: *mut u8, bytes: &[u8], slot: usize) -> Result<(), String>;

    /// Starts the store of a word; whoever sees it sees all that was started before.
    ///
    /// # Errors
    /// In words.
    ///
    /// # Safety
    /// The 8 bytes are mapped and aligned until [`Devices::settle`].
    unsafe fn store(&self, word: *mut u8, value: u64) -> Result<(), String>;

    /// Starts a mark: [`reached`](Self::reached) says it once all that was started before is done and visible.
    ///
    /// # Errors
    /// In words.
    fn mark(&self, mark: u64) -> Result<(), String>;

    /// The last mark that was reached; 0 at first.
    ///
    /// # Errors
    /// In words.
    fn reached(&self) -> Result<u64, String>;
}
