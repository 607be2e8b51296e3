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
pub(super) unsafe fn guard<S: Status>(
    function: &'static str,
    error: *mut abi::Error,
    body: impl FnOnce() -> Result<S, Failure>,
) -> S {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        // SAFETY: the caller's promise.
        Ok(Err(failure)) => S::of(unsafe { written(&failure, error) }),
        // SAFETY: the caller's promise.
        Err(panic) => S::of(unsafe { written(&Failure::panicked(function, &message(&*panic)), error) }),
    }
}

#[cold]
unsafe fn written(failure: &Failure, error: *mut abi::Error) -> i32 {
    // SAFETY: the caller of `guard` promises that the record is this call's.
    unsafe { failure.write(error) }
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
