//! Buffers of the benchmarks: page-aligned, present, on huge pages where the machine gives them, as an engine would have
//! its tensors.

use campanile::host::memory::{MemoryError, Pages, SharedMemory};

/// Bytes that nobody else has.
pub struct Buffer {
    memory: SharedMemory,
    bytes: usize,
}

impl Buffer {
    /// `bytes` zeroes.
    pub fn new(bytes: usize) -> Result<Self, MemoryError> {
        Ok(Self { memory: SharedMemory::create("campanile-buffer", bytes.max(1), Pages::Huge)?, bytes })
    }

    /// A copy of `bytes`.
    pub fn of(bytes: &[u8]) -> Result<Self, MemoryError> {
        let mut buffer = Self::new(bytes.len())?;
        buffer.as_mut_slice().copy_from_slice(bytes);
        Ok(buffer)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is mapped for that long; its descriptor never leaves this struct, so nobody else writes it.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.bytes) }
    }

    /// The bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.bytes) }
    }
}
