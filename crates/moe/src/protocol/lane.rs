//! What one rank knows of one peer in one set: the words seen from it, the words posted to it.
//!
//! There is no other state: that a credit is there, that rows have arrived, that a result was announced are read off
//! the words, so that nothing can disagree with them.

use super::word::at_least;
use super::{Epoch, Phase, TaggedWord, Word, WordMap};

/// A lane of one set, between this rank and one peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lane {
    /// The last value observed of each word that the peer writes here.
    seen: [u64; Word::ALL.len()],
    /// The last value of each word that this rank has written there.
    posted: [u64; Word::ALL.len()],
    /// `seen` and `posted` of the counters when the round began.
    base: Base,
    /// Rows for the peer in this round.
    pub rows_to: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Base {
    seen: [u64; 2],
    posted: [u64; 2],
}

/// Index of a counter in [`Base`].
const fn counter(word: Word) -> usize {
    match word {
        Word::Rows => 0,
        Word::Returned => 1,
        Word::Meta | Word::ReadyC | Word::DoneC => panic!("not a counter"),
    }
}

impl Lane {
    /// A lane of a generation whose first epoch is `first`.
    pub fn new(first: Epoch) -> Self {
        let initial = WordMap::initial(first);
        Self {
            seen: [initial; Word::ALL.len()],
            posted: [initial; Word::ALL.len()],
            base: Base { seen: [initial; 2], posted: [initial; 2] },
            rows_to: 0,
        }
    }

    /// Begins a round: the counters count from here.
    pub fn begin(&mut self, rows_to: u32) {
        let counters = |words: &[u64]| [words[Word::Rows as usize], words[Word::Returned as usize]];
        self.base = Base { seen: counters(&self.seen), posted: counters(&self.posted) };
        self.rows_to = rows_to;
    }

    /// The last value observed.
    pub fn seen(&self, word: Word) -> u64 {
        self.seen[word as usize]
    }

    /// The last value posted.
    pub fn posted(&self, word: Word) -> u64 {
        self.posted[word as usize]
    }

    /// Takes in a value observed.
    pub fn see(&mut self, word: Word, value: u64) {
        self.seen[word as usize] = value;
    }

    /// Takes note of a value to be posted.
    pub fn post(&mut self, word: Word, value: u64) {
        self.posted[word as usize] = value;
    }

    /// Whether a tagged word of that epoch, or a later one, was observed.
    pub fn has_seen(&self, word: Word, epoch: Epoch) -> bool {
        at_least(self.seen(word), TaggedWord { epoch, count: 0 }.pack())
    }

    /// Whether a tagged word of that epoch was posted.
    pub fn has_posted(&self, word: Word, epoch: Epoch) -> bool {
        TaggedWord::unpack(self.posted(word)).epoch == epoch
    }

    /// Rows that the peer announced for this round.
    pub fn rows_from(&self, epoch: Epoch) -> Option<u32> {
        let meta = TaggedWord::unpack(self.seen(Word::Meta));
        (meta.epoch == epoch).then_some(meta.count)
    }

    /// Rows of this round observed on a counter. At most the capacity, as the limit of the wait saw to.
    pub fn seen_rows(&self, word: Word) -> u32 {
        self.seen(word).wrapping_sub(self.base.seen[counter(word)]) as u32
    }

    /// Rows of this round posted on a counter.
    pub fn posted_rows(&self, word: Word) -> u32 {
        self.posted(word).wrapping_sub(self.base.posted[counter(word)]) as u32
    }

    /// The value of a counter of the peer's after `rows` of this round.
    pub fn seen_target(&self, word: Word, rows: u32) -> u64 {
        self.base.seen[counter(word)].wrapping_add(u64::from(rows))
    }
    /// The first word that `phase` of the round still has to publish or to see on this lane.
    pub fn outstanding(&self, phase: Phase, epoch: Epoch) -> Option<Word> {
        let published = |word| (word, self.has_posted(word, epoch));
        let needs: &[(Word, bool)] = match phase {
            Phase::DispatchSend => &[published(Word::Meta), (Word::Rows, self.posted_rows(Word::Rows) == self.rows_to)],
            Phase::DispatchReceive => &[
                (Word::Meta, self.rows_from(epoch).is_some()),
                (Word::Rows, self.rows_from(epoch) == Some(self.seen_rows(Word::Rows))),
                (Word::DoneC, self.has_seen(Word::DoneC, epoch.prev())),
            ],
            Phase::CombineSend => &[published(Word::ReadyC)],
            Phase::CombineReceive => &[published(Word::DoneC)],
            Phase::Release => &[published(Word::ReadyC), published(Word::DoneC)],
        };
        needs.iter().find_map(|&(word, done)| (!done).then_some(word))
    }
}
