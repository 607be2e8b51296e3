//! Memory: plain ([`DeviceMemory`]), shared by descriptor ([`VirtualMemory`]), pinned on the host ([`HostMemory`]).

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::calls::AllocationHandle;
use crate::{Address, CallError, Device};

/// How accesses of other devices and the host see what a kernel stores before it ends. NVIDIA's memory is coherent in
/// every case; on AMD it is a property of the pages (MTYPE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Coherence {
    /// Cached; others see it after a release that writes caches back, or the end of the kernel.
    #[default]
    Coarse,
    /// Coherent for single accesses, cached where that stays invisible.
    Fine,
    /// Not cached in any L2: for words that others poll or write.
    Uncached,
}

/// Memory that a stream can copy to and from.
///
/// # Safety
/// `address` is mapped for the device, for `bytes` bytes, as long as the value lives.
pub unsafe trait Memory {
    /// First byte.
    fn address(&self) -> Address;
    /// Length in bytes.
    fn bytes(&self) -> usize;
}

/// Plain memory of a device. Freed when dropped, which waits for the device's work.
#[derive(Debug)]
pub struct DeviceMemory {
    device: Device,
    address: Address,
    bytes: usize,
}

impl DeviceMemory {
    pub(crate) fn new(device: &Device, bytes: usize, coherence: Coherence) -> Result<Self, CallError> {
        let address = device.gpu().calls().allocate(device.ordinal(), bytes.max(1), coherence)?;
        Ok(Self { device: device.clone(), address, bytes })
    }

    /// The device on which it lies.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// First byte.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }
}

// SAFETY: allocated in `new`, freed in `drop`.
unsafe impl Memory for DeviceMemory {
    fn address(&self) -> Address {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated by this table, freed once; whoever launched kernels on it promised that they are done.
        if let Err(error) = unsafe { self.device.gpu().calls().free(self.device.ordinal(), self.address) } {
            tracing::warn!(%error, "device memory was not freed");
        }
    }
}

/// Pinned memory of the host: zeroed, freed when dropped.
#[derive(Debug)]
pub struct HostMemory {
    device: Device,
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory that any thread may use; it hands out no references.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Self, CallError> {
        let pointer = device.gpu().calls().host_allocate(device.ordinal(), bytes.max(1))?;
        // SAFETY: allocated with this length, and nobody else has it yet.
        unsafe { pointer.write_bytes(0, bytes) };
        Ok(Self { device: device.clone(), pointer, bytes })
    }

    /// First byte, for the host. Devices write here while it is read: use atomics and raw copies.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.pointer
    }

    /// First byte, for devices.
    #[must_use]
    pub fn address(&self) -> Address {
        self.pointer as Address
    }
}

// SAFETY: allocated in `new`, freed in `drop`.
unsafe impl Memory for HostMemory {
    fn address(&self) -> Address {
        self.pointer as Address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: allocated by this table, freed once.
        if let Err(error) = unsafe { self.device.gpu().calls().host_free(self.device.ordinal(), self.pointer) } {
            tracing::warn!(%error, "pinned memory was not freed");
        }
    }
}

/// Memory that processes share by descriptor: physical memory, mapped at an address of its own in each of them.
///
/// The memory lives as long as any process has it mapped or holds its descriptor, so the death of the one that made it
/// takes nothing from the others.
///
/// ```
/// use std::os::fd::AsFd;
/// use campanile_gpu::{Coherence, Emulation, Gpu, Memory, Settings};
///
/// let gpu = Gpu::emulator(Emulation::default(), &Settings::default())?;
/// let (owner, peer) = (gpu.device(0)?, gpu.device(1)?);
/// let window = owner.allocate_virtual(4096, Coherence::Uncached)?;
/// // The descriptor goes to another process over a Unix socket; here a device of this one imports it.
/// let mapped = peer.import(window.export()?.as_fd(), window.bytes())?;
/// peer.stream()?.upload(&mapped, 0, b"hello")?;
/// let mut bytes = [0; 5];
/// owner.stream()?.download(&window, 0, &mut bytes)?;
/// assert_eq!(&bytes, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct VirtualMemory {
    device: Device,
    allocation: AllocationHandle,
    address: Address,
    bytes: usize,
}

impl VirtualMemory {
    pub(crate) fn create(device: &Device, bytes: usize, coherence: Coherence) -> Result<Self, CallError> {
        let calls = device.gpu().calls();
        let granularity = calls.granularity(device.ordinal(), coherence)?;
        let Some(bytes) = bytes.max(1).checked_next_multiple_of(granularity) else {
            return Err(CallError::Unsupported {
                backend: device.gpu().backend(),
                what: format!("allocate {bytes} bytes"),
                reason: format!("no address space holds them in units of {granularity}"),
            });
        };
        let allocation = calls.allocation_create(device.ordinal(), bytes, coherence)?;
        Self::map(device, allocation, bytes)
    }

    pub(crate) fn import(device: &Device, fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, CallError> {
        let allocation = device.gpu().calls().allocation_import(device.ordinal(), fd, bytes)?;
        Self::map(device, allocation, bytes)
    }

    /// Takes over the allocation, also when it fails.
    fn map(device: &Device, allocation: AllocationHandle, bytes: usize) -> Result<Self, CallError> {
        let calls = device.gpu().calls();
        // SAFETY: an allocation and a reservation of this table and these sizes; each is undone once, in the order in
        // which it was done.
        unsafe {
            let release = |error| {
                let _ = calls.allocation_release(allocation);
                error
            };
            let address = calls.address_reserve(device.ordinal(), bytes).map_err(release)?;
            let unreserve = |error| {
                let _ = calls.address_free(address, bytes);
                release(error)
            };
            calls.map(address, bytes, allocation).map_err(unreserve)?;
            // From here on dropping it undoes all.
            let memory = Self { device: device.clone(), allocation, address, bytes };
            memory.allow_access(device)?;
            Ok(memory)
        }
    }

    /// Lets another device of this process reach it too.
    ///
    /// # Errors
    /// Those of the call: no peer access.
    pub fn allow_access(&self, device: &Device) -> Result<(), CallError> {
        // SAFETY: mapped in `map`, with this size.
        unsafe { self.device.gpu().calls().set_access(device.ordinal(), self.address, self.bytes) }
    }

    /// A descriptor that another process can [import](Device::import), to be sent over a Unix socket.
    ///
    /// # Errors
    /// Those of the call.
    pub fn export(&self) -> Result<OwnedFd, CallError> {
        // SAFETY: the allocation is released in `drop` only.
        unsafe { self.device.gpu().calls().allocation_export(self.allocation) }
    }

    /// The device for which it was made or imported.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// First byte.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }
}

// SAFETY: mapped in `map`, unmapped in `drop`.
unsafe impl Memory for VirtualMemory {
    fn address(&self) -> Address {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for VirtualMemory {
    fn drop(&mut self) {
        let calls = self.device.gpu().calls();
        // SAFETY: what `map` did, undone once; whoever launched kernels on it promised that they are done.
        let undone = unsafe {
            calls
                .unmap(self.address, self.bytes)
                .and(calls.address_free(self.address, self.bytes))
                .and(calls.allocation_release(self.allocation))
        };
        if let Err(error) = undone {
            tracing::warn!(%error, "virtual memory was not given back");
        }
    }
}
