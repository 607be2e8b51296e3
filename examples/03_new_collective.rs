//! A new collective in fewer than 100 lines: all-gather, written against the traits alone.
//!
//! Every rank puts its block to every other and signals behind it. It knows no transport: this program runs unchanged
//! where load / store reaches the peers and over queues where it does not, on a transport that is linked in and on one
//! that is a file: `CAMPANILE_TRANSPORT=/path/of/libcampanile_shm.so`, or of one that is written in C.
//!
//! **Why two buffers and one word a peer are enough.** The word of peer p says how many calls p has begun to send in. A
//! rank may write the buffer of call e when every peer has read that of call e − 2, and p had done so before it raised
//! its word to e − 1, which this rank waited for in call e − 1.
//!
//! `cargo run -p campanile-examples --example 03_new_collective`

use std::sync::Arc;

use campanile::{
    CommError, CommOptions, Communicator, Condition, MemoryKind, Path, Plugins, Wait, Window, configuration,
    threads_over,
};

/// Words of different writers do not share a cache line.
const LINE: usize = 64;

/// Everybody's block for everybody.
struct AllGather {
    comm: Arc<Communicator>,
    window: Window,
    block: usize,
    epoch: u64,
}

impl AllGather {
    /// For blocks of `block` bytes. Collective.
    fn new(comm: &Arc<Communicator>, block: usize) -> Result<Self, CommError> {
        let window = comm.window(comm.ranks() * (LINE + 2 * block), MemoryKind::Host)?;
        Ok(Self { comm: Arc::clone(comm), window, block, epoch: 0 })
    }

    /// Offset of the block of `rank` in the buffer of this call.
    fn at(&self, rank: usize) -> usize {
        let buffer = (self.epoch % 2) as usize;
        self.comm.ranks() * (LINE + buffer * self.block) + rank * self.block
    }

    /// Gives `own` to all ranks and returns what each of them gave, in team order. Collective.
    fn gather(&mut self, own: &[u8]) -> Result<Vec<u8>, CommError> {
        assert_eq!(own.len(), self.block, "every rank gives one block");
        self.epoch += 1;
        let (rank, ranks, block) = (self.comm.rank(), self.comm.ranks(), self.block);
        let (mine, base) = (self.at(rank), self.window.region().address());
        // SAFETY: `mine` is a block inside the window; it is the source of puts of call epoch − 2 at most, which were
        // flushed, and no peer writes it.
        unsafe { base.add(mine).copy_from_nonoverlapping(own.as_ptr(), block) };
        for step in 1..ranks {
            let peer = (rank + step) % ranks;
            self.window.put(peer, self.window.region(), mine, mine, block)?;
            self.window.signal(peer, rank * LINE, self.epoch)?;
        }
        for step in 1..ranks {
            let peer = (rank + step) % ranks;
            self.comm.wait(&Wait {
                region: self.window.region(),
                offset: peer * LINE,
                condition: Condition::AtLeast(self.epoch),
                peer: self.comm.team().member(peer),
                operation: "all-gather",
                slot: "block",
                epoch: self.epoch,
            })?;
            self.window.flush(peer)?;
        }
        let mut all = vec![0; ranks * block];
        // SAFETY: the blocks of this call are one run inside the window; every peer's was waited for, and none writes
        // this buffer again before this rank has begun the next call.
        unsafe { base.add(self.at(0)).copy_to_nonoverlapping(all.as_mut_ptr(), all.len()) };
        Ok(all)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const CALLS: u8 = 50;
    let config = configuration()?;
    let plugins = Plugins::of(&config)?;
    for path in [Path::Auto, Path::Queue] {
        let options = CommOptions { path, ..plugins.options(&config)? };
        let ranks = threads_over(&plugins, 3, &options, |comm| {
            let mut all_gather = AllGather::new(&comm, 4)?;
            for call in 0..CALLS {
                let all = all_gather.gather(&[comm.rank() as u8, call, 7, 7])?;
                assert_eq!(all, [0, call, 7, 7, 1, call, 7, 7, 2, call, 7, 7]);
            }
            Ok((comm.transport().info().name, all_gather.gather(&[comm.rank() as u8; 4])?))
        });
        let ranks: Vec<_> = ranks.into_iter().collect::<Result<_, CommError>>()?;
        assert!(ranks.iter().all(|(_, all)| all == &[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]));
        println!("{}, path {}: {} calls, the last gave {:?}", ranks[0].0, path.name(), CALLS + 1, ranks[0].1);
    }
    Ok(())
}
