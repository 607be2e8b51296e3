//! The MoE protocol: which words pass between ranks, what each must wait for, what each may publish.
//!
//! Pure and sans-IO: no memory is touched, no clock read, no transport called. [`Protocol`] is the state of one rank.
//! It turns "I want to write rows to rank 3" into a [`WordCondition`] to wait for, judges the value that the wait saw,
//! and hands out the [`WordStore`] to make; everything out of order is refused as [`Misuse`], every word that no correct
//! peer could have written is a [`ProtocolError`]. The host engine, a proxy thread and a model checker drive the same code.
//!
//! # Memory
//!
//! Each rank holds one cache line per (set, source), laid out by [`WordMap`], in its own memory, where it polls it. All
//! words of a line have one writer: that source. Before first use, and before any peer may store, every word holds
//! [`WordMap::initial`].
//!
//! | word | value | says | frees |
//! |---|---|---|---|
//! | `META` | tagged (e, rows) | counts and routing of round e have landed | – |
//! | `ROWS` | counter | so many rows were delivered, ever; visible ⇒ they are visible | – |
//! | `RETURNED` | counter | so many results were pushed, ever; visible ⇒ they are visible | – |
//! | `READY_C` | tagged (e, [`Ready`]) | my outputs for you stand, and I no longer read what you sent in e | your writing of my `rows` in e + 1 |
//! | `DONE_C` | tagged (e, 0) | I have finished reading your results of e | your writing of `outputs` (and of my `returns`) in e + 1 |
//!
//! A [`TaggedWord`] has its epoch in the high half, so one comparison serves every word: `AtLeast` by signed 64-bit
//! difference, across the wrap. All words only ever grow in that order.
//!
//! # A round
//!
//! A *round* is one use of a set, from dispatch to combine or release; a set's epoch counts its rounds. It has these
//! phases, each begun by its `begin_…`, ended by [`finish`](Protocol::finish); phases of other sets may come between.
//! For every active peer, this rank itself included, in any order of the peers:
//!
//! | phase | for each peer p | |
//! |---|---|---|
//! | dispatch send | wait [`credit`](Protocol::credit) = `READY_C(e−1)` | then rows, scales, routing may be written |
//! | | [`publish_meta`](Protocol::publish_meta) | after the routing is written; also with 0 rows |
//! | | [`publish_rows`](Protocol::publish_rows), any number of times | each after the rows that it covers |
//! | dispatch receive | wait [`meta`](Protocol::meta), [`rows`](Protocol::rows), [`outputs_free`](Protocol::outputs_free) | then rows may be read, outputs written |
//! | combine send | [`publish_returned`](Protocol::publish_returned) (push), any number of times | each after the results that it covers |
//! | | [`publish_ready`](Protocol::publish_ready) | after p's outputs are written and p's rows are no longer read |
//! | combine receive | wait [`results`](Protocol::results) | then p's results may be read |
//! | | [`publish_done`](Protocol::publish_done) | after the last of them is read |
//! | release | [`publish_ready`](Protocol::publish_ready), [`publish_done`](Protocol::publish_done) | instead of a combine, so that the credits flow |
//!
//! A store is a plain release store, or a put's signal; a wait acquires. What a store covers is written before it.
//!
//! # Rules that this module enforces
//!
//! - *One order.* All ranks issue the phases of all sets in one order, one at a time; a second at once is
//!   [`Misuse::PhaseRunning`]. Every wait is for something that peers publish in an earlier phase, or in this phase before
//!   they wait in it; hence no deadlock.
//! - *Open handles.* A set with an open round takes no other ([`Misuse::RoundOpen`]); an old [`Round`] is
//!   [`Misuse::StaleRound`].
//! - *Masks.* The mask is latched when a phase begins. A masked rank is neither waited for nor signalled, and nothing that
//!   it writes is looked at. Masks only shrink.
//! - *Generations.* A masked rank comes back by [`readmit`](Protocol::readmit): all ranks move every set to an epoch that
//!   none of them has used. Every word of the new generation then lies beyond every word of the old one (a counter starts
//!   at the epoch's own value, and grows by less than 2³² a round), so the epoch is the generation number: a late store of
//!   the old generation can be found out, never believed.
//! - *Abort.* After [`abort`](Protocol::abort), or a [`ProtocolError`], every publication is refused.
//!
//! The model check of these rules is `tests/protocol_model`, their memory order is checked in `tests/protocol_loom.rs`.

mod error;
mod lane;
mod publish;
mod round;
mod stage;
mod wait;
mod word;

use std::fmt;

