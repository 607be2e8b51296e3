//! The barrier.
//!
//! Two algorithms over the same words, one cache line for each of them:
//!
//! * **all-to-all**: every rank signals every other and waits for every other. One step, n − 1 signals a rank: the
//!   fastest where a signal is a store, and the only one that needs each core once when ranks share cores.
//! * **dissemination** (Hensgen, Finkel, Manber 1988): in step k a rank signals the one 2^k ahead and waits for the one
//!   2^k behind; ceil(log2 n) steps with one signal each, for large teams and for networks.
//!
//! A rank that has passed a barrier knows that every rank has entered it, and sees what each of them had put or stored
//! before (a strong signal). Words count barriers, so they never need a reset: a rank can be at most one barrier ahead
//! of another, and `≥` does the rest.

use std::sync::Arc;

use campanile_core::{CommError, Communicator, Condition, MemoryKind, Wait, Window};

/// Largest team that uses all-to-all: 16 ranks send 240 signals, dissemination 64 in four dependent steps.
const ALL_TO_ALL_RANKS: usize = 16;
/// Bytes from one word to the next: words of different writers do not share a cache line.
const LINE: usize = 64;

/// A barrier over the team of a communicator.
pub struct Barrier {
    comm: Arc<Communicator>,
    window: Window,
    all_to_all: bool,
    epoch: u64,
}

impl Barrier {
    /// Makes the barrier. Collective.
    ///
    /// # Errors
    /// [`CommError`] if the ranks cannot make its window.
    pub fn new(comm: &Arc<Communicator>) -> Result<Self, CommError> {
        Self::starting_at(comm, 0)
    }

    /// A barrier that has, as its words say, been passed `epoch` times; for tests near the wrap. Collective.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn starting_at(comm: &Arc<Communicator>, epoch: u64) -> Result<Self, CommError> {
        let ranks = comm.ranks();
        let window = comm.window(ranks * LINE, MemoryKind::Host)?;
        for slot in 0..ranks {
            window.word(slot * LINE).store(epoch, std::sync::atomic::Ordering::Relaxed);
        }
        comm.agree("barrier", &[("epoch", epoch.to_string())])?;
        let all_to_all = ranks <= ALL_TO_ALL_RANKS && comm.maps_all();
        Ok(Self { comm: Arc::clone(comm), window, all_to_all, epoch })
    }

    /// Enters the barrier and waits until every rank of the team has entered it.
    ///
    /// # Errors
    /// [`CommError`] if a rank died, stalled or aborted; sticky.
    pub fn wait(&mut self) -> Result<(), CommError> {
        self.epoch = self.epoch.wrapping_add(1);
        let (rank, ranks) = (self.comm.rank(), self.comm.ranks());
        if self.all_to_all {
            for step in 1..ranks {
                self.window.signal((rank + step) % ranks, rank * LINE, self.epoch)?;
            }
            for step in 1..ranks {
                let peer = (rank + step) % ranks;
                self.await_word(peer, peer)?;
            }
        } else {
            let mut distance = 1;
            let mut step = 0;
            while distance < ranks {
                self.window.signal((rank + distance) % ranks, step * LINE, self.epoch)?;
                self.await_word((rank + ranks - distance) % ranks, step)?;
                distance *= 2;
                step += 1;
            }
        }
        Ok(())
    }

    fn await_word(&self, peer: usize, slot: usize) -> Result<(), CommError> {
        self.comm.wait(&Wait {
            region: self.window.region(),
            offset: slot * LINE,
            condition: Condition::AtLeast(self.epoch),
            peer: self.comm.team().member(peer),
            operation: "barrier",
            slot: "arrival",
            epoch: self.epoch,
        })?;
        Ok(())
    }
}
