//! The guard around every function: a panic stays on this side.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use campanile_abi as abi;

use crate::failure::Failure;

/// What functions return: a number that is negative for errors.
pub(super) trait Status {
    fn of(status: i32) -> Self;
}

impl Status for i32 {
    fn of(status: i32) -> Self {
        status
    }
}

impl Status for i64 {
    fn of(status: i32) -> Self {
        status.into()
    }
}

/// Runs the body of `function`; its error, or its panic, goes into the record.
///
/// # Safety
/// `error` is the record of the call that runs.
#[inline(always)]
pub(super) unsafe fn guard<S: Status, E: Into<Failure>>(
    function: &'static str,
    error: *mut abi::Error,
    body: impl FnOnce() -> Result<S, E>,
) -> S {
    let body = || match body() {
        Ok(status) => status,
        // SAFETY: the caller's promise.
        Err(failure) => unsafe { failed(failure, error) },
    };
    // SAFETY: the caller's promise.
    unsafe { shield(function, error, body) }
}

/// Runs the body of `function`, which records its errors itself ([`failed`]); its panic goes into the record. Errors stand
/// in functions of their own, so that success is as short as it can be.
///
/// # Safety
/// `error` is the record of the call that runs.
#[inline(always)]
pub(super) unsafe fn shield<S: Status>(function: &'static str, error: *mut abi::Error, body: impl FnOnce() -> S) -> S {
    // SAFETY: the caller's promise.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| S::of(unsafe { panicked(function, &*panic, error) }))
}

/// Writes an error into the record; returns its status.
///
/// # Safety
/// `error` is the record of the call that runs.
#[cold]
#[inline(never)]
pub(super) unsafe fn failed<S: Status, E: Into<Failure>>(failure: E, error: *mut abi::Error) -> S {
    // SAFETY: the caller's promise.
    S::of(unsafe { failure.into().write(error) })
}

#[cold]
#[inline(never)]
unsafe fn panicked(function: &str, panic: &(dyn Any + Send), error: *mut abi::Error) -> i32 {
    // SAFETY: the caller of `guard` promises that the record is this call's.
    unsafe { Failure::panicked(function, &message(panic)).write(error) }
}

/// Runs the body of a function that has no error to give; `otherwise` is the answer after a panic.
#[inline(always)]
pub(super) fn answer<T>(function: &'static str, otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        tracing::error!(function, panic = message(&*panic), "a plugin panicked");
        otherwise
    })
}

/// What `body` returns, or what its panic says.
pub(super) fn caught<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|panic| message(&*panic))
}

#[cold]
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message").to_owned()
}
