//! One rank of the model: the real [`Protocol`], a script, and all memory that this rank has written.
//!
//! Every word and every cell has one writer, so the memory of the whole system is the sum of what each rank wrote: it is
//! kept with the writer. A rank's next step is fixed by its own state; only the value that it loads comes from outside.

use campanile_moe::protocol::{
    Combine, Epoch, Misuse, Phase, Protocol, Seen, Set, Word, WordCondition, WordMap, WordStore,
};

use crate::explorer::Violation;

/// Ranks of every model.
pub const RANKS: usize = 3;

/// Rows that one source sends to one owner in a round, at most.
pub const CAPACITY: u32 = 2;

/// A plane of payload. `Routing` and `Rows` are written by the source, `Outputs` and `Returns` by the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plane {
    Routing,
    Rows,
    Outputs,
    Returns,
}

/// One row of a plane: kept with its writer, for `peer`, who reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    pub plane: Plane,
    pub set: Set,
    pub peer: usize,
    pub row: u32,
}

impl Cell {
    fn index(self) -> usize {
        ((self.plane as usize * 2 + self.set.index()) * RANKS + self.peer) * CAPACITY as usize + self.row as usize
    }
}

/// Cells that one rank can write.
const CELLS: usize = 4 * 2 * RANKS * CAPACITY as usize;

/// A cell that nobody has written.
pub const UNWRITTEN: u64 = u64::MAX;

/// A cell that its writer has cleared for its next round.
const CLEARED: u64 = u64::MAX - 1;

/// Which wait of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Await {
    Credit,
    Meta,
    Rows(u32),
    OutputsFree,
    Results(u32),
}

/// How a wait is done. All but `Honest` are bugs to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trust {
    /// The word is looked at.
    Honest,
    /// It is not: the protocol is told what it wants to hear.
    Blind,
    /// The word of the epoch before is enough.
    EpochEarly,
}

/// One action of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    Begin {
        phase: Phase,
        combine: Combine,
        active: [bool; RANKS],
        rows: [u32; RANKS],
    },
    Finish,
    Await(Await, Trust),
    Publish(Word, u32),
    /// The store is counted, and then lost.
    Forget(Word),
    Write(Plane, u32),
    /// An output is cleared for the next round, before its dispatch.
    Clear(u32),
    Read(Plane, u32),
    /// All ranks meet, outside the protocol, and readmit whoever was masked.
    Readmit,
}

/// An action on a set, towards a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    pub set: Set,
    pub peer: usize,
    pub act: Act,
}

/// What a rank needs from outside for its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Need {
    /// Nothing: it writes, or only thinks.
    Nothing,
    /// A word that `source` writes here.
    Word(WordCondition, Trust),
    /// A cell of `writer`'s.
    Cell { writer: usize, cell: Cell },
    /// All other ranks.
    Meeting,
    /// It has ended.
    End,
}

/// The state of one rank.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Machine {
    pub protocol: Protocol,
    pub pc: usize,
    /// Readmissions so far.
    generation: u64,
    /// Words that this rank has written, `[peer][offset / 8]`.
    words: Box<[u64]>,
    /// Cells that this rank has written: the generation and epoch of the round that they belong to.
    cells: [u64; CELLS],
}

impl Machine {
    pub fn new(rank: usize, sets: u32, first: Epoch) -> Self {
        let map = WordMap { sets, ranks: RANKS };
        Self {
            protocol: Protocol::new(map, rank, CAPACITY, first),
            pc: 0,
            generation: 0,
            words: vec![WordMap::initial(first); RANKS * map.bytes() / 8].into(),
            cells: [UNWRITTEN; CELLS],
        }
    }

    /// The value at `offset` of `reader`'s words, which this rank writes.
    pub fn word(&self, reader: usize, offset: usize) -> u64 {
        self.words[(reader * self.protocol.map().bytes() + offset) / 8]
    }

    /// The value of a cell that this rank writes.
    pub fn cell(&self, cell: Cell) -> u64 {
        self.cells[cell.index()]
    }

    /// What the step at `pc` needs.
    pub fn need(&self, script: &[Step]) -> Result<Need, Misuse> {
        let Some(&Step { set, peer, act }) = script.get(self.pc) else { return Ok(Need::End) };
        Ok(match act {
            Act::Await(wait, trust) => match self.condition(set, peer, wait)? {
                Some(condition) => Need::Word(condition, trust),
                None => Need::Nothing,
            },
            Act::Read(plane, row) => {
                Need::Cell { writer: peer, cell: Cell { plane, set, peer: self.protocol.rank(), row } }
            }
            Act::Readmit => Need::Meeting,
            _ => Need::Nothing,
        })
    }

    fn condition(&self, set: Set, peer: usize, wait: Await) -> Result<Option<WordCondition>, Misuse> {
        let protocol = &self.protocol;
        if wait == Await::OutputsFree {
            return protocol.outputs_free(set, peer);
        }
        let round = protocol.open_round(set)?.expect("a script opens the round that it waits in");
        match wait {
            Await::Credit => protocol.credit(round, peer),
            Await::Meta => protocol.meta(round, peer),
            Await::Rows(rows) => protocol.rows(round, peer, rows),
            Await::Results(rows) => protocol.results(round, peer, rows),
            Await::OutputsFree => unreachable!("handled above"),
        }
    }

