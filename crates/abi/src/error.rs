//! Statuses, and the record that says the rest of an error.

use core::ffi::c_char;

/// Done.
pub const STATUS_OK: i32 = 0;
/// A control call goes on: its request says when it is done.
pub const STATUS_PENDING: i32 = 1;

/// The system refused something: `what` was being done, and the `reason`.
pub const STATUS_FAILED: i32 = -1;
/// The transport does not do that: `what`, and the `reason`. Of a queue's `test`: `what` is the completion level.
pub const STATUS_UNSUPPORTED: i32 = -2;
/// It did not end in time. `numbers`: nanoseconds waited; of a queue also its position, and its state as the `reason`; of
/// `signal_wait` also the value of the word and the fault word that stands now. `what` was waited for.
pub const STATUS_TIMEOUT: i32 = -3;
/// A peer is gone. `numbers`: its rank. `what` was being done.
pub const STATUS_PEER_GONE: i32 = -4;
/// This memory cannot be had or registered. `numbers`: how many bytes, of which kind. The `reason`.
pub const STATUS_MEMORY: i32 = -5;
/// A peer sent something that makes no sense. `numbers`: its rank. `what` it was meant to be, and the `reason`.
pub const STATUS_BAD_PEER_DATA: i32 = -6;
/// There is no such device. The `reason` lists what there is.
pub const STATUS_NO_DEVICE: i32 = -7;
/// A queue is full for now. `numbers`: slots needed, slots free.
pub const STATUS_BUSY: i32 = -8;
/// A list never fits into the queue. `numbers`: slots needed, depth.
pub const STATUS_TOO_LARGE: i32 = -9;
/// An argument is not legal: the `reason`. Of `post`: `numbers`: position in the list.
pub const STATUS_INVALID: i32 = -10;
/// A queue has failed because an operation completed with an error. `numbers`: its position. The `reason`.
pub const STATUS_COMPLETION: i32 = -11;
/// A queue has failed because a producer reserved and did not publish, or the state makes no sense: the `reason`.
pub const STATUS_POISONED: i32 = -12;
/// A mark is not one that this queue gave.
pub const STATUS_FOREIGN_TICKET: i32 = -13;
/// The job has a fault. `numbers`: the fault word, the value of the word that was waited for.
pub const STATUS_FAULT: i32 = -14;
/// A panic or an exception was caught at the boundary: in `what`, and its message as the `reason`.
pub const STATUS_PANICKED: i32 = -15;

/// What an error says beside its status. Given by the host, filled by the plugin, and only with a negative status, so that
/// success costs nothing. What a status does not use is left alone: the host has zeroed it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Error {
    /// Bytes of this struct, as the host knows it.
    pub struct_size: u64,
    /// What the status says.
    pub numbers: [u64; 4],
    /// A short text, NUL-terminated UTF-8.
    pub what: [c_char; 128],
    /// What is wrong, what is allowed, what to do: NUL-terminated UTF-8.
    pub reason: [c_char; 512],
}
