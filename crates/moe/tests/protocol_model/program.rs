//! Programs: what all ranks call, in one order, and the script of steps that each rank makes of it.

use std::fmt;

use campanile_moe::protocol::{Combine, Phase, Set, Word};

use crate::machine::{Act, Await, CAPACITY, Plane, RANKS, Step, Trust};

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// A phase of the round of a set.
    Phase(Set, Phase),
    /// The outputs of a set are cleared by their owner, between two rounds: the zero-copy accessor.
    Clear(Set),
    /// Masked ranks come back.
    Readmit,
}

/// Rows that each source sends to each owner, as a function of the round's number in the program.
#[derive(Clone, Copy, Debug)]
pub enum Traffic {
    /// One row each.
    One,
    /// 0, 1 or 2 rows, in turn.
    Ragged,
    /// Nothing at all.
    Empty,
    /// One row each to rank 0.
    ToOne,
}

impl Traffic {
    fn rows(self, round: usize, source: usize, owner: usize) -> u32 {
        match self {
            Self::One => 1,
            Self::Ragged => ((round + 2 * source + owner + 1) % (CAPACITY as usize + 1)) as u32,
            Self::Empty => 0,
            Self::ToOne => u32::from(owner == 0),
        }
    }
}

/// How results come back.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    Pull,
    Push,
    /// Pull, push, pull …
    Mixed,
}

/// What all ranks do.
#[derive(Clone, Debug)]
pub struct Program {
    pub calls: Vec<Call>,
    pub traffic: Traffic,
    pub way: Way,
    /// Ranks 0 and 1 mask rank 2 from this call on; it does not know, and goes on as if nothing had happened.
    pub masked_from: Option<usize>,
}

impl Program {
    /// Parses `"s0 r0 c0 d0 l1 z0 !"`: dispatch send and receive, combine send and receive, release, clear; readmission.
    pub fn new(calls: &str, traffic: Traffic, way: Way) -> Self {
        let calls = calls
            .split_whitespace()
            .map(|call| {
                let set = Set(call[1..].parse().unwrap_or(0));
                match call.as_bytes()[0] {
                    b's' => Call::Phase(set, Phase::DispatchSend),
                    b'r' => Call::Phase(set, Phase::DispatchReceive),
                    b'c' => Call::Phase(set, Phase::CombineSend),
                    b'd' => Call::Phase(set, Phase::CombineReceive),
                    b'l' => Call::Phase(set, Phase::Release),
                    b'z' => Call::Clear(set),
                    b'!' => Call::Readmit,
                    _ => panic!("no call is written {call}"),
                }
            })
            .collect();
        Self { calls, traffic, way, masked_from: None }
    }

    pub fn masked_from(mut self, call: usize) -> Self {
        self.masked_from = Some(call);
        self
    }

    /// Sets that the calls use.
    pub fn sets(&self) -> u32 {
        let sets = self.calls.iter().map(|call| match call {
            Call::Phase(set, _) | Call::Clear(set) => set.0 + 1,
            Call::Readmit => 1,
        });
        sets.max().unwrap_or(1)
    }

    /// Every program of `rounds` rounds over at most two sets, each a combine or a release, split in every way; up to the
    /// names of the sets.
    pub fn all(rounds: usize, traffic: Traffic, way: Way) -> Vec<Self> {
        let mut programs = Vec::new();
        extend(&mut Vec::new(), [None; 2], rounds, &mut |calls: &[Call]| {
            programs.push(Self { calls: calls.to_vec(), traffic, way, masked_from: None });
        });
        programs
    }

    /// The steps of one rank.
    pub fn script(&self, rank: usize) -> Vec<Step> {
        let mut script = Script { program: self, rank, steps: Vec::new(), active: [true; RANKS] };
        let mut rounds = 0;
        let mut current = [0; 2];
        for (index, &call) in self.calls.iter().enumerate() {
            if self.masked_from == Some(index) && rank != 2 {
                script.active[2] = false;
            }
            match call {
                Call::Phase(set, phase) => {
                    if phase == Phase::DispatchSend {
                        current[set.index()] = rounds;
                        rounds += 1;
                    }
                    script.phase(set, phase, current[set.index()]);
                }
                Call::Clear(set) => script.clear(set),
                Call::Readmit => {
                    script.push(Set(0), rank, Act::Readmit);
                    script.active = [true; RANKS];
                }
            }
        }
        script.steps
    }
}

/// Appends every legal continuation. `after[set]` is the phase that the set's open round has finished.
fn extend(calls: &mut Vec<Call>, after: [Option<Phase>; 2], rounds: usize, found: &mut dyn FnMut(&[Call])) {
    if rounds == 0 && after == [None; 2] {
        return found(calls);
    }
    for set in 0..2 {
        // The set that is used first is set 0.
        if set == 1 && calls.is_empty() {
            continue;
        }
        let phases: &[Phase] = match after[set] {
            None if rounds > 0 => &[Phase::DispatchSend],
            None => &[],
            Some(Phase::DispatchSend) => &[Phase::DispatchReceive],
            Some(Phase::DispatchReceive) => &[Phase::CombineSend, Phase::Release],
            Some(_) => &[Phase::CombineReceive],
        };
        for &phase in phases {
            let mut next = after;
            next[set] = (!matches!(phase, Phase::CombineReceive | Phase::Release)).then_some(phase);
            calls.push(Call::Phase(Set(set as u32), phase));
            extend(calls, next, rounds - usize::from(phase == Phase::DispatchSend), found);
            calls.pop();
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for call in &self.calls {
            match call {
                Call::Phase(set, Phase::DispatchSend) => write!(f, "s{} ", set.0)?,
                Call::Phase(set, Phase::DispatchReceive) => write!(f, "r{} ", set.0)?,
                Call::Phase(set, Phase::CombineSend) => write!(f, "c{} ", set.0)?,
                Call::Phase(set, Phase::CombineReceive) => write!(f, "d{} ", set.0)?,
                Call::Phase(set, Phase::Release) => write!(f, "l{} ", set.0)?,
                Call::Clear(set) => write!(f, "z{} ", set.0)?,
                Call::Readmit => f.write_str("! ")?,
            }
        }
        write!(f, "{:?} {:?}", self.traffic, self.way)?;
        self.masked_from.map_or(Ok(()), |call| write!(f, ", rank 2 masked from call {call}"))
    }
}

struct Script<'a> {
    program: &'a Program,
    rank: usize,
    steps: Vec<Step>,
    active: [bool; RANKS],
}

