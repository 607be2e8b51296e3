//! A C queue as the core's. The hot path: each call is one call of the plugin.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use campanile_abi as abi;
use campanile_core::{Cancelled, Completion, Op, PostError, Queue, QueueError, Ticket};

use super::TableError;
use super::record::{failure, record};
use super::table::{Prefix, required_functions};
use super::transport::Opened;
use crate::codes::level_code;
use crate::{op_list, text};

type Post = unsafe extern "C" fn(*mut c_void, *const abi::Op, usize, *mut u64, *mut abi::Error) -> i32;
type Test = unsafe extern "C" fn(*mut c_void, u64, u32, *mut abi::Error) -> i32;
type Progress = unsafe extern "C" fn(*mut c_void, *mut abi::Error) -> i64;

/// A queue of a plugin.
pub(super) struct ImportedQueue {
    ctx: *mut c_void,
    number: u64,
    post: Post,
    test: Test,
    progress: Progress,
    /// What is absent is absent here.
    table: abi::Queue,
    /// The largest mark of a post, for a queue without a `flush`.
    last: AtomicU64,
    /// Queues end before their transport.
    _opened: Arc<Opened>,
}

// SAFETY: the functions of a queue may be called from any thread, by many at once (the contract of queues).
unsafe impl Send for ImportedQueue {}
// SAFETY: as above.
unsafe impl Sync for ImportedQueue {}

impl ImportedQueue {
    /// # Safety
    /// `table` is null or that of a queue which the plugin has just made; it is this queue's alone.
    pub(super) unsafe fn new(table: *const abi::Queue, opened: Arc<Opened>) -> Result<Self, TableError> {
        if table.is_null() {
            return Err(TableError::Null);
        }
        // SAFETY: the caller's promise.
        let table = unsafe { abi::Queue::prefix(table) };
        required_functions!(table, "queue": destroy, post, test, progress)?;
        let (Some(post), Some(test), Some(progress)) = (table.post, table.test, table.progress) else {
            unreachable!("they were there a line ago")
        };
        let (ctx, number) = (table.ctx, table.number);
        Ok(Self { ctx, number, post, test, progress, table, last: AtomicU64::new(0), _opened: opened })
    }

    #[inline(always)]
    fn check(&self, ticket: Ticket) -> Result<(), QueueError> {
        if ticket.queue() == self.number {
            return Ok(());
        }
        Err(QueueError::ForeignTicket { queue: self.number, given: ticket.queue() })
    }

    #[cold]
    #[inline(never)]
    fn failed<T>(&self, status: i64) -> Result<T, QueueError> {
        // A status fits: the plugin returns one of a few small numbers.
        Err(failure(status as i32).into_queue(self.number))
    }

    #[cold]
    #[inline(never)]
    fn refused(&self, status: i32) -> Result<Ticket, PostError> {
        Err(failure(status).into_post(self.number))
    }

    /// For a queue that cannot tell what was posted: marks never decrease along a queue.
    #[cold]
    fn remember(&self, mark: u64) {
        self.last.fetch_max(mark, Ordering::AcqRel);
    }
}

impl Drop for ImportedQueue {
    fn drop(&mut self) {
        if let Some(destroy) = self.table.destroy {
            // SAFETY: the queue's function and context, used for the last time.
            unsafe { destroy(self.ctx) };
        }
    }
}

impl Queue for ImportedQueue {
    fn post(&self, ops: &[Op]) -> Result<Ticket, PostError> {
        let mut mark = 0;
        // SAFETY: the queue's function and context; list, place and record are this call's.
        let status = unsafe { (self.post)(self.ctx, op_list::as_abi(ops), ops.len(), &raw mut mark, record()) };
        // Any other status is one that the plugin made up: what it meant is not success.
        if status != abi::STATUS_OK {
            return self.refused(status);
        }
        if self.table.flush.is_none() {
            self.remember(mark);
        }
        Ok(Ticket::new(self.number, mark))
    }

    fn ring(&self) -> Result<(), QueueError> {
        let Some(ring) = self.table.ring else { return Ok(()) };
        // SAFETY: the queue's function and context; the record is this call's.
        match unsafe { ring(self.ctx, record()) } {
            abi::STATUS_OK => Ok(()),
            status => self.failed(status.into()),
        }
    }

    fn flush(&self) -> Ticket {
        let mut mark = 0;
        if let Some(flush) = self.table.flush {
            // SAFETY: the queue's function and context; place and record are this call's.
            let status = unsafe { flush(self.ctx, &raw mut mark, record()) };
            if status != abi::STATUS_OK {
                // A snapshot that failed stands for all that could ever be posted: whoever tests it hears of the failure.
                let failure = failure(status);
                tracing::error!(queue = self.number, error = failure.describe(), "flush failed");
                mark = u64::MAX;
            }
        } else {
            mark = self.last.load(Ordering::Acquire);
        }
        Ticket::new(self.number, mark)
    }

    fn test(&self, ticket: Ticket, completion: Completion) -> Result<bool, QueueError> {
        self.check(ticket)?;
        // SAFETY: the queue's function and context; the record is this call's.
        match unsafe { (self.test)(self.ctx, ticket.mark(), level_code(completion), record()) } {
            0 => Ok(false),
            1 => Ok(true),
            status => self.failed(status.into()),
        }
    }

    fn progress(&self) -> Result<usize, QueueError> {
        // SAFETY: the queue's function and context; the record is this call's.
        match unsafe { (self.progress)(self.ctx, record()) } {
            status if status < 0 => self.failed(status),
            done => Ok(done as usize),
        }
    }

    fn cancel(&self, ticket: Ticket) -> Result<Cancelled, QueueError> {
        self.check(ticket)?;
        let Some(cancel) = self.table.cancel else { return Ok(Cancelled::TooLate) };
        // SAFETY: the queue's function and context; the record is this call's.
        match unsafe { cancel(self.ctx, ticket.mark(), record()) } {
            abi::CANCELLED_STOPPED => Ok(Cancelled::Stopped),
            abi::CANCELLED_TOO_LATE => Ok(Cancelled::TooLate),
            status => self.failed(status.into()),
        }
    }

    fn describe(&self) -> String {
        match self.table.describe {
            // SAFETY: the queue's function and context; the sink is this call's.
            Some(describe) => text::collect_text(|sink| unsafe { describe(self.ctx, sink) }).0,
            None => format!("queue {}, last mark {}", self.number, self.last.load(Ordering::Relaxed)),
        }
    }
}
