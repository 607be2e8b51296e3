//! What to wait for: conditions on words in this rank's own memory, and the judgement of what a wait saw.

use super::stage::Stage;
use super::word::{at_least, tagged};
use super::{Misuse, Phase, Protocol, ProtocolError, Ready, Round, Set, TaggedWord, Word};

/// Something to wait for: a word in this rank's own memory to reach a value.
///
/// Wait until `(seen − at_least) as i64 ≥ 0` at [`offset`](Self::offset), with acquire order, then give the value seen
/// to [`Protocol::observe`](super::Protocol::observe).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WordCondition {
    /// The round that waits.
    pub round: Round,
    /// Which word.
    pub word: Word,
    /// The rank that writes it.
    pub source: usize,
    /// Offset in bytes from the start of this rank's words.
    pub offset: usize,
    /// The value to be reached, by signed difference.
    pub at_least: u64,
    /// The last value that a correct peer could have written by now.
    pub limit: u64,
}

/// What a word said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Seen {
    /// The condition does not hold yet.
    Pending,
    /// It holds. Rows announced (`META`), or rows of this round there by now (`ROWS`, `RETURNED`); else 0.
    Ready(u32),
}

/// What to wait for. `None`: there is nothing to wait for, now or any more in this round.
impl Protocol {
    /// Dispatch send: before rows, routing or words of this round are written to `peer`, its `READY_C` of the last one.
    ///
    /// # Errors
    /// [`Misuse`] of rounds, order and peers.
    pub fn credit(&self, round: Round, peer: usize) -> Result<Option<WordCondition>, Misuse> {
        let lane = self.lane(round, Phase::DispatchSend, peer)?;
        let credit = round.epoch.prev();
        if lane.has_seen(Word::ReadyC, credit) {
            return Ok(None);
        }
        let ready = self.sets[round.set.index()].ready;
        Ok(Some(self.condition(round, Word::ReadyC, peer, tagged(credit, 0), tagged(credit, ready as u32))))
    }

    /// Dispatch receive: the `META` of `source`, before its rows are waited for or its routing is read.
    ///
    /// # Errors
    /// [`Misuse`] of rounds, order and peers.
    pub fn meta(&self, round: Round, source: usize) -> Result<Option<WordCondition>, Misuse> {
        let lane = self.lane(round, Phase::DispatchReceive, source)?;
        if lane.rows_from(round.epoch).is_some() {
            return Ok(None);
        }
        let (target, limit) = (tagged(round.epoch, 0), tagged(round.epoch, self.capacity));
        Ok(Some(self.condition(round, Word::Meta, source, target, limit)))
    }

    /// Dispatch receive: before the first `rows` rows of `source` are read, its `ROWS`.
    ///
    /// # Errors
    /// [`Misuse::TooEarly`] before its `META` was observed, [`Misuse::TooManyRows`] beyond what that announced; [`Misuse`]
    /// of rounds, order and peers.
    pub fn rows(&self, round: Round, source: usize, rows: u32) -> Result<Option<WordCondition>, Misuse> {
        let lane = self.lane(round, Phase::DispatchReceive, source)?;
        let Some(announced) = lane.rows_from(round.epoch) else {
            return Err(Misuse::TooEarly { round, peer: source, word: Word::Rows, missing: Word::Meta });
        };
        self.counter(round, Word::Rows, source, rows, announced)
    }

    /// At any time: before `outputs` for `peer`, or its `returns`, are written for the next combine, its `DONE_C` of the
    /// last one. A finished dispatch implies it; a caller that writes `outputs` without one asks here.
    ///
    /// # Errors
    /// [`Misuse::Aborted`], [`Misuse::SetOutOfRange`], [`Misuse::NotActive`].
    pub fn outputs_free(&self, set: Set, peer: usize) -> Result<Option<WordCondition>, Misuse> {
        self.check_alive()?;
        let state = self.set(set)?;
        self.check_peer(peer)?;
        let last = if state.stage == Stage::Closed { state.epoch } else { state.epoch.prev() };
        if state.lanes[peer].has_seen(Word::DoneC, last) {
            return Ok(None);
        }
        let round = Round { set, epoch: last };
        // A peer that released the open round, or sent nothing here, may be done with it before this rank has looked.
        Ok(Some(self.condition(round, Word::DoneC, peer, tagged(last, 0), tagged(state.epoch, 0))))
    }