impl Script<'_> {
    fn push(&mut self, set: Set, peer: usize, act: Act) {
        self.steps.push(Step { set, peer, act });
    }

    /// Active peers, from the next rank on, oneself last.
    fn peers(&self) -> Vec<usize> {
        (1..=RANKS).map(|distance| (self.rank + distance) % RANKS).filter(|&peer| self.active[peer]).collect()
    }

    fn phase(&mut self, set: Set, phase: Phase, round: usize) {
        let rank = self.rank;
        let combine = match (self.program.way, round % 2) {
            (Way::Pull, _) | (Way::Mixed, 0) => Combine::Pull,
            (Way::Push, _) | (Way::Mixed, _) => Combine::Push,
        };
        let mut rows = [0; RANKS];
        for peer in self.peers() {
            rows[peer] = self.program.traffic.rows(round, rank, peer);
        }
        self.push(set, rank, Act::Begin { phase, combine, active: self.active, rows });
        for peer in self.peers() {
            let outgoing = rows[peer];
            let incoming = self.program.traffic.rows(round, peer, rank);
            match phase {
                Phase::DispatchSend => self.dispatch_send(set, peer, outgoing),
                Phase::DispatchReceive => self.dispatch_receive(set, peer, incoming),
                Phase::CombineSend => self.combine_send(set, peer, incoming, combine),
                Phase::CombineReceive => self.combine_receive(set, peer, outgoing, combine),
                Phase::Release => self.release(set, peer, incoming),
            }
        }
        self.push(set, rank, Act::Finish);
    }

    fn dispatch_send(&mut self, set: Set, peer: usize, rows: u32) {
        self.push(set, peer, Act::Await(Await::Credit, Trust::Honest));
        self.push(set, peer, Act::Write(Plane::Routing, 0));
        self.push(set, peer, Act::Publish(Word::Meta, 0));
        for row in 0..rows {
            self.push(set, peer, Act::Write(Plane::Rows, row));
            self.push(set, peer, Act::Publish(Word::Rows, 1));
        }
    }

    fn dispatch_receive(&mut self, set: Set, peer: usize, rows: u32) {
        self.push(set, peer, Act::Await(Await::Meta, Trust::Honest));
        self.push(set, peer, Act::Read(Plane::Routing, 0));
        for row in 0..rows {
            // The low-latency schedule: a row is looked at as soon as it is there.
            self.push(set, peer, Act::Await(Await::Rows(row + 1), Trust::Honest));
            self.push(set, peer, Act::Read(Plane::Rows, row));
        }
        self.push(set, peer, Act::Await(Await::OutputsFree, Trust::Honest));
    }

    /// The experts' own use of the rows, in place, as late as the protocol allows.
    fn use_rows(&mut self, set: Set, peer: usize, rows: u32) {
        for row in 0..rows {
            self.push(set, peer, Act::Read(Plane::Rows, row));
        }
    }

    fn combine_send(&mut self, set: Set, peer: usize, rows: u32, combine: Combine) {
        for row in 0..rows {
            match combine {
                Combine::Pull => self.push(set, peer, Act::Write(Plane::Outputs, row)),
                Combine::Push => {
                    self.push(set, peer, Act::Write(Plane::Returns, row));
                    self.push(set, peer, Act::Publish(Word::Returned, 1));
                }
            }
        }
        self.use_rows(set, peer, rows);
        self.push(set, peer, Act::Publish(Word::ReadyC, 0));
    }

    fn combine_receive(&mut self, set: Set, peer: usize, rows: u32, combine: Combine) {
        for row in 0..rows {
            self.push(set, peer, Act::Await(Await::Results(row + 1), Trust::Honest));
            let plane = match combine {
                Combine::Pull => Plane::Outputs,
                Combine::Push => Plane::Returns,
            };
            self.push(set, peer, Act::Read(plane, row));
        }
        self.push(set, peer, Act::Publish(Word::DoneC, 0));
    }

    fn release(&mut self, set: Set, peer: usize, rows: u32) {
        self.use_rows(set, peer, rows);
        self.push(set, peer, Act::Publish(Word::ReadyC, 0));
        self.push(set, peer, Act::Publish(Word::DoneC, 0));
    }

    fn clear(&mut self, set: Set) {
        for peer in self.peers() {
            self.push(set, peer, Act::Await(Await::OutputsFree, Trust::Honest));
            self.push(set, peer, Act::Clear(0));
        }
    }
}
