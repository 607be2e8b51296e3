//! A plugin that answers with numbers which mean nothing: none of them is taken for success.

use std::ffi::c_void;
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use campanile_core::{
    Completion, HugePages, Node, OpenOptions, PostError, QueueError, QueueOptions, QueueTarget, Rank, TransportPlugin,
};
use campanile_plugin::{Exported, Imported, abi};
use campanile_shm::ShmPlugin;

static WHOLE: LazyLock<Exported> = LazyLock::new(|| Exported::new(&ShmPlugin, "a test"));
static MAKE_QUEUE: OnceLock<MakeQueue> = OnceLock::new();

type MakeQueue = unsafe extern "C" fn(
    *mut c_void,
    u32,
    u32,
    *const abi::QueueOptions,
    *mut *const abi::Queue,
    *mut abi::Error,
) -> i32;

unsafe extern "C" fn open(
    ctx: *mut c_void,
    device: abi::Text,
    options: *const abi::OpenOptions,
    transport: *mut *const abi::Transport,
    error: *mut abi::Error,
) -> i32 {
    // SAFETY: the arguments of `open` handed on; what it gives is a table.
    unsafe {
        let status = (*WHOLE.table()).open.unwrap()(ctx, device, options, transport, error);
        let mut table = **transport;
        MAKE_QUEUE.get_or_init(|| table.queue.unwrap());
        table.queue = Some(queue);
        *transport = Box::leak(Box::new(table));
        status
    }
}

unsafe extern "C" fn queue(
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
        let odd = abi::Queue { post: Some(post), test: Some(test), ring: Some(ring), cancel: Some(cancel), ..**queue };
        *queue = Box::leak(Box::new(odd));
        status
    }
}

unsafe extern "C" fn post(_: *mut c_void, _: *const abi::Op, _: usize, _: *mut u64, _: *mut abi::Error) -> i32 {
    7
}

unsafe extern "C" fn test(_: *mut c_void, _: u64, _: u32, _: *mut abi::Error) -> i32 {
    2
}

unsafe extern "C" fn ring(_: *mut c_void, _: *mut abi::Error) -> i32 {
    1
}

unsafe extern "C" fn cancel(_: *mut c_void, _: u64, _: *mut abi::Error) -> i32 {
    3
}

#[test]
fn no_made_up_status_is_success() {
    // SAFETY: a table of this crate.
    let whole = unsafe { *WHOLE.table() };
    let odd = Box::leak(Box::new(abi::Plugin { open: Some(open), init: None, ..whole }));
    // SAFETY: the same table with another `open`, which is there for ever.
    let plugin = unsafe { Imported::new(odd, &[]) }.unwrap();
    let options = OpenOptions {
        rank: Rank(0),
        ranks: 1,
        node: Node::new("here"),
        ranks_on_node: 1,
        cores: 1,
        huge_pages: HugePages::Never,
        timeout: Duration::from_secs(20),
    };
    let transport = plugin.open("node", options).unwrap();
    transport.connect(&[(Rank(0), transport.address())]).wait(Duration::from_secs(20)).unwrap();
    let queue = transport.queue(QueueTarget::Peer(Rank(0)), QueueOptions::default()).unwrap();
    let ticket = queue.flush();
    assert!(matches!(queue.post(&[]), Err(PostError::Queue(QueueError::Poisoned { .. }))));
    assert!(matches!(queue.test(ticket, Completion::Local), Err(QueueError::Poisoned { .. })));
    assert!(matches!(queue.ring(), Err(QueueError::Poisoned { .. })));
    assert!(matches!(queue.cancel(ticket), Err(QueueError::Poisoned { .. })));
}