    /// Combine receive: before the first `rows` results of `owner` are read. By pull all of them at once (`READY_C`),
    /// by push so many (`RETURNED`). Nothing is waited for where no row was sent.
    ///
    /// # Errors
    /// [`Misuse::TooManyRows`] beyond what was sent; [`Misuse`] of rounds, order and peers.
    pub fn results(&self, round: Round, owner: usize, rows: u32) -> Result<Option<WordCondition>, Misuse> {
        let lane = self.lane(round, Phase::CombineReceive, owner)?;
        let ready = self.sets[round.set.index()].ready;
        if ready == Ready::Push {
            return self.counter(round, Word::Returned, owner, rows, lane.rows_to);
        }
        if rows > lane.rows_to {
            let (given, announced) = (u64::from(rows), lane.rows_to);
            return Err(Misuse::TooManyRows { round, peer: owner, word: Word::ReadyC, given, announced });
        }
        if rows == 0 || lane.has_seen(Word::ReadyC, round.epoch) {
            return Ok(None);
        }
        let (target, limit) = (tagged(round.epoch, 0), tagged(round.epoch, ready as u32));
        Ok(Some(self.condition(round, Word::ReadyC, owner, target, limit)))
    }

    /// Judges the value that a wait for `condition` saw, and takes it in if it is [`Seen::Ready`].
    ///
    /// # Errors
    /// [`ProtocolError`] if no correct peer could have written it; the protocol is aborted then.
    pub fn observe(&mut self, condition: &WordCondition, seen: u64) -> Result<Seen, ProtocolError> {
        let WordCondition { round, word, source, at_least: target, limit, .. } = *condition;
        let lane = &mut self.sets[round.set.index()].lanes[source];
        let grown = at_least(seen, lane.seen(word)) && at_least(limit, seen);
        let reached = at_least(seen, target);
        // READY_C must also say what this rank's own round says: a peer that releases has no results.
        if !grown || (reached && word == Word::ReadyC && seen != limit) {
            self.aborted = true;
            return Err(ProtocolError {
                rank: self.rank,
                set: round.set,
                word,
                source_rank: source,
                expected: target,
                limit,
                seen,
                dump: self.to_string(),
            });
        }
        if !reached {
            return Ok(Seen::Pending);
        }
        lane.see(word, seen);
        Ok(Seen::Ready(match word {
            Word::Meta => TaggedWord::unpack(seen).count,
            Word::Rows | Word::Returned => lane.seen_rows(word),
            Word::ReadyC | Word::DoneC => 0,
        }))
    }

    fn condition(&self, round: Round, word: Word, source: usize, at_least: u64, limit: u64) -> WordCondition {
        let offset = self.map.offset(round.set, source, word);
        WordCondition { round, word, source, offset, at_least, limit }
    }

    /// The condition that a counter of `source` has reached `rows` of the `announced`.
    fn counter(
        &self,
        round: Round,
        word: Word,
        source: usize,
        rows: u32,
        announced: u32,
    ) -> Result<Option<WordCondition>, Misuse> {
        if rows > announced {
            return Err(Misuse::TooManyRows { round, peer: source, word, given: u64::from(rows), announced });
        }
        let lane = &self.sets[round.set.index()].lanes[source];
        if lane.seen_rows(word) >= rows {
            return Ok(None);
        }
        let (target, limit) = (lane.seen_target(word, rows), lane.seen_target(word, announced));
        Ok(Some(self.condition(round, word, source, target, limit)))
    }
}
