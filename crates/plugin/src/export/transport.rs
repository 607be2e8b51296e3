//! A Rust [`Transport`] as the C table.

use std::ffi::c_void;
use std::sync::Arc;

use campanile_abi as abi;
use campanile_core::{
    Endpoint, Event, Fault, Memory, Node, QueueOptions, Rank, Reach, Region, RemoteRegion, Shutdown, Transport, Wait,
};

use super::request::start;
use super::{answer, guard, queue};
use crate::codes;
use crate::failure::Failure;
use crate::text;

/// A transport and its table, which points back to it.
struct Exported {
    table: abi::Transport,
    inner: Arc<dyn Transport>,
}

/// The table of an opened transport, until it is closed.
pub(super) fn export(inner: Arc<dyn Transport>) -> *const abi::Transport {
    let table = abi::Transport {
        struct_size: size_of::<abi::Transport>() as u64,
        ctx: std::ptr::null_mut(),
        close: Some(close),
        caps: Some(caps),
        reach: Some(reach),
        address: Some(address),
        connect: Some(connect),
        allocate: Some(allocate),
        release: Some(release),
        export_key: Some(export_key),
        import_key: Some(import_key),
        release_remote: Some(release_remote),
        queue: Some(make_queue),
        fault: Some(fault),
        report: Some(report),
        gone: Some(gone),
        register_memory: Some(register_memory),
        map: Some(map),
        notify: Some(notify),
        signal_wait: Some(signal_wait),
        poll_event: Some(poll_event),
        mask: Some(mask),
        shutdown: Some(shutdown),
        device_view: Some(device_view),
    };
    let exported = Box::into_raw(Box::new(Exported { table, inner }));
    // SAFETY: the box was made here and nobody else has it yet.
    unsafe {
        (*exported).table.ctx = exported.cast();
        &raw const (*exported).table
    }
}

/// # Safety
/// `ctx` is of a transport that was not closed (the contract of every function).
unsafe fn transport<'a>(ctx: *mut c_void) -> &'a dyn Transport {
    // SAFETY: the caller's promise; the transport is only ever read.
    unsafe { &*(*ctx.cast::<Exported>()).inner }
}

unsafe extern "C" fn close(ctx: *mut c_void) {
    // SAFETY: the context is ours and the host uses it no more (the contract of `close`).
    let exported = unsafe { Box::from_raw(ctx.cast::<Exported>()) };
    answer("close", (), || drop(exported));
}

unsafe extern "C" fn caps(ctx: *mut c_void, class: u32, memory: u32, op: u32, caps: *mut abi::Caps) -> i32 {
    answer("caps", 0, || {
        let (Some(class), Some(op)) = (codes::peer_class(class), codes::op_kind(op)) else { return 0 };
        // SAFETY: the context is ours (the contract of `caps`).
        let given = unsafe { transport(ctx) }.caps(class, codes::memory_kind(memory), op);
        let Some(given) = given else { return 0 };
        // SAFETY: the record is this call's, and version 1.0 of it has all that is written; its size stays the host's.
        unsafe { *caps = abi::Caps { struct_size: (*caps).struct_size, ..codes::caps_record(&given) } };
        1
    })
}

unsafe extern "C" fn reach(
    ctx: *mut c_void,
    peer: u32,
    node: abi::Text,
    cost: *mut abi::Cost,
    reason: *const abi::Sink,
) -> i32 {
    answer("reach", 0, || {
        // SAFETY: the context is ours, everything else is this call's (the contract of `reach`).
        unsafe {
            match transport(ctx).reach(Rank(peer), &Node::new(text::copy(node))) {
                Reach::Yes(given) => {
                    *cost = codes::cost_record(given);
                    1
                }
                Reach::No(given) => {
                    text::write(reason, given.as_bytes());
                    0
                }
            }
        }
    })
}

