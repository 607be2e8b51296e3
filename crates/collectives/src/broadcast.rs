//! Broadcast: the bytes of one rank, the root, to all others.
//!
//! Where load / store reaches, the root copies its message into its ring, part by part, and the others copy each part
//! out as soon as it is there: n copies for n ranks, the root's while the others copy, so two ranks take little more than
//! one copy. A message in the root's [`input`](Broadcast::input) is read where it lies: n − 1 copies, and the root goes on
//! at once. Over queues the root puts each part to every other rank.

use std::sync::Arc;

use campanile_core::{CommError, Communicator};

use crate::stream::Stream;

/// Largest message in small parts between near ranks: beyond, they were faster in one measurement (`stream/distance.rs`) and
/// slower in another (`docs/benchmarks/cpu_collectives.md`).
const NEAR_MOST: usize = 4 << 10;

/// Broadcast over the team of a communicator, of messages up to a capacity.
///
/// All ranks make the same calls in the same order; a call is a [`send`](Self::send) or [`send_input`](Self::send_input)
/// at the root and a [`receive`](Self::receive) elsewhere, or [`run`](Self::run) everywhere. The number of bytes may
/// differ from call to call. The root returns when its bytes are copied or lent, which may be before the others have them.
///
/// ```
/// use campanile::{Broadcast, CommError, CommOptions, threads};
///
/// let ranks = threads::<_, CommError>(3, &CommOptions::default(), |comm| {
///     let mut broadcast = Broadcast::new(&comm, 1 << 20)?;
///     let mut weights = if comm.rank() == 1 { [1, 2, 3, 4] } else { [0; 4] };
///     broadcast.run(1, &mut weights)?;
///     Ok(weights)
/// });
/// assert!(ranks.into_iter().all(|weights| weights.unwrap() == [1, 2, 3, 4]));
/// ```
pub struct Broadcast {
    stream: Stream,
}

impl Broadcast {
    /// Makes it, for messages of at most `capacity` bytes. Collective.
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
        Ok(Self { stream: Stream::new(comm, "broadcast", capacity, first, NEAR_MOST)? })
    }

    /// Most bytes of a message.
    pub fn capacity(&self) -> usize {
        self.stream.capacity()
    }

    /// In place: `data` is the message at the root, and becomes it at the other ranks. Collective.
    ///
    /// Every rank names the same root. As in MPI and NCCL that is not checked in the call: ranks that name others get their
    /// data, and the next call with one root tells that calls do not match.
    ///
    /// # Errors
    /// As [`send`](Self::send) and [`receive`](Self::receive).
    pub fn run(&mut self, root: usize, data: &mut [u8]) -> Result<(), CommError> {
        if root == self.stream.comm().rank() { self.send(data) } else { self.receive(root, data) }
    }

    /// At the root: gives `message` to all other ranks. It may be changed as soon as this returns. Collective.
    ///
    /// # Errors
    /// [`CommError::Misuse`] if it is larger than the capacity; nothing has happened then. [`CommError`] if a rank died,
    /// stalled or aborted, or makes another call; sticky.
    pub fn send(&mut self, message: &[u8]) -> Result<(), CommError> {
        self.stream.check_bytes(message.len())?;
        self.stream.begin();
        let mut at = 0;
        loop {
            at = self.stream.send(message, at)?;
            if at == message.len() {
                return Ok(());
            }
        }
    }

    /// This rank's input, `capacity` bytes: a message in it is sent without a copy of the root's. Waits until the other
    /// ranks have read what was last sent from it.
    ///
    /// # Errors
    /// [`CommError`] if one of them died, stalled or aborted; sticky.
    pub fn input(&mut self) -> Result<&mut [u8], CommError> {
        self.stream.input()
    }

    /// At the root: gives the first `bytes` of the [`input`](Self::input) to all other ranks. Collective.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_input(&mut self, bytes: usize) -> Result<(), CommError> {
        self.stream.check_bytes(bytes)?;
        self.stream.begin();
        let mut at = 0;
        loop {
            at = self.stream.lend(bytes, at)?;
            if at == bytes {
                return Ok(());
            }
        }
    }

    /// At the other ranks: the message of `root`, which has as many bytes as `message`. Collective.
    ///
    /// # Errors
    /// [`CommError::Misuse`] if there is no such root, it is this rank, or `message` is larger than the capacity; nothing
    /// has happened then. [`CommError::Mismatch`] if the root's message has another size, or it makes another call;
    /// [`CommError`] if a rank died, stalled or aborted; both sticky.
    pub fn receive(&mut self, root: usize, message: &mut [u8]) -> Result<(), CommError> {
        let (rank, ranks) = (self.stream.comm().rank(), self.stream.comm().ranks());
        if root >= ranks {
            return Err(self.stream.misuse(format!("root {root}; the team has ranks 0 to {}", ranks - 1)));
        }
        if root == rank {
            return Err(self.stream.misuse(format!("receive at rank {rank}, which is the root: it sends")));
        }
        self.stream.check_bytes(message.len())?;
        self.stream.begin();
        let copier = Stream::copier(message.len());
        while !self.stream.receive(root, message, copier)? {}
        copier.fence();
        Ok(())
    }
}
