//! Memory that a transport knows.

use core::ffi::c_void;

/// Memory of the host. Kinds of memory are numbers: this one, or [`MEMORY_DEVICE_0`] plus the ordinal of a device.
pub const MEMORY_HOST: u32 = 0;
/// Memory of the first device.
pub const MEMORY_DEVICE_0: u32 = 1;

/// Registered memory of this rank. The host zeroes it, the plugin fills it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Bytes of this struct, as the host knows it.
    pub struct_size: u64,
    /// What operations carry; never used again for another region of the transport.
    pub key: u64,
    /// First byte; valid until the region is released.
    pub address: *mut c_void,
    /// By which the region is exported, waited in and released.
    pub handle: *mut c_void,
}

/// A peer's memory that this rank can address. The host zeroes it, the plugin fills it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RemoteRegion {
    /// Bytes of this struct, as the host knows it.
    pub struct_size: u64,
    /// What operations carry; never used again for another region of the transport.
    pub key: u64,
    /// Length.
    pub bytes: u64,
    /// By which the region is mapped and released.
    pub handle: *mut c_void,
    /// Where it lives: [`MEMORY_HOST`] or a device.
    pub memory: u32,
    /// Must be 0.
    pub reserved: u32,
}
