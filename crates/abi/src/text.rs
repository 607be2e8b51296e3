//! Texts and bytes that cross: a pointer and a length, or a callback that takes them.

use core::ffi::{c_char, c_void};

/// UTF-8 of known length, not NUL-terminated.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// First byte; may be anything if there are none.
    pub data: *const c_char,
    /// How many.
    pub bytes: usize,
}

/// Bytes of known length.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    /// First byte; may be anything if there are none.
    pub data: *const u8,
    /// How many.
    pub bytes: usize,
}

/// Where the host takes a text or a blob of any length.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Sink {
    /// First argument of the function.
    pub ctx: *mut c_void,
    /// Takes a copy of these bytes. Called again it appends.
    pub write: unsafe extern "C" fn(ctx: *mut c_void, data: *const c_void, bytes: usize),
}
