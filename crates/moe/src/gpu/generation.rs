//! Masks and generations: how an operation goes on without some of its ranks.
//!
//! **Model.** As on the host ([`Moe::set_active`](crate::Moe::set_active), [`Moe::go_on`](crate::Moe::go_on)). The mask lies
//! on the device and is read at the start of each launch, so a captured graph obeys it too. A masked rank is neither
//! written to, nor waited for, nor read from; slots of its experts are dropped, as if they were −1. After a failure the
//! survivors agree on a new generation: each set goes to an epoch that no word has come near, so that whatever the lost
//! rounds left in the words is never taken for an answer.
//!
//! **Invariant.** Masks and generations change between launches, when none of this rank's is running.

use std::time::Duration;

use campanile_gpu::Stream;

use super::{GpuMoe, GpuMoeError};
use crate::protocol::{Epoch, Set, Word, WordMap};

/// How long aborted kernels may take to end: one poll of a word, behind whatever else the stream holds.
const END: Duration = Duration::from_secs(10);

impl GpuMoe {
    /// Which ranks take part.
    pub fn active(&self) -> &[bool] {
        &self.active
    }

    /// Goes on without the ranks whose entry is `false`: they are known dead or fenced off. The next launch obeys; slots of
    /// their experts are dropped from the next dispatch on, and what they still owe to an open round is left out of it.
    /// The stream's earlier work is waited for.
    ///
    /// # Errors
    /// [`GpuMoeError::Argument`] for another length, for this rank itself, or for a rank that was masked before; those of
    /// the calls.
    pub fn set_active(&mut self, stream: &Stream, active: &[bool]) -> Result<(), GpuMoeError> {
        self.check_survivors(active)?;
        self.state.mask(stream, &self.plan, active)?;
        self.active.copy_from_slice(active);
        Ok(())
    }

    /// The first epoch of each set that no word of this rank's has come near, after the stream's earlier work. Ranks that
    /// begin a generation agree on the furthest of their answers, by [`Epoch::since`].
    ///
    /// # Errors
    /// Those of the calls.
    pub fn next_generation(&self, stream: &Stream) -> Result<Vec<Epoch>, GpuMoeError> {
        // The round before the new first one is what its initial words carry: it too must be unused.
        Ok(self.state.epochs(stream)?.iter().map(|epoch| epoch.next().next()).collect())
    }

    /// Begins a new generation with the ranks in `active`, at the epochs in `first`, one a set: those masked before may come
    /// back, a failure or abort is over, open rounds are lost.
    ///
    /// All these ranks do it together. Before it each has ended its launches and agreed to `first`; behind it they meet,
    /// before the first launch. A rank that is left out must be known dead, or fenced off.
    ///
    /// # Errors
    /// [`GpuMoeError::Argument`] for other lengths, for this rank itself, or for an epoch before
    /// [`next_generation`](Self::next_generation); those of the calls.
    pub fn begin_generation(&mut self, stream: &Stream, first: &[Epoch], active: &[bool]) -> Result<(), GpuMoeError> {
        self.check_mask(active)?;
        let sets = self.plan.config().sets as usize;
        if first.len() != sets {
            return Err(argument(
                "first",
                format!("has {} epochs", first.len()),
                format!("one a set, {sets}, is needed"),
            ));
        }
        let next = self.next_generation(stream)?;
        if let Some(set) = (0..sets).find(|&set| first[set].since(next[set]) < 0) {
            let given = format!("is {} for {}", first[set], Set(set as u32));
            return Err(argument("first", given, format!("{} is the first that no word has come near", next[set])));
        }
        self.begin(stream, first, active)
    }

    /// Stores words and state as they are before the first round of a generation.
    pub(super) fn begin(&mut self, stream: &Stream, first: &[Epoch], active: &[bool]) -> Result<(), GpuMoeError> {
        let windows: Vec<_> = self.windows.iter().map(campanile_gpu::VirtualMemory::address).collect();
        let mut words = vec![0; self.plan.word_map.bytes()];
        for (set, &first) in (0..).map(Set).zip(first) {
            for source in 0..self.plan.ranks {
                for word in Word::ALL {
                    let offset = self.plan.word_map.offset(set, source, word);
                    words[offset..offset + 8].copy_from_slice(&WordMap::initial(first).to_ne_bytes());
                }
            }
        }
        stream.upload(self.window(), self.plan.words.offset, &words)?;
        self.state.begin(stream, &self.plan, &windows, first, active)?;
        self.active.copy_from_slice(active);
        Ok(())
    }

    /// Goes on without ranks, after a failure or before one: positions, experts and sizes stay what they were, slots of the
    /// experts of ranks that are not `active` are dropped, rounds that were open are lost. Collective over the active
    /// ranks. This rank's launches, all of them on `stream` or waited for, are aborted.
    ///
    /// `gather` brings the bytes of all active ranks together under a name, as
    /// [`Communicator::gather`](campanile_core::Communicator::gather) of the survivors does; it is called twice.
    ///
    /// # Errors
    /// As [`set_active`](Self::set_active); those of `gather`, after which the call may be made again.
    pub fn go_on<E>(
        &mut self,
        stream: &Stream,
        active: &[bool],
        mut gather: impl FnMut(&'static str, &[u8]) -> Result<Vec<Vec<u8>>, E>,
    ) -> Result<(), GpuMoeError>
    where
        GpuMoeError: From<E>,
    {
        self.check_survivors(active)?;
        self.raise();
        stream.synchronize(END)?;
        let mut first = self.next_generation(stream)?;
        let mine: Vec<u8> = first.iter().flat_map(|epoch| epoch.0.to_le_bytes()).collect();
        // When all have answered, no launch of the old generation is left that could write into this rank's words.
        for theirs in gather("moe generation", &mine)? {
            for (first, bytes) in first.iter_mut().zip(theirs.as_chunks::<4>().0) {
                let theirs = Epoch(u32::from_le_bytes(*bytes));
                if theirs.since(*first) > 0 {
                    *first = theirs;
                }
            }
        }
        self.begin_generation(stream, &first, active)?;
        gather("moe generation words", &[])?;
        Ok(())
    }

    /// A mask for this operation, which may bring nobody back.
    fn check_survivors(&self, active: &[bool]) -> Result<(), GpuMoeError> {
        self.check_mask(active)?;
        match (0..active.len()).find(|&rank| active[rank] && !self.active[rank]) {
            None => Ok(()),
            Some(rank) => {
                Err(argument("active", format!("brings rank {rank} back"), "a masked rank stays masked".into()))
            }
        }
    }

    fn check_mask(&self, active: &[bool]) -> Result<(), GpuMoeError> {
        let (rank, ranks) = (self.plan.rank, self.plan.ranks);
        if active.len() != ranks {
            let given = format!("has {} entries", active.len());
            return Err(argument("active", given, format!("one entry a rank, {ranks}, is needed")));
        }
        if active[rank] {
            return Ok(());
        }
        Err(argument("active", format!("masks rank {rank}, this one"), "a rank cannot go on without itself".into()))
    }
}

fn argument(what: &'static str, given: String, allowed: String) -> GpuMoeError {
    GpuMoeError::Argument { what, given, allowed }
}
