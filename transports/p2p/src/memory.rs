//! Memory of the rank's device: made here, or mapped from a descriptor that a peer has sent.

use std::os::fd::OwnedFd;

use campanile_gpu::{Memory, VirtualMemory};
use campanile_shm::device::Backing;

/// Virtual memory behind a region.
pub(crate) struct DeviceMemory(pub(crate) VirtualMemory);

impl Backing for DeviceMemory {
    fn address(&self) -> *mut u8 {
        self.0.address() as *mut u8
    }

    fn extent(&self) -> usize {
        self.0.bytes()
    }

    fn descriptor(&self) -> Result<OwnedFd, String> {
        self.0.export().map_err(|error| format!("{} does not share memory: {error}", self.0.device().label()))
    }
}
