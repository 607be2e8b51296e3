//! Model check of the stream: small rings, few ranks, every interleaving.
//!
//! Each rank is a list of steps made by the rules of [`stream`](super) with the counting of [`Slots`]: writes of a slot in
//! two halves, words raised, words waited for, slots read. The explorer goes through all interleavings under sequential
//! consistency (that a word covers what was written before it is the window's promise, and is tested there). In every
//! state a reader must find the part that it is in, whole, and somebody must be able to go on until all have ended. Then
//! each rule is broken in turn, and must be missed.

use std::collections::HashSet;

use super::slots::Slots;

/// What the ranks do: all make the same calls.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// From a root, in so many parts.
    Broadcast(usize, u64),
    /// In so many parts from each.
    AllGather(u64),
    /// As a broadcast of one part, from the input: returned at once.
    Lend(usize),
    /// A root waits until what it lent was read, and writes its input.
    Rewrite(usize),
    /// All lend what they have in private memory, and take it back before they end; their callers write it before.
    GatherLent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// Wait until reader `1` has returned slot `0` of this rank.
    Returned(u64, usize),
    /// Begin to write slot number `0`: it is torn.
    Tear(u64),
    /// It is whole.
    Write(u64),
    /// Raise `arrived` of peer `1` to `0`.
    Publish(u64, usize),
    /// Wait until slot `0` of source `1` has arrived.
    Arrived(u64, usize),
    /// Slot `0` of source `1` must be that one, whole.
    Read(u64, usize),
    /// Raise `returned` at source `1` to `0`.
    Return(u64, usize),
    /// The input, or private memory, is written for the lent slot `0`, torn and then whole.
    TearInput,
    WriteInput(u64),
    /// The input of source `1` must be that of slot `0`.
    ReadInput(u64, usize),
}

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A slot is written without waiting for its last use.
    NoClaim,
    /// It is awaited one slot too late.
    ClaimOneTooFew,
    /// A slot is published before it is whole.
    PublishFirst,
    /// A slot is returned before it is read.
    ReturnFirst,
    /// A slot is read without waiting for it.
    NoArrived,
    /// Only a full ring is returned.
    ReturnSeldom,
    /// The input is written again without waiting.
    NoInputWait,
    /// A rank publishes all its parts before it reads any.
    NoLimitAhead,
    /// A lent slot is returned like any other.
    LentReturnedLate,
    /// A call ends before what it lent in private memory was read.
    NotTakenBack,
}

const SLOTS: Slots = Slots::new(8);
/// The wrap is among the numbers.
const FIRST: u64 = u64::MAX - 2;

/// Writes one rank's steps.
struct Writer {
    rank: usize,
    ranks: usize,
    bug: Bug,
    sent: u64,
    lent: u64,
    read: Vec<u64>,
    returned: Vec<u64>,
    steps: Vec<Step>,
}