pub use error::{Misuse, ProtocolError};
pub use publish::WordStore;
pub use round::{Combine, Epoch, Phase, Round, Set};
pub use wait::{Seen, WordCondition};
pub use word::{Ready, TaggedWord, Word, WordMap};

pub(crate) use error::Shown;
use lane::Lane;
use stage::Stage;

/// One set at this rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SetState {
    /// The last round begun.
    epoch: Epoch,
    stage: Stage,
    /// How the open round gives its results back; of a closed set, how the last one did.
    ready: Ready,
    /// One lane per rank.
    lanes: Box<[Lane]>,
}

/// The protocol state of one rank over all sets of an operation. See the [module](super) for the phases and rules.
///
/// No method allocates but [`new`](Self::new), [`readmit`](Self::readmit) and a [`ProtocolError`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Protocol {
    map: WordMap,
    rank: usize,
    capacity: u32,
    active: Box<[bool]>,
    sets: Box<[SetState]>,
    aborted: bool,
}

impl Protocol {
    /// The state of `rank` before any round.
    ///
    /// `capacity` bounds the rows of one source for one owner in a round. `first` is the epoch of every set's first
    /// round, the same on all ranks; all words must hold [`WordMap::initial`] of it before any rank's first dispatch.
    ///
    /// # Panics
    /// If `map` has no set, or no such rank.
    pub fn new(map: WordMap, rank: usize, capacity: u32, first: Epoch) -> Self {
        assert!(map.sets > 0, "an operation has at least one set");
        assert!(rank < map.ranks, "rank {rank} is not below {}", map.ranks);
        let set = SetState {
            epoch: first.prev(),
            stage: Stage::Closed,
            // What the initial READY_C says in its count.
            ready: Ready::Pull,
            lanes: vec![Lane::new(first); map.ranks].into(),
        };
        Self {
            map,
            rank,
            capacity,
            active: vec![true; map.ranks].into(),
            sets: vec![set; map.sets as usize].into(),
            aborted: false,
        }
    }

    /// Where the words lie.
    pub const fn map(&self) -> WordMap {
        self.map
    }

    /// This rank.
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Which ranks take part, by the mask of the last phase begun.
    pub fn active(&self) -> &[bool] {
        &self.active
    }

    /// The round that is open on `set`, if any.
    ///
    /// # Errors
    /// [`Misuse::SetOutOfRange`].
    pub fn open_round(&self, set: Set) -> Result<Option<Round>, Misuse> {
        let state = self.set(set)?;
        Ok((state.stage != Stage::Closed).then_some(Round { set, epoch: state.epoch }))
    }

    /// The last phase of the open round that was finished; `None` in the middle of its first.
    ///
    /// # Errors
    /// [`Misuse::StaleRound`], [`Misuse::SetOutOfRange`].
    pub fn last_phase(&self, round: Round) -> Result<Option<Phase>, Misuse> {
        Ok(match self.open(round)?.stage {
            Stage::After(phase) => Some(phase),
            Stage::Closed | Stage::Running(_) => None,
        })
    }

    /// Rows that `source` sends here in `round`, once its `META` was observed.
    ///
    /// # Errors
    /// [`Misuse::StaleRound`], [`Misuse::SetOutOfRange`], [`Misuse::NotActive`].
    pub fn rows_from(&self, round: Round, source: usize) -> Result<Option<u32>, Misuse> {
        let state = self.open(round)?;
        self.check_peer(source)?;
        Ok(state.lanes[source].rows_from(round.epoch))
    }

    /// Whether the operation has failed or was aborted.
    pub const fn is_aborted(&self) -> bool {
        self.aborted
    }

    /// Ends everything: from here on all is refused as [`Misuse::Aborted`].
    pub fn abort(&mut self) {
        self.aborted = true;
    }

    // Phases.

    /// Begins a round on `set` with its dispatch send: `rows_to[p]` rows go to rank p, none to a masked one.
    ///
    /// # Errors
    /// Any [`Misuse`] of sets, masks, capacity and order; the round is not begun then.
    pub fn begin_dispatch_send(&mut self, set: Set, active: &[bool], rows_to: &[u32]) -> Result<Round, Misuse> {
        self.check_alive()?;
        let state = self.set(set)?;
        self.check_idle(Phase::DispatchSend)?;
        if state.stage != Stage::Closed {
            return Err(Misuse::RoundOpen { round: Round { set, epoch: state.epoch } });
        }
        self.check_mask(active)?;
        self.check_length("rows_to", rows_to.len())?;
        for (peer, (&rows, &active)) in rows_to.iter().zip(active).enumerate() {
            if rows > self.capacity {
                return Err(Misuse::Capacity { peer, rows, capacity: self.capacity });
            }
            if rows > 0 && !active {
                return Err(Misuse::NotActive { peer, ranks: self.map.ranks });
            }
        }
        self.active.copy_from_slice(active);
        let state = &mut self.sets[set.index()];
        state.epoch = state.epoch.next();
        state.stage = Stage::Running(Phase::DispatchSend);
        for (lane, &rows) in state.lanes.iter_mut().zip(rows_to) {
            lane.begin(rows);
        }
        Ok(Round { set, epoch: state.epoch })
    }

