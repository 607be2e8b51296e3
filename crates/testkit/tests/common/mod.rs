//! Jobs of threads over shared memory behind a stack of decorators.
#![allow(dead_code, reason = "no test file uses all of it")]

use std::sync::Arc;
use std::time::Duration;

use campanile_bootstrap::ThreadBootstrap;
use campanile_core::{
    CommOptions, Communicator, LocalAddress, MemoryKind, Op, Queue, QueueOptions, QueueTarget, Rank, RemoteAddress,
    SignalAction, SignalUpdate, Strength, Window,
};
use campanile_shm::ShmPlugin;
use campanile_testkit::decorate::Stack;

pub const TIMEOUT: Duration = Duration::from_secs(20);

pub fn stack(text: &str) -> Stack {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Runs `body` on `ranks` threads, each with a communicator; what each returned, by rank.
pub fn job<T: Send>(
    ranks: usize,
    stack: &Stack,
    options: &CommOptions,
    body: impl Fn(Arc<Communicator>) -> T + Sync,
) -> Vec<T> {
    let plugin = stack.apply(Arc::new(ShmPlugin));
    let (plugin, body) = (&*plugin, &body);
    std::thread::scope(|scope| {
        let rank = |bootstrap: ThreadBootstrap| {
            scope.spawn(move || {
                let comm = Communicator::new(Arc::new(bootstrap), plugin, options.clone()).expect("all ranks connect");
                body(Arc::new(comm))
            })
        };
        let ranks: Vec<_> = ThreadBootstrap::world(ranks).into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

pub fn queues() -> CommOptions {
    CommOptions { path: campanile_core::Path::Queue, ..options() }
}

pub fn options() -> CommOptions {
    CommOptions { timeout: TIMEOUT, ..CommOptions::default() }
}

/// A rank of a job with a window, and a queue to `peer` of its own.
pub struct Member {
    pub comm: Arc<Communicator>,
    pub window: Window,
    pub queue: Arc<dyn Queue>,
    pub peer: usize,
}

impl Member {
    pub fn new(comm: Arc<Communicator>, bytes: usize, peer: usize) -> Self {
        let window = comm.window(bytes, MemoryKind::Host).expect("a window");
        let target = QueueTarget::Peer(Rank::new(peer));
        let queue = comm.transport().queue(target, QueueOptions::default()).expect("a queue");
        Self { comm, window, queue, peer }
    }

    pub fn local(&self, offset: u64) -> LocalAddress {
        LocalAddress { region: self.window.region().key(), offset }
    }

    pub fn remote(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { region: self.window.remote(self.peer).key(), offset }
    }

    pub fn put(&self, from: u64, to: u64, bytes: u64) -> Op {
        Op::Put { source: self.local(from), target: self.remote(to), bytes }
    }

    pub fn signal(&self, at: u64, value: u64, strength: Strength) -> Op {
        Op::Signal(SignalUpdate { target: self.remote(at), action: SignalAction::Set, value, strength })
    }

    /// All ranks have come this far.
    pub fn meet(&self) {
        self.comm.agree("meet", &[]).expect("all ranks meet");
    }
}

/// Of a rank alone.
pub fn open_options() -> campanile_core::OpenOptions {
    campanile_core::OpenOptions {
        rank: Rank(0),
        ranks: 1,
        node: campanile_core::Node::new("here"),
        ranks_on_node: 1,
        cores: 0,
        huge_pages: campanile_core::HugePages::Never,
        timeout: TIMEOUT,
    }
}
