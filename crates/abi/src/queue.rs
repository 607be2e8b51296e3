//! Queues: ordered work to a peer or an engine.

use core::ffi::c_void;

use crate::{Error, Op, Sink};

/// A queue to one connected peer; the number is its rank.
pub const TARGET_PEER: u32 = 0;
/// A queue to an engine that reaches every peer; the number is the engine's.
pub const TARGET_ENGINE: u32 = 1;

/// Host code posts.
pub const INITIATOR_HOST: u32 = 0;
/// Kernels post.
pub const INITIATOR_DEVICE: u32 = 1;

/// Completion: the sources are reusable, results are there.
pub const LEVEL_LOCAL: u32 = 0;
/// Completion: target memory is updated and visible to the target's CPUs.
pub const LEVEL_REMOTE_CPU: u32 = 1;
/// Completion: target memory is updated and visible to the target's GPU.
pub const LEVEL_REMOTE_GPU: u32 = 2;
/// Completion: target memory is updated and visible to the target's NIC.
pub const LEVEL_REMOTE_NIC: u32 = 3;

/// Everything up to the mark had completed, or cannot be stopped.
pub const CANCELLED_TOO_LATE: i32 = 0;
/// What had not started will not run.
pub const CANCELLED_STOPPED: i32 = 1;

/// How a queue is made.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// Bytes of this struct, as the host knows it.
    pub struct_size: u64,
    /// Slots; an operation takes one or more.
    pub depth: u64,
    /// Who posts: `INITIATOR_*`.
    pub initiator: u32,
    /// Whether puts are to be delivered in order even where the caps do not promise it: 0 or 1.
    pub ordered: u32,
}

/// A queue, in memory of the plugin, constant until it is destroyed.
///
/// What stands for a post, or for all that had been published at some time, is a *mark*: a number that never decreases
/// along the queue. It stands for everything up to it, can be tested any number of times in any order, and stays
/// fulfilled once it is. Mark 0 stands for nothing and is always fulfilled.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// Bytes of this struct, as the plugin knows it.
    pub struct_size: u64,
    /// First argument of the functions.
    pub ctx: *mut c_void,
    /// Tells this queue from the others of the process, as well as the plugin can: errors name it, tickets carry it.
    pub number: u64,
    /// Ends it. What is queued and has not started does not run.
    ///
    /// Required.
    pub destroy: Option<unsafe extern "C" fn(ctx: *mut c_void)>,
    /// Queues a list as one contiguous publish, or nothing of it, and writes its mark. No operation is legal. Never waits for
    /// free slots: `STATUS_BUSY` for now, `STATUS_TOO_LARGE` for ever, `STATUS_INVALID` for an operation that is
    /// not legal, or what the queue failed with.
    ///
    /// Required.
    pub post: Option<
        unsafe extern "C" fn(ctx: *mut c_void, ops: *const Op, count: usize, mark: *mut u64, error: *mut Error) -> i32,
    >,
    /// 1 if a mark has come as far as the level (`LEVEL_*`), also if the queue has failed since; 0 if not yet, or what the
    /// queue failed with.
    ///
    /// Required.
    pub test: Option<unsafe extern "C" fn(ctx: *mut c_void, mark: u64, level: u32, error: *mut Error) -> i32>,
    /// Does or drives some work; the number of operations that it completed, or that were completed since it was last called.
    ///
    /// Required.
    pub progress: Option<unsafe extern "C" fn(ctx: *mut c_void, error: *mut Error) -> i64>,
    /// Rings the doorbell up to what has been written.
    ///
    /// Without it posting rings: the host does nothing.
    pub ring: Option<unsafe extern "C" fn(ctx: *mut c_void, error: *mut Error) -> i32>,
    /// A pure snapshot: writes the mark of everything that had been published. Never rings, never waits.
    ///
    /// Without it the host gives the largest mark that a post through it has returned.
    pub flush: Option<unsafe extern "C" fn(ctx: *mut c_void, mark: *mut u64, error: *mut Error) -> i32>,
    /// Best effort: `CANCELLED_*`. May still complete, may fail the queue.
    ///
    /// Without it everything is too late.
    pub cancel: Option<unsafe extern "C" fn(ctx: *mut c_void, mark: u64, error: *mut Error) -> i32>,
    /// The state of the queue's counters, for errors and people.
    ///
    /// Without it the host tells the last mark that it saw.
    pub describe: Option<unsafe extern "C" fn(ctx: *mut c_void, text: *const Sink)>,
}