    /// Begins to take rows in, after the dispatch send of this round, perhaps long after.
    ///
    /// # Errors
    /// Any [`Misuse`] of rounds, masks and order.
    pub fn begin_dispatch_receive(&mut self, round: Round, active: &[bool]) -> Result<(), Misuse> {
        self.begin(round, Phase::DispatchReceive, active)
    }

    /// Begins to give results back, after the dispatch receive of this round.
    ///
    /// # Errors
    /// Any [`Misuse`] of rounds, masks and order.
    pub fn begin_combine_send(&mut self, round: Round, combine: Combine, active: &[bool]) -> Result<(), Misuse> {
        self.begin(round, Phase::CombineSend, active)?;
        self.sets[round.set.index()].ready = combine.into();
        Ok(())
    }

    /// Begins to read results, after the combine send of this round. Finished, it ends the round.
    ///
    /// # Errors
    /// Any [`Misuse`] of rounds, masks and order.
    pub fn begin_combine_receive(&mut self, round: Round, active: &[bool]) -> Result<(), Misuse> {
        self.begin(round, Phase::CombineReceive, active)
    }

    /// Begins to end a round without results, after its dispatch receive. All ranks release, or all combine.
    ///
    /// # Errors
    /// Any [`Misuse`] of rounds, masks and order.
    pub fn begin_release(&mut self, round: Round, active: &[bool]) -> Result<(), Misuse> {
        self.begin(round, Phase::Release, active)?;
        self.sets[round.set.index()].ready = Ready::Released;
        Ok(())
    }

    /// Ends the running phase of `round`.
    ///
    /// # Errors
    /// [`Misuse::Unfinished`] if a word of an active peer was not yet published or observed; [`Misuse`] of rounds.
    pub fn finish(&mut self, round: Round) -> Result<(), Misuse> {
        self.check_alive()?;
        let state = self.open(round)?;
        let Stage::Running(phase) = state.stage else {
            return Err(Misuse::NothingRunning { round, now: state.stage.describe() });
        };
        for (peer, lane) in state.lanes.iter().enumerate().filter(|&(peer, _)| self.active[peer]) {
            if let Some(word) = lane.outstanding(phase, round.epoch) {
                return Err(Misuse::Unfinished { round, phase, peer, word });
            }
        }
        self.sets[round.set.index()].stage = match phase {
            Phase::CombineReceive | Phase::Release => Stage::Closed,
            Phase::DispatchSend | Phase::DispatchReceive | Phase::CombineSend => Stage::After(phase),
        };
        Ok(())
    }

    // Generations.

    /// The first epoch of `set` that no word of this rank's has come near. Ranks that readmit agree on the furthest of
    /// their answers, by [`Epoch::since`].
    ///
    /// # Errors
    /// [`Misuse::SetOutOfRange`].
    pub fn next_generation(&self, set: Set) -> Result<Epoch, Misuse> {
        // The round before the new first one is what its initial words carry: it too must be unused.
        Ok(self.set(set)?.epoch.next().next())
    }

    /// Starts a new generation with the ranks in `active`: those masked before may come back, an abort is over, open
    /// rounds are lost.
    ///
    /// All these ranks do it together: each has agreed to `first`, one epoch per set; then stores [`WordMap::initial`] of
    /// it into all its words; then they meet in a barrier that needs no word of this protocol; then they go on. A rank that
    /// is left out must be known dead, or fenced off.
    ///
    /// # Errors
    /// [`Misuse::UsedEpoch`] for an epoch before [`next_generation`](Self::next_generation), [`Misuse::Length`],
    /// [`Misuse::MaskedSelf`].
    pub fn readmit(&mut self, first: &[Epoch], active: &[bool]) -> Result<(), Misuse> {
        if first.len() != self.sets.len() {
            return Err(Misuse::Length { what: "first", given: first.len(), needed: self.sets.len() });
        }
        self.check_length("active", active.len())?;
        if !active[self.rank] {
            return Err(Misuse::MaskedSelf { rank: self.rank });
        }
        for (set, &given) in (0..self.map.sets).map(Set).zip(first) {
            let needed = self.next_generation(set)?;
            if given.since(needed) < 0 {
                return Err(Misuse::UsedEpoch { set, given, needed });
            }
        }
        for (state, &first) in self.sets.iter_mut().zip(first) {
            state.epoch = first.prev();
            state.stage = Stage::Closed;
            state.ready = Ready::Pull;
            state.lanes.fill(Lane::new(first));
        }
        self.active.copy_from_slice(active);
        self.aborted = false;
        Ok(())
    }