unsafe extern "C" fn address(ctx: *mut c_void, address: *const abi::Sink, error: *mut abi::Error) -> i32 {
    // SAFETY: the context is ours, sink and record are this call's (the contract of `address`).
    unsafe {
        guard("address", error, || {
            text::write(address, &transport(ctx).address());
            Ok::<_, Failure>(abi::STATUS_OK)
        })
    }
}

unsafe extern "C" fn connect(
    ctx: *mut c_void,
    peers: *const abi::Peer,
    count: usize,
    endpoints: *mut abi::Endpoint,
    request: *mut abi::Request,
    error: *mut abi::Error,
) -> i32 {
    // SAFETY: the context is ours, everything else is this call's (the contract of `connect`).
    unsafe {
        guard("connect", error, || {
            let peer = |index| {
                let peer: &abi::Peer = &*peers.add(index);
                (Rank(peer.rank), text::borrow_bytes(peer.address).to_vec())
            };
            let peers: Vec<_> = (0..count).map(peer).collect();
            start(transport(ctx).connect(&peers), deliver_endpoints, endpoints.cast(), request)
        })
    }
}

/// A transport gives one endpoint a peer, which is what the host has room for.
fn deliver_endpoints(endpoints: Vec<Endpoint>, result: *mut c_void) {
    for (index, endpoint) in endpoints.into_iter().enumerate() {
        let record = abi::Endpoint { peer: endpoint.peer.0, peer_class: codes::class_code(endpoint.class) };
        // SAFETY: the host's array has room for an endpoint of each peer (the contract of `connect`).
        unsafe { *result.cast::<abi::Endpoint>().add(index) = record };
    }
}

unsafe extern "C" fn allocate(
    ctx: *mut c_void,
    bytes: u64,
    memory: u32,
    region: *mut abi::Region,
    request: *mut abi::Request,
    error: *mut abi::Error,
) -> i32 {
    // SAFETY: the context is ours, everything else is this call's (the contract of `allocate`).
    unsafe {
        guard("allocate", error, || {
            let pending = transport(ctx).allocate(length(bytes)?, codes::memory_kind(memory));
            start(pending, deliver_region, region.cast(), request)
        })
    }
}

unsafe extern "C" fn register_memory(
    ctx: *mut c_void,
    address: *mut c_void,
    bytes: u64,
    memory: u32,
    region: *mut abi::Region,
    request: *mut abi::Request,
    error: *mut abi::Error,
) -> i32 {
    // SAFETY: the context is ours, the memory stays until the region is released, everything else is this call's (the
    // contract of `register_memory`).
    unsafe {
        guard("register_memory", error, || {
            let kind = codes::memory_kind(memory);
            let pending = transport(ctx).register(Memory { address: address.cast(), bytes: length(bytes)?, kind });
            start(pending, deliver_region, region.cast(), request)
        })
    }
}

fn length(bytes: u64) -> Result<usize, Failure> {
    usize::try_from(bytes).map_err(|_| Failure::invalid(format!("{bytes} bytes are more than there are addresses")))
}

fn deliver_region(region: Region, result: *mut c_void) {
    let (key, address) = (region.key().0, region.address().cast());
    let handle = Box::into_raw(Box::new(region)).cast();
    // SAFETY: the result of a call that gives a region; version 1.0 of the struct has these fields.
    let record = unsafe { &mut *result.cast::<abi::Region>() };
    (record.key, record.address, record.handle) = (key, address, handle);
}

unsafe extern "C" fn release(_: *mut c_void, region: *mut c_void) {
    // SAFETY: a handle of `deliver_region` that the host uses no more (the contract of `release`).
    let region = unsafe { Box::from_raw(region.cast::<Region>()) };
    answer("release", (), || drop(region));
}

