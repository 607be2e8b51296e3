//! A device: [`Device`], and what can be made on it.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::{
    Attribute, Cache, CallError, Coherence, Compile, CompileError, DeviceMemory, Event, Gpu, HostMemory, IpcHandle,
    IpcMemory, Module, Source, Stream, VirtualMemory,
};

/// One GPU, or one emulated.
#[derive(Clone, Debug)]
pub struct Device {
    gpu: Gpu,
    ordinal: u32,
    wave: u32,
    multiprocessors: u32,
}

impl Device {
    pub(crate) fn new(gpu: Gpu, ordinal: u32) -> Result<Self, CallError> {
        let attribute = |attribute| gpu.calls().attribute(ordinal, attribute).map(i32::unsigned_abs);
        let (wave, multiprocessors) = (attribute(Attribute::WaveSize)?, attribute(Attribute::Multiprocessors)?);
        Ok(Self { gpu, ordinal, wave, multiprocessors })
    }

    /// The table that it belongs to.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Its number among the devices that this process sees.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// What it is called: `cuda:0`, by its number among the devices that this process sees.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{}:{}", self.gpu.backend().name(), self.ordinal)
    }

    /// Lanes of a wave: 32 or 64.
    #[must_use]
    pub fn wave(&self) -> u32 {
        self.wave
    }

    /// Multiprocessors (compute units on AMD).
    #[must_use]
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// The product's name.
    ///
    /// # Errors
    /// Those of the call, here and below.
    pub fn name(&self) -> Result<String, CallError> {
        self.gpu.calls().device_name(self.ordinal)
    }

    /// What kernels are compiled for: `sm_90`, `gfx942`, `wave64`.
    ///
    /// # Errors
    /// [`CallError::Unsupported`] for a device that the kernels do not know.
    pub fn target(&self) -> Result<String, CallError> {
        self.gpu.calls().target(self.ordinal)
    }

    /// What it says of itself.
    ///
    /// # Errors
    /// Those of the call.
    pub fn attribute(&self, attribute: Attribute) -> Result<i32, CallError> {
        self.gpu.calls().attribute(self.ordinal, attribute)
    }

    /// Where it sits on the PCI bus, as `0000:1b:00.0`.
    ///
    /// # Errors
    /// Those of the call.
    pub fn pci_address(&self) -> Result<String, CallError> {
        let [domain, bus, device] =
            [Attribute::PciDomain, Attribute::PciBus, Attribute::PciDevice].map(|attribute| self.attribute(attribute));
        Ok(format!("{:04x}:{:02x}:{:02x}.0", domain?, bus?, device?))
    }

    /// Bytes of its memory: (free, total).
    ///
    /// # Errors
    /// Those of the call.
    pub fn memory_info(&self) -> Result<(usize, usize), CallError> {
        self.gpu.calls().memory_info(self.ordinal)
    }

    /// Whether it can load from and store to memory of `peer`.
    ///
    /// # Errors
    /// Those of the call.
    pub fn can_access(&self, peer: &Self) -> Result<bool, CallError> {
        if self.ordinal == peer.ordinal {
            return Ok(true);
        }
        self.gpu.calls().can_access_peer(self.ordinal, peer.ordinal)
    }

    /// Lets it reach plain memory of `peer`. [`VirtualMemory`] needs this not, but
    /// [`allow_access`](VirtualMemory::allow_access).
    ///
    /// # Errors
    /// Those of the call.
    pub fn enable_peer_access(&self, peer: &Self) -> Result<(), CallError> {
        if self.ordinal == peer.ordinal {
            return Ok(());
        }
        self.gpu.calls().enable_peer_access(self.ordinal, peer.ordinal)
    }

    /// Plain memory, not zeroed. Memory of 0 bytes has an address, too.
    ///
    /// # Errors
    /// Those of the call: out of memory.
    pub fn allocate(&self, bytes: usize, coherence: Coherence) -> Result<DeviceMemory, CallError> {
        DeviceMemory::new(self, bytes, coherence)
    }

    /// Pinned memory of the host, which all devices reach at the same address.
    ///
    /// # Errors
    /// Those of the call.
    pub fn allocate_host(&self, bytes: usize) -> Result<HostMemory, CallError> {
        HostMemory::new(self, bytes)
    }

    /// Memory that other processes can import: at least `bytes` bytes, a multiple of the granularity, not zeroed.
    ///
    /// # Errors
    /// Those of the call; [`CallError::Unsupported`] for a coherence that the backend does not share.
    pub fn allocate_virtual(&self, bytes: usize, coherence: Coherence) -> Result<VirtualMemory, CallError> {
        VirtualMemory::create(self, bytes, coherence)
    }

    /// Memory that another process has [exported](VirtualMemory::export), mapped for this device. `bytes` is what the
    /// exporter's [`bytes`](crate::Memory::bytes) says. The descriptor may be closed afterwards.
    ///
    /// # Errors
    /// Those of the call.
    pub fn import(&self, fd: BorrowedFd<'_>, bytes: usize) -> Result<VirtualMemory, CallError> {
        VirtualMemory::import(self, fd, bytes)
    }

    /// Plain memory of another process, by a legacy handle.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Safety
    /// The exporter keeps the memory until this is dropped. See [`IpcHandle`].
    pub unsafe fn open(&self, handle: &IpcHandle) -> Result<IpcMemory, CallError> {
        // SAFETY: the caller's promise.
        unsafe { IpcMemory::open(self, handle) }
    }

    /// A stream.
    ///
    /// # Errors
    /// Those of the call.
    pub fn stream(&self) -> Result<Stream, CallError> {
        Stream::new(self)
    }

    /// An event.
    ///
    /// # Errors
    /// Those of the call.
    pub fn event(&self) -> Result<Event, CallError> {
        Event::new(self)
    }

    /// Compiles a source for this device, or takes it from the cache, and loads it.
    ///
    /// # Errors
    /// [`CompileError`]: no compiler, the compiler's log, or the driver's refusal of the code.
    pub fn compile(&self, source: &Source, compile: &Compile, cache: &Cache) -> Result<Module, CompileError> {
        let image = compile.image(self, source, cache)?;
        // SAFETY: the compiler made it, now or for the cache, which belongs to the user.
        Ok(unsafe { self.load(&image)? })
    }

    /// Loads machine code, such as [`Compile::image`] gives.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Safety
    /// It is code of kernels: the emulator's is code of this process, which loading it runs.
    pub unsafe fn load(&self, image: &[u8]) -> Result<Module, CallError> {
        Module::new(self, image)
    }

    /// Waits for all work on the device, up to `patience`.
    ///
    /// # Errors
    /// [`CallError::Timeout`], and errors of kernels that ran before.
    pub fn synchronize(&self, patience: Duration) -> Result<(), CallError> {
        // An event cannot stand for all streams; a device-wide wait has no deadline, so it has a thread of its own.
        let (gpu, ordinal) = (self.gpu.clone(), self.ordinal);
        let (done, waiting) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(gpu.calls().device_synchronize(ordinal)));
        waiting
            .recv_timeout(patience)
            .unwrap_or(Err(CallError::Timeout { what: "the work of a device", milliseconds: patience.as_millis() }))
    }
}
