//! The explorer: breadth-first search over every interleaving of the ranks' steps, memory sequentially consistent.
//!
//! A global state is one machine per rank. Machines are interned, and the successor of a machine is kept per value that it
//! loads, so a global state is three small numbers and the protocol runs once for each thing that it can be shown.
//!
//! Steps that no other rank can notice (beginning and ending a phase, a rank's traffic with itself, a wait for what was
//! seen before) are taken together with the step before them. All others interleave one by one: nothing else is reduced.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use campanile_moe::protocol::{Epoch, Misuse, Phase, ProtocolError, Set};

use crate::machine::{Act, Cell, Machine, Need, RANKS, Step, Trust};

/// What went wrong.
#[derive(Clone, Debug)]
pub enum Violation {
    /// A reader got a row of another round than its own.
    WrongRead { reader: usize, writer: usize, cell: Cell, expected: u64, seen: u64 },
    /// The protocol refused a word.
    Protocol(Box<ProtocolError>),
    /// The protocol refused a call.
    Misuse(Misuse),
    /// Nobody can go on, and somebody has not ended.
    Deadlock,
}

/// How a bug shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shows {
    /// A row of another round is read.
    Race,
    /// A word is refused.
    Refused,
    /// Nobody goes on: at the deadline, in an engine.
    Deadlock,
}

impl Violation {
    fn shows(&self) -> Option<Shows> {
        match self {
            Self::WrongRead { .. } => Some(Shows::Race),
            Self::Protocol(_) => Some(Shows::Refused),
            Self::Deadlock => Some(Shows::Deadlock),
            Self::Misuse(_) => None,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongRead { reader, writer, cell: Cell { plane, set, row, .. }, expected, seen } => write!(
                f,
                "rank {reader} reads row {row} of {plane:?} of {set}, written by rank {writer}, for {expected:#x}, finds {seen:#x}"
            ),
            // The dump that follows the first line is for a person.
            Self::Protocol(error) => f.write_str(error.to_string().lines().next().unwrap_or_default()),
            Self::Misuse(misuse) => write!(f, "{misuse}"),
            Self::Deadlock => f.write_str("deadlock"),
        }
    }
}

/// A violation and the shortest way to it: (rank, its step).
pub struct Found {
    pub violation: Violation,
    pub schedule: Vec<(usize, Step)>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, Step { set, peer, act }) in &self.schedule {
            writeln!(f, "  rank {rank}: {set}, peer {peer}: {act:?}")?;
        }
        write!(f, "  {}", self.violation)
    }
}

/// What is explored.
pub struct Model {
    pub scripts: [Vec<Step>; RANKS],
    pub sets: u32,
    pub first: Epoch,
    /// Rank 2 was masked by the others at some point and may be anywhere: it may be stuck for ever, and what it reads is
    /// its own affair.
    pub masked: bool,
    /// Any rank may abort before any of its steps.
    pub abort: bool,
    /// The bug of a readmission that starts over at the first epoch.
    pub restart: bool,
    /// The violation that is looked for; others end their path. `None`: any.
    pub seek: Option<Shows>,
}

/// What the machine does with a value.
#[derive(Clone, Copy)]
enum Move {
    To(u32),
    Wait,
    /// Index of the violation.
    Wrong(u32),
}

struct Node {
    machine: Machine,
    need: Need,
    moves: Vec<(u64, Move)>,
    /// Whether it has taken part in the readmission.
    met: bool,
    /// The machine, aborted.
    aborted: Option<u32>,
}

/// The machines of one rank.
#[derive(Default)]
struct Interned {
    nodes: Vec<Node>,
    index: HashMap<Machine, u32>,
}

impl Interned {
    fn intern(&mut self, machine: Machine, script: &[Step]) -> Result<u32, Violation> {
        if let Some(&id) = self.index.get(&machine) {
            return Ok(id);
        }
        let aborted = machine.protocol.is_aborted();
        let need = if aborted { Need::End } else { machine.need(script).map_err(Violation::Misuse)? };
        let id = u32::try_from(self.nodes.len()).expect("few machines");
        self.index.insert(machine.clone(), id);
        let met = has_met(&machine, script);
        self.nodes.push(Node { machine, need, moves: Vec::new(), met, aborted: None });
        Ok(id)
    }
}

/// Explores a model.
///
/// # Errors
/// The first violation in breadth-first order. Otherwise the number of states.
pub fn explore(model: &Model) -> Result<usize, Box<Found>> {
    Explorer::new(model).run()
}

struct Explorer<'a> {
    model: &'a Model,
    ranks: [Interned; RANKS],
    violations: Vec<Violation>,
    seen: HashSet<u64, BuildHasherDefault<Mix>>,
    /// Every state found, in order, with the one that it was reached from and by whose step.
    states: Vec<([u32; RANKS], u32, u8)>,
}