    // Checks and parts.

    fn set(&self, set: Set) -> Result<&SetState, Misuse> {
        self.sets.get(set.index()).ok_or(Misuse::SetOutOfRange { set, sets: self.map.sets })
    }

    /// The set of `round`, if that is open.
    fn open(&self, round: Round) -> Result<&SetState, Misuse> {
        let state = self.set(round.set)?;
        if state.epoch != round.epoch || state.stage == Stage::Closed {
            return Err(Misuse::StaleRound { given: round, current: state.epoch });
        }
        Ok(state)
    }

    /// The lane to an active peer, if `phase` of `round` is running.
    fn lane(&self, round: Round, phase: Phase, peer: usize) -> Result<&Lane, Misuse> {
        self.check_alive()?;
        let state = self.open(round)?;
        if state.stage != Stage::Running(phase) {
            return Err(Misuse::OutOfOrder { round, wanted: phase, now: state.stage.describe() });
        }
        self.check_peer(peer)?;
        Ok(&state.lanes[peer])
    }

    /// Begins a phase that continues a round.
    fn begin(&mut self, round: Round, phase: Phase, active: &[bool]) -> Result<(), Misuse> {
        self.check_alive()?;
        let stage = self.open(round)?.stage;
        self.check_idle(phase)?;
        if !stage.allows(phase) {
            return Err(Misuse::OutOfOrder { round, wanted: phase, now: stage.describe() });
        }
        self.check_mask(active)?;
        self.active.copy_from_slice(active);
        self.sets[round.set.index()].stage = Stage::Running(phase);
        Ok(())
    }

    fn check_alive(&self) -> Result<(), Misuse> {
        if self.aborted { Err(Misuse::Aborted) } else { Ok(()) }
    }

    fn check_idle(&self, wanted: Phase) -> Result<(), Misuse> {
        for (set, state) in (0..).map(Set).zip(&self.sets) {
            if let Stage::Running(running) = state.stage {
                return Err(Misuse::PhaseRunning { wanted, running, round: Round { set, epoch: state.epoch } });
            }
        }
        Ok(())
    }

    fn check_length(&self, what: &'static str, given: usize) -> Result<(), Misuse> {
        if given == self.map.ranks { Ok(()) } else { Err(Misuse::Length { what, given, needed: self.map.ranks }) }
    }

    fn check_mask(&self, active: &[bool]) -> Result<(), Misuse> {
        self.check_length("active", active.len())?;
        if !active[self.rank] {
            return Err(Misuse::MaskedSelf { rank: self.rank });
        }
        match (0..active.len()).find(|&rank| active[rank] && !self.active[rank]) {
            Some(rank) => Err(Misuse::MaskedBefore { rank }),
            None => Ok(()),
        }
    }

    fn check_peer(&self, peer: usize) -> Result<(), Misuse> {
        if self.active.get(peer) == Some(&true) {
            Ok(())
        } else {
            Err(Misuse::NotActive { peer, ranks: self.map.ranks })
        }
    }
}

/// The dump: every set, every lane, each word as last seen and as last posted.
impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.aborted { ", aborted" } else { "" };
        write!(f, "protocol of rank {} of {}, capacity {}{state}", self.rank, self.map.ranks, self.capacity)?;
        for (set, state) in (0..).map(Set).zip(&self.sets) {
            write!(f, "\n{set}: {}, {:?}, {:?}", state.epoch, state.stage, state.ready)?;
            for (peer, lane) in state.lanes.iter().enumerate() {
                let masked = if self.active[peer] { "" } else { " (masked)" };
                write!(f, "\n  rank {peer}{masked}: rows to it {}; seen", lane.rows_to)?;
                for word in Word::ALL {
                    write!(f, " {word} {}", Shown(word, lane.seen(word)))?;
                }
                write!(f, "; posted")?;
                for word in Word::ALL {
                    write!(f, " {word} {}", Shown(word, lane.posted(word)))?;
                }
            }
        }
        Ok(())
    }
}
