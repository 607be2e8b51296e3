//! All-gather: the blocks of all ranks, in team order, to all ranks.
//!
//! Where load / store reaches, each rank copies its block into its ring, part by part, up to half a ring ahead of what it
//! reads, and copies each part of every other rank to its place: n + 1 copies of a block a rank. A block in the
//! [`input`](AllGather::input), or in place, saves one; so does a large one of two ranks whose transport reaches private
//! memory, which each gets from where it lies. Ranks begin with different peers. Over queues every rank puts its
//! parts to every other.

use std::sync::Arc;

use campanile_core::{CommError, Communicator};
use campanile_host::copy::Copier;

use crate::stream::Stream;

/// Largest block in small parts between near ranks: from here on they are slower (`stream/distance.rs`).
const NEAR_MOST: usize = 64 << 10;

/// All-gather over the team of a communicator, of blocks up to a capacity.
///
/// All ranks make the same calls in the same order, with blocks of the same size, which may differ from call to call; each
/// rank chooses on its own among the three forms.
///
/// ```
/// use campanile::{AllGather, CommError, CommOptions, threads};
///
/// let ranks = threads::<_, CommError>(3, &CommOptions::default(), |comm| {
///     let mut all_gather = AllGather::new(&comm, 1 << 16)?;
///     let mut all = [0; 6];
///     all_gather.run(&[comm.rank() as u8, 7], &mut all)?;
///     Ok(all)
/// });
/// assert!(ranks.into_iter().all(|all| all.unwrap() == [0, 7, 1, 7, 2, 7]));
/// ```
pub struct AllGather {
    stream: Stream,
}

/// Where a rank's block is.
#[derive(Clone, Copy)]
enum Block<'a> {
    Slice(&'a [u8]),
    /// In its place among all.
    InPlace,
    Input,
}

impl AllGather {
    /// Makes it, for blocks of at most `capacity` bytes. Collective.
    ///
    /// It takes `capacity` bytes of registered memory on each rank for the input, and up to half a MiB for the ring; over
    /// queues as much again for every rank of the team.
    ///
    /// # Errors
    /// [`CommError`] if the ranks cannot make its window, or were given different capacities.
    pub fn new(comm: &Arc<Communicator>, capacity: usize) -> Result<Self, CommError> {
        Self::starting_at(comm, capacity, 0)
    }

    /// One whose words begin at `first`; for tests near the wrap. Collective.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn starting_at(comm: &Arc<Communicator>, capacity: usize, first: u64) -> Result<Self, CommError> {
        Ok(Self { stream: Stream::new(comm, "all-gather", capacity, first, NEAR_MOST)? })
    }

    /// Most bytes of a block.
    pub fn capacity(&self) -> usize {
        self.stream.capacity()
    }

    /// Gives `block` to all ranks; `all` becomes the blocks of all of them. Collective.
    ///
    /// # Errors
    /// [`CommError::Misuse`] if the block is larger than the capacity, or `all` does not hold a block a rank; nothing has
    /// happened then. [`CommError::Mismatch`] if another rank's block has another size, or it makes another call;
    /// [`CommError`] if a rank died, stalled or aborted; both sticky.
    pub fn run(&mut self, block: &[u8], all: &mut [u8]) -> Result<(), CommError> {
        self.gather(Block::Slice(block), block.len(), all)
    }

    /// As [`run`](Self::run), with this rank's block in its place in `all` already. Collective.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_in_place(&mut self, all: &mut [u8]) -> Result<(), CommError> {
        let block = all.len() / self.stream.comm().ranks();
        self.gather(Block::InPlace, block, all)
    }

    /// This rank's input, `capacity` bytes: a block in it is read there by the others, where load / store reaches. Waits
    /// until they have read what was last gathered from it.
    ///
    /// # Errors
    /// [`CommError`] if one of them died, stalled or aborted; sticky.
    pub fn input(&mut self) -> Result<&mut [u8], CommError> {
        self.stream.input()
    }

    /// As [`run`](Self::run), with this rank's block in the first `bytes` of the [`input`](Self::input). Collective.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_input(&mut self, bytes: usize, all: &mut [u8]) -> Result<(), CommError> {
        self.gather(Block::Input, bytes, all)
    }

    fn gather(&mut self, block: Block<'_>, bytes: usize, all: &mut [u8]) -> Result<(), CommError> {
        let (rank, ranks) = (self.stream.comm().rank(), self.stream.comm().ranks());
        self.stream.check_bytes(bytes)?;
        if bytes.checked_mul(ranks) != Some(all.len()) {
            let given = all.len();
            return Err(self.stream.misuse(format!("{given} bytes for all; {ranks} blocks of {bytes} bytes each")));
        }
        self.stream.begin();
        let copier = Stream::copier(all.len());
        let own = rank * bytes..(rank + 1) * bytes;
        let lent = !matches!(block, Block::Input) && self.stream.lends(bytes);
        // What this rank has published, and copied to its own place.
        let (mut at, mut copied, mut parts, mut published) = (0, 0, 0, false);
        for round in 0.. {
            while !published && parts < round + Stream::AHEAD {
                at = match block {
                    Block::Slice(block) if lent => self.stream.lend_private(block.as_ptr(), bytes).map(|()| bytes)?,
                    Block::InPlace if lent => {
                        self.stream.lend_private(all[own.clone()].as_ptr(), bytes).map(|()| bytes)?
                    }
                    Block::Slice(block) => self.stream.send(block, at)?,
                    Block::InPlace => self.stream.send(&all[own.clone()], at)?,
                    Block::Input => self.stream.lend(bytes, at)?,
                };
                parts += 1;
                published = at == bytes;
            }
            // Its own parts are still in this core's cache, and the others' are on their way.
            self.copy_own(block, copied..at, &mut all[own.clone()], copier);
            copied = at;
            let mut complete = published;
            for step in 1..ranks {
                let peer = (rank + step) % ranks;
                complete &= self.stream.receive(peer, &mut all[peer * bytes..(peer + 1) * bytes], copier)?;
            }
            if complete {
                break;
            }
        }
        copier.fence();
        if lent { self.stream.take_back() } else { Ok(()) }
    }

    fn copy_own(&self, block: Block<'_>, part: std::ops::Range<usize>, own: &mut [u8], copier: Copier) {
        let from = match block {
            Block::Slice(block) => block.as_ptr(),
            Block::Input => self.stream.input_address(),
            Block::InPlace => return,
        };
        let to = &mut own[part.clone()];
        // SAFETY: `part` is inside the block, and inside the input where the block is there (checked by `gather`); both are
        // apart from `own`, which is borrowed for writing, and nobody writes them during a call.
        unsafe { copier.copy(to.as_mut_ptr(), from.add(part.start), to.len()) };
    }
}
