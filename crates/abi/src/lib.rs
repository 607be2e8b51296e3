//! The plugin boundary: the C types by which a transport in a file of its own is used. No std, no dependencies.
//!
//! A plugin is a shared library with one entry symbol, [`ENTRY`], of type [`Entry`]. It returns a [`Plugin`]: who it
//! is, and functions. [`open`](Plugin::open) gives a [`Transport`], that gives [`Queue`]s, and control calls that take
//! time give [`Request`]s. Each of these is a struct of a size, a context and functions that take the context first.
//! What the functions must do is the contract of `campanile-core`'s traits, which these mirror one to one. The C header
//! is `include/campanile/transport.h`, generated from this crate by `cargo xtask headers`.
//!
//! # Rules
//!
//! * **Signatures** hold integers, pointers with lengths, and callbacks. Nobody frees what the other side allocated.
//!   What a call is given is valid until it returns, unless its documentation says otherwise.
//! * **Growth** is append-only. A struct that begins with `struct_size` says how long its writer knew it to be; nobody
//!   reads or writes a field beyond it. A function that is `NULL` or beyond it is absent: the documentation of each one
//!   says what the host does without. A newer [`MINOR`] only appends. A [`MAJOR`] changes.
//! * **Results** of functions that return `i32` or `i64` are negative for errors ([`Status`](STATUS_FAILED) codes), and what the
//!   function says otherwise. With an error, and only then, the callee fills the [`Error`] that it was given.
//! * **Unwinding** never crosses the boundary: no panic, no C++ exception.
//! * **Threads**: any number of them may call any function of a [`Transport`] or [`Queue`] at once, but what ends
//!   something (`close`, `destroy`, `release`, `drop`) is called once, after every other call on it has returned, and
//!   the functions of a [`Request`] are called by one thread at a time. Queues, regions and requests end before their
//!   transport.
//! * **For ever**: a plugin is never unloaded. The [`Plugin`] and all it points to never change and never go.
#![no_std]

mod caps;
mod device_code;
mod error;
mod host;
mod memory;
mod op;
mod plugin;
mod queue;
mod request;
mod text;
mod transport;

pub use caps::{
    ATOMICITY_CPU, ATOMICITY_GPU, ATOMICITY_NIC, CLASS_NODE, CLASS_OWN, CLASS_REMOTE, Caps, Cost, SIGNAL_ADD_NATIVE,
    SIGNAL_SET_NATIVE, SIGNAL_STRONG_NATIVE, SIGNAL_TARGET_PROGRESS,
};
pub use device_code::{DEVICE_API, DeviceCode, FORM_MAP, FORM_QUEUE, SCOPE_BLOCK, SCOPE_THREAD, SCOPE_WARP};
pub use error::{
    Error, STATUS_BAD_PEER_DATA, STATUS_BUSY, STATUS_COMPLETION, STATUS_FAILED, STATUS_FAULT, STATUS_FOREIGN_TICKET,
    STATUS_INVALID, STATUS_MEMORY, STATUS_NO_DEVICE, STATUS_OK, STATUS_PANICKED, STATUS_PEER_GONE, STATUS_PENDING,
    STATUS_POISONED, STATUS_TIMEOUT, STATUS_TOO_LARGE, STATUS_UNSUPPORTED,
};
pub use host::{Host, LOG_DEBUG, LOG_ERROR, LOG_INFO, LOG_TRACE, LOG_WARN};
pub use memory::{MEMORY_DEVICE_0, MEMORY_HOST, Region, RemoteRegion};
pub use op::{
    ATOMIC_ADD, ATOMIC_COMPARE_SWAP, ATOMIC_FETCH_ADD, ATOMIC_SWAP, Atomic, Get, INLINE_BYTES, LocalAddress, OP_ATOMIC,
    OP_FENCE, OP_GET, OP_PUT, OP_PUT_INLINE, OP_PUT_SIGNAL, OP_SIGNAL, Op, Payload, Put, PutInline, PutSignal,
    RemoteAddress, SIGNAL_ADD, SIGNAL_SET, STRENGTH_STRONG, STRENGTH_WEAK, SignalUpdate,
};
pub use plugin::{DeviceSink, ENTRY, Entry, MAGIC, MAJOR, MINOR, Plugin};
pub use queue::{
    CANCELLED_STOPPED, CANCELLED_TOO_LATE, INITIATOR_DEVICE, INITIATOR_HOST, LEVEL_LOCAL, LEVEL_REMOTE_CPU,
    LEVEL_REMOTE_GPU, LEVEL_REMOTE_NIC, Queue, QueueOptions, TARGET_ENGINE, TARGET_PEER,
};
pub use request::Request;
pub use text::{Bytes, Sink, Text};
pub use transport::{
    CONDITION_AT_LEAST, CONDITION_TAG, DeviceView, EVENT_DIED, EVENT_LEFT, EVENT_NONE, Endpoint, FAULT_ABORTED,
    FAULT_DIED, FAULT_FAILED, FAULT_LEFT, FAULT_STALLED, HUGE_PAGES_AUTO, HUGE_PAGES_NEVER, OpenOptions, Peer,
    SHUTDOWN_ABORT, SHUTDOWN_DRAIN, Transport, Wait,
};

