//! A Rust [`Queue`] as the C table. The hot path: each function is a look at its arguments and one call.

use std::ffi::c_void;
use std::sync::Arc;

use campanile_abi as abi;
use campanile_core::{Cancelled, PostError, Queue, QueueError, Ticket};

use super::guard::{failed, shield};
use super::{answer, guard};
use crate::failure::Failure;
use crate::{codes, op_list, text};

/// A queue and its table, which points back to it.
struct Exported {
    table: abi::Queue,
    /// What `_keeper` keeps.
    queue: *const dyn Queue,
    _keeper: Arc<dyn Queue>,
}

/// The table of a queue, until it is destroyed.
pub(super) fn export(inner: Arc<dyn Queue>) -> *const abi::Queue {
    let table = abi::Queue {
        struct_size: size_of::<abi::Queue>() as u64,
        ctx: std::ptr::null_mut(),
        // Every ticket of a queue carries the queue's number.
        number: inner.flush().queue(),
        destroy: Some(destroy),
        post: Some(post),
        test: Some(test),
        progress: Some(progress),
        ring: Some(ring),
        flush: Some(flush),
        cancel: Some(cancel),
        describe: Some(describe),
    };
    let exported = Box::into_raw(Box::new(Exported { table, queue: Arc::as_ptr(&inner), _keeper: inner }));
    // SAFETY: the box was made here and nobody else has it yet.
    unsafe {
        (*exported).table.ctx = exported.cast();
        &raw const (*exported).table
    }
}

/// # Safety
/// `ctx` is of a queue that was not destroyed (the contract of every function).
#[inline(always)]
unsafe fn exported<'a>(ctx: *mut c_void) -> &'a Exported {
    // SAFETY: the caller's promise; the queue is only ever read.
    unsafe { &*ctx.cast() }
}

impl Exported {
    #[inline(always)]
    fn queue(&self) -> &dyn Queue {
        // SAFETY: the keeper lives as long as this struct.
        unsafe { &*self.queue }
    }

    #[inline(always)]
    fn ticket(&self, mark: u64) -> Ticket {
        Ticket::new(self.table.number, mark)
    }

    #[cold]
    fn unknown_level(&self, level: u32) -> QueueError {
        let reason = "this plugin does not know it".to_owned();
        QueueError::Unsupported { queue: self.table.number, level: format!("level {level}"), reason }
    }
}

#[cold]
fn unknown_op(index: usize) -> PostError {
    PostError::Invalid { index, reason: "an operation that this plugin does not know".to_owned() }
}

unsafe extern "C" fn destroy(ctx: *mut c_void) {
    // SAFETY: the context is ours and the host uses it no more (the contract of `destroy`).
    let exported = unsafe { Box::from_raw(ctx.cast::<Exported>()) };
    answer("destroy", (), || drop(exported));
}

unsafe extern "C" fn post(
    ctx: *mut c_void,
    ops: *const abi::Op,
    count: usize,
    mark: *mut u64,
    error: *mut abi::Error,
) -> i32 {
    // SAFETY: the context is ours, list, place and record are this call's (the contract of `post`).
    unsafe {
        shield("post", error, || {
            let ops = match op_list::from_abi(ops, count) {
                Ok(ops) => ops,
                Err(index) => return failed(unknown_op(index), error),
            };
            match exported(ctx).queue().post(ops) {
                Ok(ticket) => {
                    *mark = ticket.mark();
                    abi::STATUS_OK
                }
                Err(refused) => failed(refused, error),
            }
        })
    }
}

unsafe extern "C" fn test(ctx: *mut c_void, mark: u64, level: u32, error: *mut abi::Error) -> i32 {
    // SAFETY: the context is ours, the record is this call's (the contract of `test`).
    unsafe {
        shield("test", error, || {
            let queue = exported(ctx);
            let Some(completion) = codes::completion(level) else { return failed(queue.unknown_level(level), error) };
            match queue.queue().test(queue.ticket(mark), completion) {
                Ok(done) => done.into(),
                Err(poisoned) => failed(poisoned, error),
            }
        })
    }
}

unsafe extern "C" fn progress(ctx: *mut c_void, error: *mut abi::Error) -> i64 {
    // SAFETY: the context is ours, the record is this call's (the contract of `progress`).
    unsafe {
        shield("progress", error, || match exported(ctx).queue().progress() {
            Ok(done) => done as i64,
            Err(poisoned) => failed(poisoned, error),
        })
    }
}

unsafe extern "C" fn ring(ctx: *mut c_void, error: *mut abi::Error) -> i32 {
    // SAFETY: the context is ours, the record is this call's (the contract of `ring`).
    unsafe {
        shield("ring", error, || match exported(ctx).queue().ring() {
            Ok(()) => abi::STATUS_OK,
            Err(poisoned) => failed(poisoned, error),
        })
    }
}

unsafe extern "C" fn flush(ctx: *mut c_void, mark: *mut u64, error: *mut abi::Error) -> i32 {
    // SAFETY: the context is ours, place and record are this call's (the contract of `flush`).
    unsafe {
        guard("flush", error, || {
            *mark = exported(ctx).queue().flush().mark();
            Ok::<_, Failure>(abi::STATUS_OK)
        })
    }
}

unsafe extern "C" fn cancel(ctx: *mut c_void, mark: u64, error: *mut abi::Error) -> i32 {
    // SAFETY: the context is ours, the record is this call's (the contract of `cancel`).
    unsafe {
        guard("cancel", error, || {
            let queue = exported(ctx);
            queue.queue().cancel(queue.ticket(mark)).map(|cancelled| match cancelled {
                Cancelled::TooLate => abi::CANCELLED_TOO_LATE,
                Cancelled::Stopped => abi::CANCELLED_STOPPED,
            })
        })
    }
}

unsafe extern "C" fn describe(ctx: *mut c_void, sink: *const abi::Sink) {
    // SAFETY: the context is ours, the sink is this call's (the contract of `describe`).
    unsafe { answer("describe", (), || text::write(sink, exported(ctx).queue().describe().as_bytes())) };
}
