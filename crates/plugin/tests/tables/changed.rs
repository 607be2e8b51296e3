//! The shared-memory transport as a plugin whose tables are changed on their way to the host.

use std::ffi::c_void;
use std::sync::{LazyLock, OnceLock};

use campanile_plugin::{Exported, Imported, abi};
use campanile_shm::ShmPlugin;

static WHOLE: LazyLock<Exported> = LazyLock::new(|| Exported::new(&ShmPlugin, "a test"));
/// How the whole transport makes a queue.
static MAKE_QUEUE: OnceLock<MakeQueue> = OnceLock::new();

type MakeQueue = unsafe extern "C" fn(
    *mut c_void,
    u32,
    u32,
    *const abi::QueueOptions,
    *mut *const abi::Queue,
    *mut abi::Error,
) -> i32;

/// What is changed in tables that are good.
pub trait Change {
    fn transport(table: &mut abi::Transport);
    fn queue(table: &mut abi::Queue);
}

/// The whole plugin with another `open`.
pub fn opened_by(
    open: unsafe extern "C" fn(
        *mut c_void,
        abi::Text,
        *const abi::OpenOptions,
        *mut *const abi::Transport,
        *mut abi::Error,
    ) -> i32,
) -> Imported {
    // SAFETY: a table of this crate.
    let whole = unsafe { *WHOLE.table() };
    let other = Box::leak(Box::new(abi::Plugin { open: Some(open), init: None, ..whole }));
    // SAFETY: the same table with another `open`, which is there for ever.
    unsafe { Imported::new(other, &[]) }.expect("it is whole enough")
}

/// The plugin whose transports and queues are changed.
pub fn plugin<C: Change>() -> Imported {
    opened_by(open::<C>)
}

unsafe extern "C" fn open<C: Change>(
    ctx: *mut c_void,
    device: abi::Text,
    options: *const abi::OpenOptions,
    transport: *mut *const abi::Transport,
    error: *mut abi::Error,
) -> i32 {
    // SAFETY: the arguments of `open` handed on; what it gives is a table.
    unsafe {
        let status = (*WHOLE.table()).open.unwrap()(ctx, device, options, transport, error);
        if status == abi::STATUS_OK {
            let mut table = **transport;
            MAKE_QUEUE.get_or_init(|| table.queue.unwrap());
            table.queue = Some(queue::<C>);
            C::transport(&mut table);
            *transport = Box::leak(Box::new(table));
        }
        status
    }
}

unsafe extern "C" fn queue<C: Change>(
    ctx: *mut c_void,
    target: u32,
    number: u32,
    options: *const abi::QueueOptions,
    queue: *mut *const abi::Queue,
    error: *mut abi::Error,
) -> i32 {
    // SAFETY: the arguments of `queue` handed on; what it gives is a table.
    unsafe {
        let status = MAKE_QUEUE.get().unwrap()(ctx, target, number, options, queue, error);
        if status == abi::STATUS_OK {
            let mut table = **queue;
            C::queue(&mut table);
            *queue = Box::leak(Box::new(table));
        }
        status
    }
}
