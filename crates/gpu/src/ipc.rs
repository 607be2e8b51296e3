//! Legacy IPC handles: [`IpcHandle`], [`IpcMemory`]. The fallback where memory cannot be shared by descriptor.
//!
//! A handle names plain memory of its exporter, which has to outlive every importer: no library promises what happens
//! to a mapping whose exporter has died. Where [`VirtualMemory`](crate::VirtualMemory) works, use that.

use crate::calls::IpcBytes;
use crate::{Address, CallError, Device, DeviceMemory, Memory};

/// 64 bytes that another process on the same machine can open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcHandle {
    bytes: [u8; 64],
    /// Length of the memory.
    memory_bytes: usize,
}

impl IpcHandle {
    /// Names plain memory for other processes.
    ///
    /// # Errors
    /// Those of the call.
    pub fn new(memory: &DeviceMemory) -> Result<Self, CallError> {
        let device = memory.device();
        // SAFETY: plain memory of this table.
        let IpcBytes(bytes) = unsafe { device.gpu().calls().ipc_export(device.ordinal(), memory.address())? };
        Ok(Self { bytes, memory_bytes: memory.bytes() })
    }

    /// The handle as it was sent, and the length of the memory that it names.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 64], memory_bytes: usize) -> Self {
        Self { bytes, memory_bytes }
    }

    /// The bytes to send.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 64] {
        self.bytes
    }
}

/// Plain memory of another process, mapped.
#[derive(Debug)]
pub struct IpcMemory {
    device: Device,
    address: Address,
    bytes: usize,
}

impl IpcMemory {
    pub(crate) unsafe fn open(device: &Device, handle: &IpcHandle) -> Result<Self, CallError> {
        // SAFETY: the caller's promise that the exporter keeps the memory.
        let address = unsafe { device.gpu().calls().ipc_open(device.ordinal(), IpcBytes(handle.bytes))? };
        Ok(Self { device: device.clone(), address, bytes: handle.memory_bytes })
    }
}

// SAFETY: opened in `open`, closed in `drop`; the exporter keeps it, which the caller of `open` promised.
unsafe impl Memory for IpcMemory {
    fn address(&self) -> Address {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for IpcMemory {
    fn drop(&mut self) {
        // SAFETY: opened by this table, closed once.
        if let Err(error) = unsafe { self.device.gpu().calls().ipc_close(self.device.ordinal(), self.address) } {
            tracing::warn!(%error, "memory of another process was not closed");
        }
    }
}
