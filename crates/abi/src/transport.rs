//! Transports: an opened backend of one rank.

use core::ffi::c_void;

use crate::{Bytes, Caps, Cost, Error, Queue, QueueOptions, Region, RemoteRegion, Request, Sink, Text};

/// Memory is put on huge pages where the machine gives them.
pub const HUGE_PAGES_AUTO: u32 = 0;
/// Memory is not put on huge pages.
pub const HUGE_PAGES_NEVER: u32 = 1;

/// Its process ended, or its transport was closed without a shutdown.
pub const FAULT_DIED: u32 = 1;
/// It left by an orderly shutdown while others still needed it.
pub const FAULT_LEFT: u32 = 2;
/// It did not signal within the deadline.
pub const FAULT_STALLED: u32 = 3;
/// It called abort.
pub const FAULT_ABORTED: u32 = 4;
/// It broke the protocol or its queue failed.
pub const FAULT_FAILED: u32 = 5;

/// Nothing happened.
pub const EVENT_NONE: u32 = 0;
/// A peer ended by an orderly shutdown.
pub const EVENT_LEFT: u32 = 1;
/// A peer's process ended, or its transport was closed without a shutdown.
pub const EVENT_DIED: u32 = 2;

/// Tell the peers that this rank is done; what is queued completes first.
pub const SHUTDOWN_DRAIN: u32 = 0;
/// Drop what is queued; peers that still need this rank learn of a fault.
pub const SHUTDOWN_ABORT: u32 = 1;

/// The word is not before `value`: `(int64_t)(word - value) >= 0`.
pub const CONDITION_AT_LEAST: u32 = 0;
/// The bits of the word under `mask` equal `value`.
pub const CONDITION_TAG: u32 = 1;

/// What a transport is told when it is opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Bytes of this struct, as the host knows it.
    pub struct_size: u64,
    /// Identity of the machine, equal for ranks that can share its memory.
    pub node: Text,
    /// Upper bound of every wait, in nanoseconds.
    pub timeout_ns: u64,
    /// This rank, in the world.
    pub rank: u32,
    /// Ranks of the world.
    pub ranks: u32,
    /// Ranks on this node.
    pub ranks_on_node: u32,
    /// CPUs that the ranks on this node may use together; 0: as many as this process may use now.
    pub cores: u32,
    /// Whether memory is put on huge pages: `HUGE_PAGES_*`.
    pub huge_pages: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// A peer to connect to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its address, as its transport gave it.
    pub address: Bytes,
    /// Who.
    pub rank: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// A connected peer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Endpoint {
    /// Who.
    pub peer: u32,
    /// How far away: `CLASS_*`.
    pub peer_class: u32,
}

/// One wait for one signal of one peer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// Bytes of this struct, as the host knows it.
    pub struct_size: u64,
    /// Handle of this rank's region that holds the word.
    pub region: *mut c_void,
    /// Offset of the word in it, a multiple of 8; the host has not checked it.
    pub offset: u64,
    /// Which bits count; of [`CONDITION_TAG`] only.
    pub mask: u64,
    /// What the word, or those bits of it, must be.
    pub value: u64,
    /// Which use of the set, for errors.
    pub epoch: u64,
    /// What is being done, for errors. Lives for ever.
    pub operation: Text,
    /// Which word it is, for errors. Lives for ever.
    pub slot: Text,
    /// How they are compared: `CONDITION_*`.
    pub condition: u32,
    /// The word's only writer.
    pub peer: u32,
}

/// What kernels need to use a window by a transport. The host says which window and zeroes the rest, the plugin fills that.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceView {
    /// Bytes of this struct, as the host knows it.
    pub struct_size: u64,
    /// Which device code reads it: its `kind`. Lives for ever.
    pub kind: Text,
    /// Version of the device API that this is written against.
    pub abi: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The host's: handle of this rank's region, on whose device the kernels run.
    pub region: *mut c_void,
    /// The host's: handles of the imported regions of all members in the order of the team, this rank's among them.
    pub remotes: *const *mut c_void,
    /// The host's: how many members.
    pub members: u64,
}

