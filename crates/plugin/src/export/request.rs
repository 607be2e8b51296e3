//! A started control call as the C table.

use std::ffi::c_void;
use std::time::Duration;

use campanile_abi as abi;
use campanile_core::Request;

use super::guard::{answer, guard};
use crate::failure::Failure;
use crate::text;

/// Writes a result to where the host wants it.
type Deliver<T> = fn(T, *mut c_void);

struct Started<T> {
    pending: Request<T>,
    deliver: Deliver<T>,
}

/// Hands out what a call started: its result if it ended at once, else a request that will have it. A call that goes on is
/// not tested here: one that nobody tested leaves nothing when it is dropped.
///
/// # Safety
/// `result` is where the host wants a result of this type, `request` where it wants a request: both of the call that runs.
pub(super) unsafe fn start<T: 'static>(
    mut pending: Request<T>,
    deliver: Deliver<T>,
    result: *mut c_void,
    request: *mut abi::Request,
) -> Result<i32, Failure> {
    if let Some(done) = pending.is_done().then(|| pending.test()).flatten() {
        deliver(done?, result);
        return Ok(abi::STATUS_OK);
    }
    let ctx = Box::into_raw(Box::new(Started { pending, deliver })).cast();
    // SAFETY: the caller's promise; version 1.0 of the struct has all these fields.
    let request = unsafe { &mut *request };
    request.ctx = ctx;
    request.test = Some(test::<T>);
    request.park = Some(park::<T>);
    request.describe = Some(describe::<T>);
    request.drop = Some(drop_started::<T>);
    Ok(abi::STATUS_PENDING)
}

/// # Safety
/// `ctx` is of a request with a result of this type, and no other call uses it (the contract of requests).
unsafe fn started<'a, T>(ctx: *mut c_void) -> &'a mut Started<T> {
    // SAFETY: the caller's promise.
    unsafe { &mut *ctx.cast() }
}

unsafe extern "C" fn test<T>(ctx: *mut c_void, result: *mut c_void, error: *mut abi::Error) -> i32 {
    // SAFETY: the context is ours, result and record are this call's (the contract of `test`).
    unsafe {
        guard("test of a request", error, || {
            let started = started::<T>(ctx);
            match started.pending.test() {
                None => Ok::<_, Failure>(abi::STATUS_PENDING),
                Some(done) => {
                    (started.deliver)(done?, result);
                    Ok(abi::STATUS_OK)
                }
            }
        })
    }
}

unsafe extern "C" fn park<T>(ctx: *mut c_void, timeout_ns: u64) {
    // SAFETY: the context is ours (the contract of `park`).
    let started = unsafe { started::<T>(ctx) };
    answer("park of a request", (), || started.pending.park(Duration::from_nanos(timeout_ns)));
}

unsafe extern "C" fn describe<T>(ctx: *mut c_void, sink: *const abi::Sink) {
    // SAFETY: the context is ours, the sink is this call's (the contract of `describe`).
    unsafe {
        let started = started::<T>(ctx);
        answer("describe of a request", (), || text::write(sink, started.pending.describe().as_bytes()));
    }
}

unsafe extern "C" fn drop_started<T>(ctx: *mut c_void) {
    // SAFETY: the context is ours and the host uses it no more (the contract of `drop`).
    let started = unsafe { Box::from_raw(ctx.cast::<Started<T>>()) };
    answer("drop of a request", (), || drop(started));
}
