//! The record that a call lends to a plugin for its error.
//!
//! One a thread, so that a call costs nothing for it: it is written with an error only, and made clean again by whoever
//! reads that.

use std::cell::UnsafeCell;

use campanile_abi as abi;

use crate::failure::Failure;

const CLEAN: abi::Error =
    abi::Error { struct_size: size_of::<abi::Error>() as u64, numbers: [0; 4], what: [0; 128], reason: [0; 512] };

thread_local! {
    static RECORD: UnsafeCell<abi::Error> = const { UnsafeCell::new(CLEAN) };
}

/// The record of this thread. Valid on this thread, until it ends.
#[inline(always)]
pub(super) fn record() -> *mut abi::Error {
    RECORD.with(UnsafeCell::get)
}

/// What the call that has just failed on this thread says; cleans the record.
#[cold]
pub(super) fn failure(status: i32) -> Failure {
    // SAFETY: this thread's record; no reference to it is held across a call, and none is given away.
    let record = unsafe { &mut *record() };
    let failure = Failure::read(status, record);
    *record = CLEAN;
    failure
}

/// Calls a function that returns a status.
pub(super) fn call(function: impl FnOnce(*mut abi::Error) -> i32) -> Result<i32, Failure> {
    let status = function(record());
    if status < 0 { Err(failure(status)) } else { Ok(status) }
}