/// Sizes and offsets that plugins rely on: a change here is a new [`MAJOR`].
#[cfg(target_pointer_width = "64")]
const _: () = {
    use core::mem::offset_of;

    assert!(size_of::<Text>() == 16 && size_of::<Bytes>() == 16 && size_of::<Sink>() == 16);
    assert!(size_of::<Op>() == 96 && align_of::<Op>() == 8 && offset_of!(Op, payload) == 8);
    assert!(offset_of!(PutSignal, bytes) == 32 && offset_of!(PutSignal, signal) == 40);
    assert!(size_of::<SignalUpdate>() == 32 && offset_of!(SignalUpdate, action) == 24);
    assert!(offset_of!(PutInline, bytes) == 64 && offset_of!(PutInline, target) == 72);
    assert!(offset_of!(Atomic, operand) == 8 && offset_of!(Atomic, compare) == 32 && offset_of!(Atomic, target) == 40);
    assert!(size_of::<Error>() == 680 && offset_of!(Error, what) == 40 && offset_of!(Error, reason) == 168);
    assert!(offset_of!(Plugin, struct_size) == 16 && offset_of!(Plugin, name) == 32);
    assert!(offset_of!(Plugin, device_code) == 104 && offset_of!(Plugin, open) == 128);
    assert!(size_of::<Plugin>() == 136);
    assert!(offset_of!(Host, log) == 32 && size_of::<Host>() == 56);
    assert!(offset_of!(OpenOptions, timeout_ns) == 24 && size_of::<OpenOptions>() == 56);
    assert!(size_of::<Caps>() == 64 && offset_of!(Caps, cost) == 48);
    assert!(size_of::<Region>() == 32 && size_of::<RemoteRegion>() == 40 && size_of::<Request>() == 48);
    assert!(size_of::<Peer>() == 24 && size_of::<Endpoint>() == 8 && size_of::<QueueOptions>() == 24);
    assert!(size_of::<Wait>() == 88 && offset_of!(Wait, operation) == 48 && offset_of!(Wait, peer) == 84);
    assert!(offset_of!(Queue, destroy) == 24 && offset_of!(Queue, post) == 32 && size_of::<Queue>() == 88);
    assert!(offset_of!(Transport, close) == 16 && offset_of!(Transport, gone) == 120);
    assert!(offset_of!(Transport, register_memory) == 128 && offset_of!(Transport, device_view) == 184);
    assert!(size_of::<Transport>() == 192 && size_of::<DeviceCode>() == 88 && size_of::<DeviceView>() == 56);
    assert!(offset_of!(DeviceCode, signal_bits) == 76 && offset_of!(DeviceView, region) == 32);
};
