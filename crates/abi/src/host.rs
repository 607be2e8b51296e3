//! What the host hands in.

use core::ffi::c_void;

use crate::Text;

/// An error that nobody else tells.
pub const LOG_ERROR: u32 = 1;
/// Something that the user should look at.
pub const LOG_WARN: u32 = 2;
/// Something that the user may want to know.
pub const LOG_INFO: u32 = 3;
/// For whoever looks for a fault.
pub const LOG_DEBUG: u32 = 4;
/// For whoever looks closely.
pub const LOG_TRACE: u32 = 5;

/// The host, as a plugin sees it; valid for ever once given to [`Plugin::init`](crate::Plugin::init).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Bytes of this struct, as the host knows it.
    pub struct_size: u64,
    /// Major version of the host.
    pub abi_major: u32,
    /// Minor version of the host.
    pub abi_minor: u32,
    /// First argument of the functions.
    pub ctx: *mut c_void,
    /// The most verbose level that anybody listens to, 0 for none; a guess at the time of `init`.
    pub log_level: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Takes a line for the log, from any thread. Always there; where nobody listens it does nothing.
    pub log: Option<unsafe extern "C" fn(ctx: *mut c_void, level: u32, target: Text, message: Text)>,
    /// Where counters go: `NULL` until a minor version says what it points to.
    pub counters: *const c_void,
    /// Where spans go: `NULL` until a minor version says what it points to.
    pub tracer: *const c_void,
}
