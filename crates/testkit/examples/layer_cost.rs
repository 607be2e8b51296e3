//! What a layer costs: posts to a queue of shared memory, behind a stack of decorators.
//!
//! Instructions are counted by the difference of two runs, so that all that is not a post falls out:
//!
//! ```text
//! cargo build --release -p campanile-testkit --example layer_cost
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/layer_cost 10000 ''
//! ```
//!
//! The same with 20000 posts, and with `plain`, `plain+plain` or `stats` as the stack.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{
    HugePages, LocalAddress, MemoryKind, Node, Op, OpenOptions, QueueOptions, QueueTarget, Rank, RemoteAddress,
};
use campanile_shm::ShmPlugin;
use campanile_testkit::decorate::Stack;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let posts: usize = arguments.next().map_or(Ok(10_000), |posts| posts.parse())?;
    let stack = Stack::parse(&arguments.next().unwrap_or_default())?;
    let timeout = Duration::from_secs(10);
    let options = OpenOptions {
        rank: Rank(0),
        ranks: 1,
        node: Node::new("here"),
        ranks_on_node: 1,
        cores: 0,
        huge_pages: HugePages::Never,
        timeout,
    };
    let transport = stack.apply(Arc::new(ShmPlugin)).open("node", options)?;
    transport.connect(&[(Rank(0), transport.address())]).wait(timeout)?;
    let region = transport.allocate(4096, MemoryKind::Host).wait(timeout)?;
    let blob = transport.export(&region, &[Rank(0)])?;
    let remote = transport.import(Rank(0), &blob).wait(timeout)?;
    let options = QueueOptions { depth: QueueOptions::MAX_DEPTH, ..QueueOptions::default() };
    let queue = transport.queue(QueueTarget::Peer(Rank(0)), options)?;
    let put = Op::Put {
        source: LocalAddress { region: region.key(), offset: 0 },
        target: RemoteAddress { region: remote.key(), offset: 64 },
        bytes: 8,
    };
    for _ in 0..posts {
        queue.post(&[put])?;
    }
    println!("{posts} posts behind {}: {}", transport.info().name, queue.describe());
    Ok(())
}
