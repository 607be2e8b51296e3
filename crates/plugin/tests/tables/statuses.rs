//! A plugin that answers with numbers which mean nothing: none of them is taken for success.

use std::ffi::c_void;
use std::time::Duration;

use campanile_core::{
    Completion, HugePages, Node, OpenOptions, PostError, QueueError, QueueOptions, QueueTarget, Rank, TransportPlugin,
};
use campanile_plugin::abi;

use crate::changed::{Change, plugin};

struct Odd;

impl Change for Odd {
    fn transport(_: &mut abi::Transport) {}

    fn queue(table: &mut abi::Queue) {
        let odd = abi::Queue { post: Some(post), test: Some(test), ring: Some(ring), cancel: Some(cancel), ..*table };
        *table = odd;
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
    let plugin = plugin::<Odd>();
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