unsafe extern "C" fn export_key(
    ctx: *mut c_void,
    region: *mut c_void,
    peers: *const u32,
    count: usize,
    blob: *const abi::Sink,
    error: *mut abi::Error,
) -> i32 {
    // SAFETY: the context and the handle are ours, everything else is this call's (the contract of `export_key`).
    unsafe {
        guard("export_key", error, || {
            let peers: Vec<_> = (0..count).map(|index| Rank(*peers.add(index))).collect();
            let key = transport(ctx).export(&*region.cast::<Region>(), &peers)?;
            text::write(blob, &key);
            Ok::<_, Failure>(abi::STATUS_OK)
        })
    }
}

unsafe extern "C" fn import_key(
    ctx: *mut c_void,
    peer: u32,
    blob: abi::Bytes,
    region: *mut abi::RemoteRegion,
    request: *mut abi::Request,
    error: *mut abi::Error,
) -> i32 {
    // SAFETY: the context is ours, everything else is this call's (the contract of `import_key`).
    unsafe {
        guard("import_key", error, || {
            let pending = transport(ctx).import(Rank(peer), text::borrow_bytes(blob));
            start(pending, deliver_remote, region.cast(), request)
        })
    }
}

fn deliver_remote(region: RemoteRegion, result: *mut c_void) {
    let (key, bytes, memory) = (region.key().0, region.bytes() as u64, codes::memory_code(region.kind()));
    let handle = Box::into_raw(Box::new(region)).cast();
    // SAFETY: the result of a call that gives a remote region; version 1.0 of the struct has these fields.
    let record = unsafe { &mut *result.cast::<abi::RemoteRegion>() };
    (record.key, record.bytes, record.memory, record.handle) = (key, bytes, memory, handle);
}

unsafe extern "C" fn release_remote(_: *mut c_void, region: *mut c_void) {
    // SAFETY: a handle of `deliver_remote` that the host uses no more (the contract of `release_remote`).
    let region = unsafe { Box::from_raw(region.cast::<RemoteRegion>()) };
    answer("release_remote", (), || drop(region));
}

unsafe extern "C" fn make_queue(
    ctx: *mut c_void,
    target: u32,
    number: u32,
    options: *const abi::QueueOptions,
    queue: *mut *const abi::Queue,
    error: *mut abi::Error,
) -> i32 {
    // SAFETY: the context is ours, everything else is this call's (the contract of `queue`).
    unsafe {
        guard("queue", error, || {
            let options = &*options;
            let (target, initiator) = (codes::queue_target(target, number), codes::initiator(options.initiator));
            let (Some(target), Some(initiator)) = (target, initiator) else {
                return Err(Failure::invalid("a target or an initiator that this plugin does not know"));
            };
            let ordered = options.ordered != 0;
            let options = QueueOptions { depth: length(options.depth)?, initiator, ordered };
            *queue = queue::export(transport(ctx).queue(target, options)?);
            Ok::<_, Failure>(abi::STATUS_OK)
        })
    }
}

unsafe extern "C" fn map(ctx: *mut c_void, region: *mut c_void) -> *mut c_void {
    answer("map", std::ptr::null_mut(), || {
        // SAFETY: the context and the handle are ours (the contract of `map`).
        let mapped = unsafe { transport(ctx).map(&*region.cast::<RemoteRegion>()) };
        mapped.map_or(std::ptr::null_mut(), |address| address.as_ptr().cast())
    })
}

unsafe extern "C" fn notify(ctx: *mut c_void, peer: u32) {
    // SAFETY: the context is ours (the contract of `notify`).
    answer("notify", (), || unsafe { transport(ctx) }.notify(Rank(peer)));
}

unsafe extern "C" fn signal_wait(
    ctx: *mut c_void,
    wait: *const abi::Wait,
    seen: *mut u64,
    error: *mut abi::Error,
) -> i32 {
    // SAFETY: the context and the region's handle are ours, everything else is this call's, and the two texts are UTF-8
    // that lives for ever (the contract of `signal_wait` and of texts).
    unsafe {
        guard("signal_wait", error, || {
            let wait = &*wait;
            let Some(condition) = codes::condition(wait) else {
                return Err(Failure::invalid("a condition that this plugin does not know"));
            };
            *seen = transport(ctx).signal_wait(&Wait {
                region: &*wait.region.cast::<Region>(),
                offset: wait.offset as usize,
                condition,
                peer: Rank(wait.peer),
                operation: std::str::from_utf8_unchecked(text::borrow(wait.operation)),
                slot: std::str::from_utf8_unchecked(text::borrow(wait.slot)),
                epoch: wait.epoch,
            })?;
            Ok::<_, Failure>(abi::STATUS_OK)
        })
    }
}