impl<'a> Explorer<'a> {
    fn new(model: &'a Model) -> Self {
        Self { model, ranks: Default::default(), violations: Vec::new(), seen: HashSet::default(), states: Vec::new() }
    }

    fn run(mut self) -> Result<usize, Box<Found>> {
        let mut start = [0; RANKS];
        for (rank, id) in start.iter_mut().enumerate() {
            let mut machine = Machine::new(rank, self.model.sets, self.model.first);
            let settled = self.settle(rank, &mut machine).and_then(|()| self.intern(rank, machine));
            *id = settled.map_err(|violation| Box::new(Found { violation, schedule: Vec::new() }))?;
        }
        self.add(start, 0, 0);
        let mut next = 0;
        while next < self.states.len() {
            self.expand(next)?;
            next += 1;
        }
        Ok(self.states.len())
    }

    fn expand(&mut self, from: usize) -> Result<(), Box<Found>> {
        let state = self.states[from].0;
        let mut stuck = true;
        for rank in 0..RANKS {
            match self.step(state, rank) {
                Move::To(id) => {
                    stuck = false;
                    self.add(with(state, rank, id), from, rank);
                }
                Move::Wait => {}
                // What a masked rank makes of what it reads is its own affair.
                Move::Wrong(_) if self.is_masked(state, rank) => {}
                Move::Wrong(index) => {
                    stuck = false;
                    let violation = self.violations[index as usize].clone();
                    if self.seeks(&violation) {
                        return Err(self.found(violation, from, Some(rank)));
                    }
                }
            }
            if self.model.abort
                && let Some(id) = self.abort(state, rank)
            {
                self.add(with(state, rank, id), from, rank);
            }
        }
        if let Some(met) = self.meet(state).map_err(|violation| self.found(violation, from, None))? {
            stuck = false;
            self.add(met, from, 0);
        }
        if stuck && !self.may_rest(state) && self.seeks(&Violation::Deadlock) {
            return Err(self.found(Violation::Deadlock, from, None));
        }
        Ok(())
    }

    /// Whether a state in which nobody moves is the end: all have ended, or wait for one who has aborted.
    fn may_rest(&self, state: [u32; RANKS]) -> bool {
        let aborted = |rank| self.node(state, rank).machine.protocol.is_aborted();
        let ended = |rank| self.node(state, rank).need == Need::End;
        (0..RANKS).any(aborted) || (0..RANKS).all(|rank| ended(rank) || self.is_masked(state, rank))
    }

    fn seeks(&self, violation: &Violation) -> bool {
        self.model.seek.is_none() || self.model.seek == violation.shows()
    }

    fn node(&self, state: [u32; RANKS], rank: usize) -> &Node {
        &self.ranks[rank].nodes[state[rank] as usize]
    }

    fn is_masked(&self, state: [u32; RANKS], rank: usize) -> bool {
        self.model.masked && rank == 2 && !self.node(state, rank).met
    }

    fn step(&mut self, state: [u32; RANKS], rank: usize) -> Move {
        let node = self.node(state, rank);
        let value = match node.need {
            Need::End | Need::Meeting => return Move::Wait,
            Need::Nothing | Need::Word(_, Trust::Blind) => 0,
            Need::Word(condition, _) => self.node(state, condition.source).machine.word(rank, condition.offset),
            Need::Cell { writer, cell } => self.node(state, writer).machine.cell(cell),
        };
        if let Some(&(_, made)) = node.moves.iter().find(|(known, _)| *known == value) {
            return made;
        }
        let mut machine = node.machine.clone();
        let moved = machine.step(&self.model.scripts[rank], value).and_then(|moved| {
            if !moved {
                return Ok(Move::Wait);
            }
            self.settle(rank, &mut machine)?;
            self.intern(rank, machine).map(Move::To)
        });
        let made = moved.unwrap_or_else(|violation| {
            self.violations.push(violation);
            Move::Wrong(self.violations.len() as u32 - 1)
        });
        self.ranks[rank].nodes[state[rank] as usize].moves.push((value, made));
        made
    }

    /// Takes all steps that no other rank can notice.
    fn settle(&self, rank: usize, machine: &mut Machine) -> Result<(), Violation> {
        let script = &self.model.scripts[rank];
        while let Some(step) = script.get(machine.pc) {
            let value = match machine.need(script).map_err(Violation::Misuse)? {
                Need::Nothing if step.peer == rank || matches!(step.act, Act::Await(..)) => 0,
                Need::Word(condition, _) if step.peer == rank => machine.word(rank, condition.offset),
                Need::Cell { writer, cell } if writer == rank => machine.cell(cell),
                _ => break,
            };
            let moved = machine.step(script, value)?;
            assert!(moved, "rank {rank} waits for itself at {step:?}");
        }
        Ok(())
    }

