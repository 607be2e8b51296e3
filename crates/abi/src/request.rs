//! Requests: control calls that go on.

use core::ffi::c_void;

use crate::{Error, Sink};

/// A control call that has been started and goes on. The host gives the struct with `struct_size` set and the rest
/// zeroed; a call that returns [`STATUS_PENDING`](crate::STATUS_PENDING) has filled it. Calls that end at once return
/// [`STATUS_OK`](crate::STATUS_OK) and leave it alone.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Bytes of this struct, as the host knows it.
    pub struct_size: u64,
    /// First argument of the functions.
    pub ctx: *mut c_void,
    /// Whether the call is done; never blocks. [`STATUS_PENDING`](crate::STATUS_PENDING), or `STATUS_OK` with the result
    /// written to `result`, which has the type that the starting call has; or an error. Not called again after that.
    ///
    /// Required.
    pub test: Option<unsafe extern "C" fn(ctx: *mut c_void, result: *mut c_void, error: *mut Error) -> i32>,
    /// Blocks on the call's own event until a test may succeed, for at most `timeout_ns`.
    ///
    /// Without it the host tests again after short naps.
    pub park: Option<unsafe extern "C" fn(ctx: *mut c_void, timeout_ns: u64)>,
    /// What is being waited for, for the time-out error.
    ///
    /// Without it the error names the call.
    pub describe: Option<unsafe extern "C" fn(ctx: *mut c_void, text: *const Sink)>,
    /// Ends the request; cancels the call if it goes on.
    ///
    /// Without it nothing is done.
    pub drop: Option<unsafe extern "C" fn(ctx: *mut c_void)>,
}
