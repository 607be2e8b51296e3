//! What to publish: stores of words into the memory of peers.

use super::stage::Stage;
use super::word::tagged;
use super::{Combine, Misuse, Phase, Protocol, Ready, Round, Set, Word};

/// A word to be published: a release store into the words of `peer`, after everything that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the protocol has counted this store as made"]
pub struct WordStore {
    /// Which word.
    pub word: Word,
    /// The rank whose memory it goes to.
    pub peer: usize,
    /// Offset in bytes from the start of that rank's words.
    pub offset: usize,
    /// The value.
    pub value: u64,
}

/// What to publish. Each store covers what this rank wrote, or has read, before it.
impl Protocol {
    /// Dispatch send: `META`, once the routing for `peer` is written. Also with 0 rows.
    ///
    /// # Errors
    /// [`Misuse::TooEarly`] before the credit; [`Misuse::Published`]; [`Misuse`] of rounds, order and peers.
    pub fn publish_meta(&mut self, round: Round, peer: usize) -> Result<WordStore, Misuse> {
        let lane = self.lane(round, Phase::DispatchSend, peer)?;
        self.check_credit(round, peer, Word::Meta)?;
        if lane.has_posted(Word::Meta, round.epoch) {
            return Err(Misuse::Published { round, peer, word: Word::Meta });
        }
        let value = tagged(round.epoch, lane.rows_to);
        Ok(self.store(round.set, Word::Meta, peer, value))
    }

    /// Dispatch send: `ROWS`, once `more` further rows for `peer` are written. Before or after `META`.
    ///
    /// # Errors
    /// [`Misuse::TooEarly`] before the credit; [`Misuse::TooManyRows`]; [`Misuse`] of rounds, order and peers.
    pub fn publish_rows(&mut self, round: Round, peer: usize, more: u32) -> Result<WordStore, Misuse> {
        let announced = self.lane(round, Phase::DispatchSend, peer)?.rows_to;
        self.check_credit(round, peer, Word::Rows)?;
        self.advance(round, Word::Rows, peer, more, announced)
    }

    /// Combine send, by push: `RETURNED`, once `more` further results are written into `peer`'s `returns`.
    ///
    /// # Errors
    /// [`Misuse::WrongCombine`] by pull; [`Misuse::TooManyRows`]; [`Misuse`] of rounds, order and peers.
    pub fn publish_returned(&mut self, round: Round, peer: usize, more: u32) -> Result<WordStore, Misuse> {
        let lane = self.lane(round, Phase::CombineSend, peer)?;
        if self.sets[round.set.index()].ready != Ready::Push {
            return Err(Misuse::WrongCombine { round, word: Word::Returned, combine: Combine::Pull });
        }
        // A finished dispatch has seen META of every active peer; masks only shrink.
        let announced = lane.rows_from(round.epoch).unwrap_or(0);
        self.advance(round, Word::Returned, peer, more, announced)
    }

    /// Combine send or release: `READY_C`, once the outputs for `peer` are written (by pull) and its rows of this round
    /// are no longer read. Also with 0 rows.
    ///
    /// # Errors
    /// [`Misuse::TooEarly`] by push, before all results were published; [`Misuse::Published`]; [`Misuse`] of rounds, order
    /// and peers.
    pub fn publish_ready(&mut self, round: Round, peer: usize) -> Result<WordStore, Misuse> {
        let ready = self.open(round)?.ready;
        let phase = if self.is_releasing(round) { Phase::Release } else { Phase::CombineSend };
        let lane = self.lane(round, phase, peer)?;
        if lane.has_posted(Word::ReadyC, round.epoch) {
            return Err(Misuse::Published { round, peer, word: Word::ReadyC });
        }
        if ready == Ready::Push && lane.rows_from(round.epoch) != Some(lane.posted_rows(Word::Returned)) {
            return Err(Misuse::TooEarly { round, peer, word: Word::ReadyC, missing: Word::Returned });
        }
        Ok(self.store(round.set, Word::ReadyC, peer, tagged(round.epoch, ready as u32)))
    }

    /// Combine receive or release: `DONE_C`, once the last result of `peer` was read. Also with 0 rows.
    ///
    /// # Errors
    /// [`Misuse::TooEarly`] before all its results were there; [`Misuse::Published`]; [`Misuse`] of rounds, order and peers.
    pub fn publish_done(&mut self, round: Round, peer: usize) -> Result<WordStore, Misuse> {
        let ready = self.open(round)?.ready;
        let phase = if self.is_releasing(round) { Phase::Release } else { Phase::CombineReceive };
        let lane = self.lane(round, phase, peer)?;
        if lane.has_posted(Word::DoneC, round.epoch) {
            return Err(Misuse::Published { round, peer, word: Word::DoneC });
        }
        let (there, missing) = match ready {
            Ready::Pull => (lane.rows_to == 0 || lane.has_seen(Word::ReadyC, round.epoch), Word::ReadyC),
            Ready::Push => (lane.seen_rows(Word::Returned) == lane.rows_to, Word::Returned),
            Ready::Released => (true, Word::ReadyC),
        };
        if !there {
            return Err(Misuse::TooEarly { round, peer, word: Word::DoneC, missing });
        }
        Ok(self.store(round.set, Word::DoneC, peer, tagged(round.epoch, 0)))
    }

    fn check_credit(&self, round: Round, peer: usize, word: Word) -> Result<(), Misuse> {
        if self.sets[round.set.index()].lanes[peer].has_seen(Word::ReadyC, round.epoch.prev()) {
            Ok(())
        } else {
            Err(Misuse::TooEarly { round, peer, word, missing: Word::ReadyC })
        }
    }

    fn is_releasing(&self, round: Round) -> bool {
        self.sets[round.set.index()].stage == Stage::Running(Phase::Release)
    }

    /// Advances a counter for `peer` by `more` of the `announced` rows.
    fn advance(
        &mut self,
        round: Round,
        word: Word,
        peer: usize,
        more: u32,
        announced: u32,
    ) -> Result<WordStore, Misuse> {
        let lane = &self.sets[round.set.index()].lanes[peer];
        let given = u64::from(lane.posted_rows(word)) + u64::from(more);
        if given > u64::from(announced) {
            return Err(Misuse::TooManyRows { round, peer, word, given, announced });
        }
        let value = lane.posted(word).wrapping_add(u64::from(more));
        Ok(self.store(round.set, word, peer, value))
    }

    fn store(&mut self, set: Set, word: Word, peer: usize, value: u64) -> WordStore {
        self.sets[set.index()].lanes[peer].post(word, value);
        WordStore { word, peer, offset: self.map.offset(set, self.rank, word), value }
    }
}