    /// The state with `rank` aborted, unless it has ended.
    fn abort(&mut self, state: [u32; RANKS], rank: usize) -> Option<u32> {
        let script = &self.model.scripts[rank];
        let node = self.node(state, rank);
        if node.need == Need::End {
            return None;
        }
        if node.aborted.is_some() {
            return node.aborted;
        }
        let mut machine = node.machine.clone();
        machine.protocol.abort();
        refuses_all(&machine, script);
        let id = self.intern(rank, machine).ok();
        self.ranks[rank].nodes[state[rank] as usize].aborted = id;
        id
    }

    /// All that are not masked have come to the readmission: the state after it.
    fn meet(&mut self, state: [u32; RANKS]) -> Result<Option<[u32; RANKS]>, Violation> {
        let waits = |rank| self.node(state, rank).need == Need::Meeting;
        // A masked rank joins the others from wherever it is, once.
        if !waits(0) || !(0..RANKS).all(|rank| waits(rank) || self.is_masked(state, rank)) {
            return Ok(None);
        }
        let machines: Vec<Machine> = (0..RANKS).map(|rank| self.node(state, rank).machine.clone()).collect();
        let first: Vec<Epoch> = (0..self.model.sets)
            .map(|set| {
                let proposals = machines.iter().map(|machine| machine.protocol.next_generation(Set(set)));
                let proposals = proposals.map(|epoch| epoch.expect("the set exists"));
                proposals.reduce(|a, b| if b.since(a) > 0 { b } else { a }).expect("there are ranks")
            })
            .collect();
        let mut met = state;
        for (rank, mut machine) in machines.into_iter().enumerate() {
            let script = &self.model.scripts[rank];
            if self.model.restart {
                machine.restart(script, self.model.first);
            } else {
                machine.readmit(script, &first).map_err(Violation::Misuse)?;
            }
            self.settle(rank, &mut machine)?;
            met[rank] = self.intern(rank, machine)?;
        }
        Ok(Some(met))
    }

    fn intern(&mut self, rank: usize, machine: Machine) -> Result<u32, Violation> {
        self.ranks[rank].intern(machine, &self.model.scripts[rank])
    }

    fn add(&mut self, state: [u32; RANKS], from: usize, rank: usize) {
        let key = state.iter().fold(0, |key, &id| {
            assert!(id < 1 << 21, "a state is packed into 63 bits");
            key << 21 | u64::from(id)
        });
        if self.seen.insert(key) {
            self.states.push((state, from as u32, rank as u8));
        }
    }

    fn found(&self, violation: Violation, at: usize, by: Option<usize>) -> Box<Found> {
        let step = |state: [u32; RANKS], rank: usize| {
            self.model.scripts[rank].get(self.node(state, rank).machine.pc).map(|&step| (rank, step))
        };
        let mut schedule: Vec<_> = by.and_then(|rank| step(self.states[at].0, rank)).into_iter().collect();
        let mut at = at;
        while at != 0 {
            let (_, from, rank) = self.states[at];
            schedule.extend(step(self.states[from as usize].0, usize::from(rank)));
            at = from as usize;
        }
        schedule.reverse();
        Box::new(Found { violation, schedule })
    }
}

fn with(mut state: [u32; RANKS], rank: usize, id: u32) -> [u32; RANKS] {
    state[rank] = id;
    state
}

fn has_met(machine: &Machine, script: &[Step]) -> bool {
    script.iter().position(|step| step.act == Act::Readmit).is_some_and(|meeting| machine.pc > meeting)
}

/// An aborted machine must be refused whatever its script would have done with the protocol, at this step or later.
fn refuses_all(machine: &Machine, script: &[Step]) {
    for (pc, step) in script.iter().enumerate().skip(machine.pc) {
        if !matches!(step.act, Act::Begin { .. } | Act::Finish | Act::Publish(..)) {
            continue;
        }
        let mut machine = machine.clone();
        machine.pc = pc;
        let in_round = machine.protocol.open_round(step.set).is_ok_and(|round| round.is_some());
        let opens = matches!(step.act, Act::Begin { phase: Phase::DispatchSend, .. });
        if in_round || opens {
            let refused = machine.step(script, 0);
            assert!(
                matches!(refused, Err(Violation::Misuse(Misuse::Aborted))),
                "after an abort, {step:?} is {refused:?}"
            );
        }
    }
}

/// A hash for packed states: multiply and fold (Knuth's multiplicative hash).
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("states are hashed as one number");
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(value) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}