/// An opened backend of one rank, in memory of the plugin, constant until it is closed.
///
/// A *fault word* is `kind << 48 | reporter << 24 | culprit`, with `FAULT_*` and ranks; 0 is no fault.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Transport {
    /// Bytes of this struct, as the plugin knows it.
    pub struct_size: u64,
    /// First argument of the functions.
    pub ctx: *mut c_void,
    /// Ends it; a death to the peers unless `shutdown` came before.
    ///
    /// Required.
    pub close: Option<unsafe extern "C" fn(ctx: *mut c_void)>,
    /// 1 and what it gives for an operation (`OP_*`) on such memory of such a peer (`CLASS_*`), or 0 if it does not do
    /// it at all. `OP_SIGNAL` is not asked for: `OP_PUT_SIGNAL` answers for it.
    ///
    /// Required.
    pub caps:
        Option<unsafe extern "C" fn(ctx: *mut c_void, peer_class: u32, memory: u32, op: u32, caps: *mut Caps) -> i32>,
    /// 1 and the cost if it can reach a peer on that node, before connecting; 0 and the reason if it cannot.
    ///
    /// Required.
    pub reach: Option<
        unsafe extern "C" fn(ctx: *mut c_void, peer: u32, node: Text, cost: *mut Cost, reason: *const Sink) -> i32,
    >,
    /// Writes what peers need to connect to this rank, any length.
    ///
    /// Required.
    pub address: Option<unsafe extern "C" fn(ctx: *mut c_void, address: *const Sink, error: *mut Error) -> i32>,
    /// Connects to peers; every rank connects to the same ones, itself included. It is done once each of them has called it
    /// too; one that is gone is `STATUS_PEER_GONE`. The result is an array of `count` endpoints, in any order.
    ///
    /// Required.
    pub connect: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            peers: *const Peer,
            count: usize,
            endpoints: *mut Endpoint,
            request: *mut Request,
            error: *mut Error,
        ) -> i32,
    >,
    /// Registered memory of the transport's own choosing, zeroed, at least 8-byte aligned.
    ///
    /// Required.
    pub allocate: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            bytes: u64,
            memory: u32,
            region: *mut Region,
            request: *mut Request,
            error: *mut Error,
        ) -> i32,
    >,
    /// Ends a region of `allocate` or `register`.
    ///
    /// Required.
    pub release: Option<unsafe extern "C" fn(ctx: *mut c_void, region: *mut c_void)>,
    /// Writes the key blob by which these connected peers import a region, any length. Each of them imports it once.
    ///
    /// Required.
    pub export_key: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            region: *mut c_void,
            peers: *const u32,
            count: usize,
            blob: *const Sink,
            error: *mut Error,
        ) -> i32,
    >,
    /// A connected peer's exported region. What is not a blob of this very end of the peer, one that its rank gave before it
    /// opened this transport for instance, is `STATUS_BAD_PEER_DATA`. The peer may have released the region meanwhile: the
    /// import succeeds all the same, and every operation that names the region is an error.
    ///
    /// Required.
    pub import_key: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            peer: u32,
            blob: Bytes,
            region: *mut RemoteRegion,
            request: *mut Request,
            error: *mut Error,
        ) -> i32,
    >,
    /// Ends a region of `import_key`.
    ///
    /// Required.
    pub release_remote: Option<unsafe extern "C" fn(ctx: *mut c_void, region: *mut c_void)>,
    /// Makes a queue to a peer or an engine (`TARGET_*` and its number).
    ///
    /// Required.
    pub queue: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            target: u32,
            number: u32,
            options: *const QueueOptions,
            queue: *mut *const Queue,
            error: *mut Error,
        ) -> i32,
    >,
    /// The job's first fault as a fault word, 0 if there is none. Cheap: waits call it at every turn.
    ///
    /// Required.
    pub fault: Option<unsafe extern "C" fn(ctx: *mut c_void) -> u64>,
    /// Records a fault for all connected ranks unless there is one; returns the one that stands, the same on every rank.
    /// It may take as long as the ranks that run need to learn of it.
    ///
    /// Required.
    pub report: Option<unsafe extern "C" fn(ctx: *mut c_void, fault: u64) -> u64>,
    /// Why a connected peer is gone (`FAULT_*`), 0 while it is there. Never blocks; may cost a system call.
    ///
    /// Required.
    pub gone: Option<unsafe extern "C" fn(ctx: *mut c_void, peer: u32) -> u32>,
    /// Registers the caller's memory, which stays valid until the region is released.
    ///
    /// Without it memory cannot be registered, only allocated.
    pub register_memory: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            address: *mut c_void,
            bytes: u64,
            memory: u32,
            region: *mut Region,
            request: *mut Request,
            error: *mut Error,
        ) -> i32,
    >,
    /// First byte of a peer's region, where load / store reaches it, or `NULL`; valid until the region is released.
    ///
    /// Without it load / store reaches nobody.
    pub map: Option<unsafe extern "C" fn(ctx: *mut c_void, region: *mut c_void) -> *mut c_void>,
    /// Tells a peer that a word in its memory was stored through a mapped pointer.
    ///
    /// Without it a sleeping waiter looks later.
    pub notify: Option<unsafe extern "C" fn(ctx: *mut c_void, peer: u32)>,
    /// Waits for a signal, making progress meanwhile, and writes the word that fulfilled the condition. On return
    /// everything that the signal covers is visible to the caller.
    ///
    /// Without it the host looks at the word, which must be in memory of the host; it makes progress on this transport's
    /// queues, spins, yields and naps, looks at `fault` and at `gone`, and reports a peer that does not come in time as
    /// stalled, also if that one waits for another.
    pub signal_wait:
        Option<unsafe extern "C" fn(ctx: *mut c_void, wait: *const Wait, seen: *mut u64, error: *mut Error) -> i32>,
    /// The next thing that happened to a peer and was not told yet: `EVENT_*`, with the peer. Never blocks.
    ///
    /// Without it the host asks `gone` of each connected peer.
    pub poll_event: Option<unsafe extern "C" fn(ctx: *mut c_void, peer: *mut u32) -> u32>,
    /// Goes on without a peer that is known dead: no wait for another rank ends for its sake, and a fault whose culprit it is
    /// does not count, so that a later one of another rank is told. A wait for a signal of the masked peer itself ends at
    /// once, with `STATUS_INVALID`.
    ///
    /// Without it the host leaves out the peer's faults and its death, and keeps later faults that this rank reports to
    /// itself; other ranks learn of those only by their own waits.
    pub mask: Option<unsafe extern "C" fn(ctx: *mut c_void, peer: u32)>,
    /// Ends this rank's part: `SHUTDOWN_*`. A second call does nothing, whatever its mode.
    ///
    /// Without it an abort is reported as this rank's death, and a drain is nothing: `close` comes next, and is a death to the
    /// peers.
    pub shutdown: Option<unsafe extern "C" fn(ctx: *mut c_void, mode: u32, error: *mut Error) -> i32>,
    /// What kernels need to use a window by this transport: the view, and its bytes. `memory` is that of the window's part
    /// here. The bytes are a `uint64_t` for each member, the first byte of its part as load and store of the device reach it
    /// or 0 (never for this rank, and for nobody with [`FORM_MAP`](crate::FORM_MAP)); then a struct `Peer` of the header for
    /// each member, `peer_bytes` long. What they name is valid until one of the regions is released.
    ///
    /// Without it kernels cannot use the transport.
    pub device_view: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            memory: u32,
            view: *mut DeviceView,
            bytes: *const Sink,
            error: *mut Error,
        ) -> i32,
    >,
}