unsafe extern "C" fn fault(ctx: *mut c_void) -> u64 {
    // SAFETY: the context is ours (the contract of `fault`).
    answer("fault", 0, || unsafe { transport(ctx) }.fault().map_or(0, Fault::to_word))
}

unsafe extern "C" fn report(ctx: *mut c_void, fault: u64) -> u64 {
    answer("report", fault, || match Fault::from_word(fault) {
        // SAFETY: the context is ours (the contract of `report`).
        Some(fault) => unsafe { transport(ctx) }.report(fault).to_word(),
        None => 0,
    })
}

unsafe extern "C" fn gone(ctx: *mut c_void, peer: u32) -> u32 {
    // SAFETY: the context is ours (the contract of `gone`).
    answer("gone", 0, || unsafe { transport(ctx) }.gone(Rank(peer)).map_or(0, codes::fault_code))
}

unsafe extern "C" fn poll_event(ctx: *mut c_void, peer: *mut u32) -> u32 {
    answer("poll_event", abi::EVENT_NONE, || {
        // SAFETY: the context is ours (the contract of `poll_event`).
        let (event, who) = match unsafe { transport(ctx) }.poll_event() {
            Some(Event::PeerLeft(rank)) => (abi::EVENT_LEFT, rank),
            Some(Event::PeerDied(rank)) => (abi::EVENT_DIED, rank),
            // Another event is none that this boundary can tell.
            _ => return abi::EVENT_NONE,
        };
        // SAFETY: the place is this call's (the contract of `poll_event`).
        unsafe { *peer = who.0 };
        event
    })
}

unsafe extern "C" fn mask(ctx: *mut c_void, peer: u32) {
    // SAFETY: the context is ours (the contract of `mask`).
    answer("mask", (), || unsafe { transport(ctx) }.mask(Rank(peer)));
}

unsafe extern "C" fn shutdown(ctx: *mut c_void, mode: u32, error: *mut abi::Error) -> i32 {
    // SAFETY: the context is ours, the record is this call's (the contract of `shutdown`).
    unsafe {
        guard("shutdown", error, || {
            let mode = match mode {
                abi::SHUTDOWN_DRAIN => Shutdown::Drain,
                abi::SHUTDOWN_ABORT => Shutdown::Abort,
                _ => return Err(Failure::invalid("a mode of shutdown that this plugin does not know")),
            };
            transport(ctx).shutdown(mode)?;
            Ok::<_, Failure>(abi::STATUS_OK)
        })
    }
}

unsafe extern "C" fn device_view(
    ctx: *mut c_void,
    // The region says it.
    _memory: u32,
    view: *mut abi::DeviceView,
    bytes: *const abi::Sink,
    error: *mut abi::Error,
) -> i32 {
    // SAFETY: the context and the handles are ours, everything else is this call's (the contract of `device_view`).
    unsafe {
        guard("device_view", error, || {
            let abi::DeviceView { region, remotes, members, .. } = *view;
            let remotes: Vec<_> =
                (0..length(members)?).map(|index| (*(*remotes.add(index)).cast::<RemoteRegion>()).clone()).collect();
            let given = transport(ctx).device_view(&*region.cast::<Region>(), &remotes)?;
            (*view).kind = text::lend(given.kind);
            (*view).abi = given.abi;
            text::write(bytes, &given.bytes);
            Ok::<_, Failure>(abi::STATUS_OK)
        })
    }
}