impl Writer {
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, ranks) = (self.rank, self.ranks);
        (1..ranks).map(move |step| (rank + step) % ranks)
    }

    fn send(&mut self) {
        self.sent = self.sent.wrapping_add(1);
        let number = self.sent;
        if self.bug != Bug::NoClaim {
            let late = u64::from(self.bug == Bug::ClaimOneTooFew);
            let free = SLOTS.last_use(number).wrapping_sub(late);
            self.steps.extend(self.others().map(|peer| Step::Returned(free, peer)));
        }
        self.steps.push(Step::Tear(number));
        let publish = self.others().map(|peer| Step::Publish(number, peer));
        if self.bug == Bug::PublishFirst {
            self.steps.extend(publish);
            self.steps.push(Step::Write(number));
        } else {
            self.steps.push(Step::Write(number));
            self.steps.extend(publish);
        }
    }

    fn receive(&mut self, source: usize, lent: bool) {
        let number = self.read[source].wrapping_add(1);
        self.read[source] = number;
        if self.bug != Bug::NoArrived {
            self.steps.push(Step::Arrived(number, source));
        }
        let at_once = lent && self.bug != Bug::LentReturnedLate;
        let owes = match self.bug {
            Bug::ReturnSeldom => number.wrapping_sub(self.returned[source]) > SLOTS.count() as u64,
            _ => SLOTS.owes(self.returned[source], number),
        };
        let mut read = vec![Step::Read(number, source)];
        if lent {
            read.push(Step::ReadInput(number, source));
        }
        if at_once || owes {
            self.returned[source] = number;
            let at = if self.bug == Bug::ReturnFirst { 0 } else { read.len() };
            read.insert(at, Step::Return(number, source));
        }
        self.steps.extend(read);
    }

    fn call(&mut self, call: Call) {
        match call {
            Call::Broadcast(root, parts) if root == self.rank => (0..parts).for_each(|_| self.send()),
            Call::Broadcast(root, parts) => (0..parts).for_each(|_| self.receive(root, false)),
            Call::AllGather(parts) => {
                let ahead = if self.bug == Bug::NoLimitAhead { parts } else { SLOTS.ahead() as u64 };
                let mut published = 0;
                for round in 0..parts {
                    while published < parts && published < round + ahead {
                        self.send();
                        published += 1;
                    }
                    self.others().for_each(|peer| self.receive(peer, false));
                }
            }
            Call::Lend(root) if root == self.rank => {
                self.send();
                self.lent = self.sent;
            }
            Call::Lend(root) => self.receive(root, true),
            Call::Rewrite(root) if root == self.rank => {
                if self.bug != Bug::NoInputWait {
                    self.steps.extend(self.others().map(|peer| Step::Returned(self.lent, peer)));
                }
                self.steps.push(Step::TearInput);
                self.steps.push(Step::WriteInput(self.sent.wrapping_add(1)));
            }
            Call::Rewrite(_) => {}
            Call::GatherLent => {
                self.steps.push(Step::TearInput);
                self.steps.push(Step::WriteInput(self.sent.wrapping_add(1)));
                self.send();
                self.lent = self.sent;
                self.others().for_each(|peer| self.receive(peer, true));
                if self.bug != Bug::NotTakenBack {
                    self.steps.extend(self.others().map(|peer| Step::Returned(self.lent, peer)));
                }
            }
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    at: Vec<usize>,
    /// `[reader][source]`.
    arrived: Vec<Vec<u64>>,
    /// `[source][reader]`.
    returned: Vec<Vec<u64>>,
    /// `[source][index]`: the slot there, `None` while it is torn.
    ring: Vec<Vec<Option<u64>>>,
    input: Vec<Option<u64>>,
}

/// Explores all interleavings; the number of states, or what went wrong.
fn explore(ranks: usize, calls: &[Call], bug: Bug) -> Result<usize, String> {
    let script = |rank| {
        let words = || vec![FIRST; ranks];
        let (read, returned) = (words(), words());
        let mut writer = Writer { rank, ranks, bug, sent: FIRST, lent: FIRST, read, returned, steps: Vec::new() };
        calls.iter().for_each(|&call| writer.call(call));
        writer.steps
    };
    let scripts: Vec<Vec<Step>> = (0..ranks).map(script).collect();
    let start = State {
        at: vec![0; ranks],
        arrived: vec![vec![FIRST; ranks]; ranks],
        returned: vec![vec![FIRST; ranks]; ranks],
        ring: vec![vec![None; SLOTS.count()]; ranks],
        input: vec![None; ranks],
    };
    let holds = |seen: u64, number: u64| seen.wrapping_sub(number) as i64 >= 0;
    let mut seen = HashSet::from([start.clone()]);
    let mut open = vec![start];
    while let Some(state) = open.pop() {
        let mut stuck = true;
        for (rank, script) in scripts.iter().enumerate() {
            let Some(&step) = script.get(state.at[rank]) else { continue };
            let mut next = state.clone();
            next.at[rank] += 1;
            let ready = match step {
                Step::Returned(number, peer) => holds(state.returned[rank][peer], number),
                Step::Arrived(number, source) => holds(state.arrived[rank][source], number),
                _ => true,
            };
            match step {
                Step::Tear(number) => next.ring[rank][SLOTS.index(number)] = None,
                Step::Write(number) => next.ring[rank][SLOTS.index(number)] = Some(number),
                Step::Publish(number, peer) => next.arrived[peer][rank] = number,
                Step::Return(number, source) => next.returned[source][rank] = number,
                Step::TearInput => next.input[rank] = None,
                Step::WriteInput(number) => next.input[rank] = Some(number),
                Step::Read(number, source) if state.ring[source][SLOTS.index(number)] != Some(number) => {
                    return Err(format!("race: rank {rank} reads slot {number} of {source}"));
                }
                Step::ReadInput(number, source) if state.input[source] != Some(number) => {
                    return Err(format!("race: rank {rank} reads the input of {source} for {number}"));
                }
                _ => {}
            }
            if ready {
                stuck = false;
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        if stuck && (0..ranks).any(|rank| state.at[rank] < scripts[rank].len()) {
            return Err("deadlock".to_owned());
        }
    }
    Ok(seen.len())
}

const ROTATING: [Call; 5] =
    [Call::Broadcast(0, 5), Call::Broadcast(1, 11), Call::Broadcast(0, 6), Call::AllGather(1), Call::Broadcast(1, 1)];
const GATHERING: [Call; 3] = [Call::AllGather(12), Call::Broadcast(1, 2), Call::AllGather(3)];
const LENDING: [Call; 6] =
    [Call::Rewrite(0), Call::Lend(0), Call::Broadcast(0, 1), Call::Rewrite(0), Call::Lend(0), Call::Broadcast(1, 2)];
const PRIVATE: [Call; 4] = [Call::GatherLent, Call::GatherLent, Call::Broadcast(1, 3), Call::GatherLent];

#[test]
fn every_interleaving_is_right() {
    let programs: [(usize, &[Call]); 8] = [
        (2, &ROTATING),
        (2, &GATHERING),
        (2, &LENDING),
        (2, &PRIVATE),
        (3, &[Call::GatherLent]),
        (3, &[Call::Broadcast(0, 10), Call::Broadcast(1, 1)]),
        (3, &[Call::AllGather(2)]),
        (3, &[Call::Rewrite(0), Call::Lend(0), Call::Rewrite(0), Call::Lend(0), Call::Broadcast(1, 2)]),
    ];
    for (ranks, calls) in programs {
        let states =
            explore(ranks, calls, Bug::None).unwrap_or_else(|wrong| panic!("{ranks} ranks, {calls:?}: {wrong}"));
        println!("{ranks} ranks, {calls:?}: {states} states");
        assert!(states > 50);
    }
}

#[test]
fn every_broken_rule_is_missed() {
    for (bug, calls, shows) in [
        (Bug::NoClaim, &ROTATING[..], "race"),
        (Bug::ClaimOneTooFew, &ROTATING, "race"),
        (Bug::PublishFirst, &ROTATING, "race"),
        (Bug::ReturnFirst, &ROTATING, "race"),
        (Bug::NoArrived, &ROTATING, "race"),
        (Bug::ReturnSeldom, &ROTATING, "deadlock"),
        (Bug::NoLimitAhead, &GATHERING, "deadlock"),
        (Bug::NoInputWait, &LENDING, "race"),
        (Bug::NotTakenBack, &PRIVATE, "race"),
        (Bug::ReturnFirst, &PRIVATE, "race"),
        (Bug::LentReturnedLate, &PRIVATE, "deadlock"),
        (Bug::LentReturnedLate, &[Call::Rewrite(0), Call::Lend(0), Call::Rewrite(0)], "deadlock"),
    ] {
        let found = explore(2, calls, bug).expect_err(&format!("{bug:?} is not found"));
        assert!(found.contains(shows), "{bug:?}: {found}");
    }
}
