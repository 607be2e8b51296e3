//! The root table: who a plugin is, and how it is opened.

use core::ffi::{CStr, c_void};

use crate::{DeviceCode, Error, Host, OpenOptions, Text, Transport};

/// Begins every root table: `"campanil"`, read as a little-endian number.
pub const MAGIC: u64 = 0x6c69_6e61_706d_6163;
/// Version of the boundary; another one needs a shim.
pub const MAJOR: u32 = 1;
/// Additions within the version; a newer one is accepted, what it adds is not used.
pub const MINOR: u32 = 0;

/// Name of the entry symbol.
pub const ENTRY: &CStr = c"campanile_transport_plugin";

/// The entry symbol: the plugin's table for a host of that major version, or `NULL` if it has none. A plugin may serve
/// several versions, and may return a table of an older one.
pub type Entry = unsafe extern "C" fn(host_major: u32) -> *const Plugin;

/// Where the host takes the devices that a probe finds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceSink {
    /// First argument of the function.
    pub ctx: *mut c_void,
    /// Takes a device: the name that `open` accepts, whether it is usable (0 or 1), and a line for people, or the reason
    /// why it was left out.
    pub device: unsafe extern "C" fn(ctx: *mut c_void, name: Text, usable: u32, detail: Text),
}

/// A plugin. It and all that it points to never change and never go.
///
/// The fields up to `struct_size` are at their places in every major version.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Plugin {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`MAJOR`] that the plugin was built for.
    pub abi_major: u32,
    /// [`MINOR`] that the plugin was built for.
    pub abi_minor: u32,
    /// Bytes of this struct, as the plugin knows it.
    pub struct_size: u64,
    /// First argument of the functions.
    pub ctx: *mut c_void,
    /// Name of the transport: what selection prints and accepts.
    pub name: Text,
    /// Version of the backend.
    pub version: Text,
    /// Who made it.
    pub vendor: Text,
    /// One line for people.
    pub summary: Text,
    /// Version of the device API that its device code is written against ([`DEVICE_API`](crate::DEVICE_API)); 0 if it has
    /// none. A host that has not that version refuses the plugin.
    pub device_abi: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Code for kernels, or `NULL`: kernels cannot use the transport. Experimental.
    pub device_code: *const DeviceCode,
    /// Called once, before every other function. The host is valid for ever.
    ///
    /// Without it nothing is initialised.
    pub init: Option<unsafe extern "C" fn(ctx: *mut c_void, host: *const Host, error: *mut Error) -> i32>,
    /// The devices that it could use, and a reason for each one left out. Cheap, and without a side effect.
    ///
    /// Required.
    pub probe: Option<unsafe extern "C" fn(ctx: *mut c_void, devices: *const DeviceSink, error: *mut Error) -> i32>,
    /// Opens a device for one rank; any number of times in a process.
    ///
    /// Required.
    pub open: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            device: Text,
            options: *const OpenOptions,
            transport: *mut *const Transport,
            error: *mut Error,
        ) -> i32,
    >,
}
