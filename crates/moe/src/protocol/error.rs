//! What can be wrong: a call out of order on this rank, or a word that no correct peer could have written.

use std::fmt;

use thiserror::Error;

use super::{Combine, Epoch, Phase, Round, Set, TaggedWord, Word};

/// A call that the protocol refuses. Nothing has changed: no store was counted, no phase begun or ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Misuse {
    /// The operation has failed or was aborted.
    #[error("the operation was aborted: nothing more is published; readmit with a new generation, or build a new one")]
    Aborted,
    /// There is no such set.
    #[error("{set} does not exist: the operation has {sets}, numbered from 0")]
    SetOutOfRange {
        /// The set given.
        set: Set,
        /// How many there are.
        sets: u32,
    },
    /// A slice with one element per rank (or per set) has another length.
    #[error("{what} has {given} elements, needs {needed}")]
    Length {
        /// Which argument.
        what: &'static str,
        /// Its length.
        given: usize,
        /// The length it must have.
        needed: usize,
    },
    /// The mask leaves out the rank that uses it.
    #[error("the mask leaves out rank {rank}, which is this rank: a rank cannot take part without itself")]
    MaskedSelf {
        /// This rank.
        rank: usize,
    },
    /// The mask names a rank that an earlier mask left out.
    #[error("rank {rank} was masked before: it comes back only by readmission with a new generation")]
    MaskedBefore {
        /// The rank.
        rank: usize,
    },
    /// Something was asked about a rank that is masked, or does not exist.
    #[error("rank {peer} is not active: it is masked, or not below {ranks}")]
    NotActive {
        /// The rank.
        peer: usize,
        /// Ranks of the operation.
        ranks: usize,
    },
    /// More rows than a plane holds.
    #[error("{rows} rows for rank {peer} exceed the capacity of {capacity}: raise the capacity or send fewer tokens")]
    Capacity {
        /// The owner.
        peer: usize,
        /// Rows for it.
        rows: u32,
        /// Rows that there is space for.
        capacity: u32,
    },
    /// Two phases at once.
    #[error("{wanted} cannot begin: {running} of {round} has not finished; phases are issued one at a time")]
    PhaseRunning {
        /// What was to begin.
        wanted: Phase,
        /// What is running.
        running: Phase,
        /// Its round.
        round: Round,
    },
    /// The set's last round is still open.
    #[error("{} is still open on {}: combine or release it before the next dispatch (Moe::open_round gives back a handle that was lost)", .round.epoch, .round.set)]
    RoundOpen {
        /// The open round.
        round: Round,
    },
    /// The handle is of a round that is over.
    #[error("the handle is of {given}, which is over: the set is at {current}")]
    StaleRound {
        /// The round given.
        given: Round,
        /// Where the set is.
        current: Epoch,
    },
    /// A phase, or something that belongs to a phase, at the wrong time.
    #[error("{wanted} of {round} is not possible {now}")]
    OutOfOrder {
        /// The round.
        round: Round,
        /// The phase to which the call belongs.
        wanted: Phase,
        /// Where the round is.
        now: &'static str,
    },
    /// A phase is to finish, but none runs.
    #[error("nothing to finish in {round}: no phase runs {now}")]
    NothingRunning {
        /// The round.
        round: Round,
        /// Where the round is.
        now: &'static str,
    },
    /// Something belongs to the other way of combining.
    #[error("{word} is not used in {round}: it combines by {combine:?}")]
    WrongCombine {
        /// The round.
        round: Round,
        /// The word that was to be published.
        word: Word,
        /// How the round combines.
        combine: Combine,
    },
    /// Something must be seen or published first.
    #[error("{word} for rank {peer} in {round} is too early: {missing} comes first")]
    TooEarly {
        /// The round.
        round: Round,
        /// The peer.
        peer: usize,
        /// What was asked for.
        word: Word,
        /// What comes before it.
        missing: Word,
    },
    /// A word is published a second time.
    #[error("{word} of {round} for rank {peer} was published before")]
    Published {
        /// The round.
        round: Round,
        /// The peer.
        peer: usize,
        /// The word.
        word: Word,
    },
    /// More rows than were announced.
    #[error("{word} of {round} for rank {peer}: {given} rows, but only {announced} were announced")]
    TooManyRows {
        /// The round.
        round: Round,
        /// The peer.
        peer: usize,
        /// The word.
        word: Word,
        /// Rows, together with those before.
        given: u64,
        /// Rows that `META` announced.
        announced: u32,
    },
    /// A phase is to finish with something left to do.
    #[error("{phase} of {round} cannot finish: {word} of rank {peer} is outstanding")]
    Unfinished {
        /// The round.
        round: Round,
        /// The phase.
        phase: Phase,
        /// The peer.
        peer: usize,
        /// The word that was not yet published, or not yet seen.
        word: Word,
    },
    /// The first epoch of a new generation is one that this rank may have used.
    #[error("{given} cannot begin a generation of {set}: it must not lie before {needed} on any rank")]
    UsedEpoch {
        /// The set.
        set: Set,
        /// The epoch given.
        given: Epoch,
        /// The first that is free here.
        needed: Epoch,
    },
}

/// A word that no correct peer could have written: memory was overwritten, the ranks' calls differ, or a rank that was
/// masked still runs. The protocol has aborted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{word} of {set} from rank {source_rank} holds {}; rank {rank} waits for {} and nothing beyond {} can be there; \
     the ranks disagree on their calls, or the word was overwritten\n{dump}",
    Shown(*.word, *.seen), Shown(*.word, *.expected), Shown(*.word, *.limit)
)]
#[non_exhaustive]
pub struct ProtocolError {
    /// The rank that waits.
    pub rank: usize,
    /// The set.
    pub set: Set,
    /// The word.
    pub word: Word,
    /// The rank that writes it.
    pub source_rank: usize,
    /// The value that is waited for.
    pub expected: u64,
    /// The last value that could be there.
    pub limit: u64,
    /// The value that is there.
    pub seen: u64,
    /// All that this rank knew of every set when it happened.
    pub dump: String,
}

/// A word as its kind wants to be read.
pub(crate) struct Shown(pub Word, pub u64);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Word::Rows | Word::Returned => write!(f, "{:#x}", self.1),
            Word::Meta | Word::ReadyC | Word::DoneC => {
                let TaggedWord { epoch, count } = TaggedWord::unpack(self.1);
                write!(f, "({}, {count})", epoch.0)
            }
        }
    }
}