    /// Takes the step at `pc`, with the `value` loaded for its need. False: it has to wait.
    pub fn step(&mut self, script: &[Step], value: u64) -> Result<bool, Violation> {
        let need = self.need(script).map_err(Violation::Misuse)?;
        let Step { set, peer, act } = script[self.pc];
        let rank = self.protocol.rank();
        match (need, act) {
            (Need::Word(condition, trust), _) => {
                let value = match trust {
                    Trust::Honest => value,
                    Trust::Blind => condition.limit,
                    Trust::EpochEarly if reaches(value, condition.at_least.wrapping_sub(1 << 32)) => condition.limit,
                    Trust::EpochEarly => return Ok(false),
                };
                match self.protocol.observe(&condition, value) {
                    Ok(Seen::Pending) => return Ok(false),
                    Ok(Seen::Ready(_)) => {}
                    Err(error) => return Err(Violation::Protocol(error.into())),
                }
            }
            (Need::Cell { cell, .. }, _) => {
                let expected = self.stamp(set);
                if value != expected {
                    return Err(Violation::WrongRead { reader: rank, writer: peer, cell, expected, seen: value });
                }
            }
            (_, Act::Begin { phase, combine, active, rows }) => {
                self.begin(set, phase, combine, &active, &rows).map_err(Violation::Misuse)?;
            }
            (_, Act::Finish) => {
                let round = self.protocol.open_round(set).map_err(Violation::Misuse)?.expect("a phase runs");
                self.protocol.finish(round).map_err(Violation::Misuse)?;
            }
            (_, Act::Publish(word, more)) => {
                let WordStore { word: stored, peer: to, offset, value } =
                    self.publish(set, peer, word, more).map_err(Violation::Misuse)?;
                // One writer per word: a store goes to the line of (set, this rank) at that peer, and nowhere else.
                assert_eq!((stored, to, offset), (word, peer, self.protocol.map().offset(set, rank, word)));
                self.words[(peer * self.protocol.map().bytes() + offset) / 8] = value;
            }
            (_, Act::Forget(word)) => {
                let _lost = self.publish(set, peer, word, 0).map_err(Violation::Misuse)?;
            }
            (_, Act::Write(plane, row)) => {
                self.cells[Cell { plane, set, peer, row }.index()] = self.stamp(set);
            }
            (_, Act::Clear(row)) => {
                self.cells[Cell { plane: Plane::Outputs, set, peer, row }.index()] = CLEARED;
            }
            (_, Act::Await(..) | Act::Read(..) | Act::Readmit) => {}
        }
        self.pc += 1;
        Ok(true)
    }

    /// What the cells of the open round hold: generation and epoch.
    fn stamp(&self, set: Set) -> u64 {
        let round = self.protocol.open_round(set).expect("the set exists").expect("payload moves in a round");
        self.generation << 32 | u64::from(round.epoch.0)
    }

    fn begin(&mut self, set: Set, phase: Phase, combine: Combine, active: &[bool], rows: &[u32]) -> Result<(), Misuse> {
        if phase == Phase::DispatchSend {
            return self.protocol.begin_dispatch_send(set, active, rows).map(|_| ());
        }
        let round = self.protocol.open_round(set)?.expect("a script continues a round that is open");
        match phase {
            Phase::DispatchReceive => self.protocol.begin_dispatch_receive(round, active),
            Phase::CombineSend => self.protocol.begin_combine_send(round, combine, active),
            Phase::CombineReceive => self.protocol.begin_combine_receive(round, active),
            Phase::Release => self.protocol.begin_release(round, active),
            Phase::DispatchSend => unreachable!("handled above"),
        }
    }

    fn publish(&mut self, set: Set, peer: usize, word: Word, more: u32) -> Result<WordStore, Misuse> {
        let round = self.protocol.open_round(set)?.expect("a script publishes in a round");
        match word {
            Word::Meta => self.protocol.publish_meta(round, peer),
            Word::Rows => self.protocol.publish_rows(round, peer, more),
            Word::Returned => self.protocol.publish_returned(round, peer, more),
            Word::ReadyC => self.protocol.publish_ready(round, peer),
            Word::DoneC => self.protocol.publish_done(round, peer),
        }
    }

    /// Joins a new generation and goes on after the readmission: `first` is agreed, all words are reset.
    pub fn readmit(&mut self, script: &[Step], first: &[Epoch]) -> Result<(), Misuse> {
        self.protocol.readmit(first, &[true; RANKS])?;
        let map = self.protocol.map();
        for peer in 0..RANKS {
            for (set, &first) in (0..).map(Set).zip(first) {
                for word in Word::ALL {
                    let offset = map.offset(set, self.protocol.rank(), word);
                    self.words[(peer * map.bytes() + offset) / 8] = WordMap::initial(first);
                }
            }
        }
        self.skip_meeting(script);
        Ok(())
    }

    /// The bug: a new state at the very first epoch, with the words of the old one in place.
    pub fn restart(&mut self, script: &[Step], first: Epoch) {
        self.protocol = Protocol::new(self.protocol.map(), self.protocol.rank(), CAPACITY, first);
        self.skip_meeting(script);
    }

    fn skip_meeting(&mut self, script: &[Step]) {
        let meeting = script.iter().position(|step| step.act == Act::Readmit);
        self.pc = meeting.expect("all scripts meet") + 1;
        self.generation += 1;
    }
}

fn reaches(value: u64, bound: u64) -> bool {
    value.wrapping_sub(bound) as i64 >= 0
}
