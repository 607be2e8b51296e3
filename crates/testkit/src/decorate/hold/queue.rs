//! A queue that holds back.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use campanile_core::{Agent, Cancelled, Completion, Op, PostError, Queue, QueueError, QueueTarget, Rank, Ticket};
use campanile_host::clock::now_ns;

use super::engine::Bell;
use super::{Fate, Schedule};
use crate::decorate::Regions;

/// Operations that are looked at for the next to leave.
const LOOKAHEAD: usize = 64;

pub(super) struct HeldQueue {
    inner: Arc<dyn Queue>,
    /// The number of the queue below: tickets of other queues of the transport have others.
    number: u64,
    /// `None`: an engine, which reaches every peer.
    peer: Option<Rank>,
    depth: usize,
    regions: Arc<Regions>,
    bell: Arc<Bell>,
    state: Mutex<State>,
}

struct State {
    schedule: Box<dyn Schedule>,
    /// Operations that are not complete, in the order of posting; the first is at position `completed`.
    entries: VecDeque<Entry>,
    /// How many of the entries were rung.
    rung: usize,
    /// Operations that are complete, and the last ticket below that they needed.
    completed: u64,
    last: Option<Ticket>,
    failure: Option<QueueError>,
}

struct Entry {
    op: Op,
    fate: Fate,
    stage: Stage,
    /// Position of the end of its list.
    end: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Not rung.
    Posted,
    /// Leaves at this time.
    Due(u64),
    /// Handed on, with this ticket.
    Left(Ticket),
    /// Cancelled before it left.
    Cancelled,
}

impl HeldQueue {
    pub(super) fn new(
        inner: Arc<dyn Queue>,
        target: QueueTarget,
        depth: usize,
        schedule: Box<dyn Schedule>,
        regions: Arc<Regions>,
        bell: Arc<Bell>,
    ) -> Self {
        let peer = match target {
            QueueTarget::Peer(peer) => Some(peer),
            _ => None,
        };
        let state = State { schedule, entries: VecDeque::new(), rung: 0, completed: 0, last: None, failure: None };
        let number = inner.flush().queue();
        Self { inner, number, peer, depth, regions, bell, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets leave what is due; the time (ns) to look again, 0 for soon, `None` if nothing that was rung is left.
    pub(super) fn drive(&self) -> Option<u64> {
        let mut state = self.lock();
        // A failure is told by the calls of the queue's owner.
        let _ = self.advance(&mut state);
        self.next_look(&state)
    }

    /// Drops what has not left; a queue that had such work has failed.
    pub(super) fn abandon(&self) {
        let mut state = self.lock();
        let is_held = |entry: &Entry| matches!(entry.stage, Stage::Posted | Stage::Due(_));
        if state.failure.is_none() && state.entries.iter().any(is_held) {
            let reason = "its transport was shut down with operations held back".to_owned();
            state.failure = Some(QueueError::Poisoned { queue: self.number, reason });
        }
    }

    /// Whether something that was rung has not left.
    pub(super) fn is_busy(&self) -> bool {
        self.next_look(&self.lock()).is_some()
    }

    fn next_look(&self, state: &State) -> Option<u64> {
        if state.failure.is_some() {
            return None;
        }
        // Behind a completion that is lost there is none to look for.
        let told = state.entries.iter().take_while(|entry| entry.fate != Fate::Lose);
        match told.filter(|entry| matches!(entry.stage, Stage::Left(_))).count() {
            0 => state.next_to_leave().map(|(time, _)| time),
            _ => Some(0),
        }
    }

    /// Lets leave what is due and takes note of what is complete; how many operations that is.
    fn advance(&self, state: &mut State) -> Result<usize, QueueError> {
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let advanced = self.release(state).and_then(|()| self.collect(state));
        advanced.inspect_err(|error| state.failure = Some(error.clone()))
    }

    fn release(&self, state: &mut State) -> Result<(), QueueError> {
        let handed_on = self.hand_on(state);
        // Also what was handed on before an operation that failed.
        self.inner.ring()?;
        self.inner.progress()?;
        handed_on
    }

    fn hand_on(&self, state: &mut State) -> Result<(), QueueError> {
        let now = now_ns();
        while let Some((_, index)) = state.next_to_leave().filter(|(time, _)| *time <= now) {
            let (op, fate) = (state.entries[index].op, state.entries[index].fate);
            let position = state.completed + index as u64;
            if fate == Fate::Fail {
                let reason = "the fault decorator made its completion an error".to_owned();
                return Err(QueueError::Completion { queue: self.number, position, reason });
            }
            match self.inner.post(&[state.schedule.deliver(op)]) {
                Ok(ticket) => state.entries[index].stage = Stage::Left(ticket),
                Err(PostError::Busy { .. }) => {
                    self.inner.ring()?;
                    if self.inner.progress()? == 0 {
                        return Ok(());
                    }
                    continue;
                }
                Err(PostError::Queue(error)) => return Err(error),
                // What was legal when it was posted is not any more: a region is gone.
                Err(error) => {
                    let reason = format!("{error}; it was held back since it was posted");
                    return Err(QueueError::Completion { queue: self.number, position, reason });
                }
            }
        }
        Ok(())
    }

    fn collect(&self, state: &mut State) -> Result<usize, QueueError> {
        let mut done = 0;
        while let Some(entry) = state.entries.front() {
            match entry.stage {
                Stage::Left(ticket) if entry.fate == Fate::Complete && self.complete(ticket)? => {
                    state.last = Some(ticket);
                }
                Stage::Cancelled => {}
                _ => break,
            }
            state.entries.pop_front();
            state.rung = state.rung.saturating_sub(1);
            state.completed += 1;
            done += 1;
        }
        Ok(done)
    }

    /// As far as it is told here: a ticket below stays until its memory is visible to CPUs, or, where that cannot be
    /// told, until its source is reusable.
    fn complete(&self, ticket: Ticket) -> Result<bool, QueueError> {
        match self.inner.test(ticket, Completion::Remote(Agent::Cpu)) {
            Err(QueueError::Unsupported { .. }) => self.inner.test(ticket, Completion::Local),
            tested => tested,
        }
    }

    fn mark(&self, state: &State, ticket: Ticket) -> Result<u64, QueueError> {
        let mark = ticket.mark();
        if ticket.queue() != self.number || mark > state.completed + state.entries.len() as u64 {
            return Err(QueueError::ForeignTicket { queue: self.number, given: ticket.queue() });
        }
        Ok(mark)
    }
}

impl State {
    /// Which entry leaves next, and when: the first whose own time, and that of every earlier one that keeps it back, has
    /// come.
    fn next_to_leave(&self) -> Option<(u64, usize)> {
        let mut held: Vec<(u64, usize)> = Vec::new();
        for (index, entry) in self.entries.iter().enumerate() {
            let due = match entry.stage {
                Stage::Due(due) => due,
                Stage::Left(_) | Stage::Cancelled => continue,
                // Nothing behind it was rung.
                Stage::Posted => break,
            };
            let keeps_back =
                |(_, earlier): &&(u64, usize)| !self.schedule.overtakes(&entry.op, &self.entries[*earlier].op);
            let time = held.iter().filter(keeps_back).map(|(time, _)| *time).fold(due, u64::max);
            held.push((time, index));
            if held.len() == LOOKAHEAD {
                break;
            }
        }
        // Of two at the same time the earlier: it may keep back the other.
        held.into_iter().min()
    }
}

impl Queue for HeldQueue {
    fn post(&self, ops: &[Op]) -> Result<Ticket, PostError> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone().into());
        }
        for (index, op) in ops.iter().enumerate() {
            let admitted = state.schedule.admit(op).and_then(|()| self.regions.check(op, self.peer));
            admitted.map_err(|reason| PostError::Invalid { index, reason })?;
        }
        let (needed, free) = (ops.len(), self.depth - state.entries.len());
        if needed > self.depth {
            return Err(PostError::TooLarge { needed, depth: self.depth });
        }
        if needed > free {
            return Err(PostError::Busy { needed, free });
        }
        let position = state.completed + state.entries.len() as u64;
        let fate = match state.schedule.begin() {
            Ok(fate) => fate,
            Err(reason) => {
                let failure = QueueError::Completion { queue: self.number, position, reason };
                state.failure = Some(failure.clone());
                return Err(failure.into());
            }
        };
        let end = position + needed as u64;
        for (index, &op) in ops.iter().enumerate() {
            let fate = if index + 1 == needed { fate } else { Fate::Complete };
            state.entries.push_back(Entry { op, fate, stage: Stage::Posted, end });
        }
        Ok(Ticket::new(self.number, end))
    }

    fn ring(&self) -> Result<(), QueueError> {
        let mut state = self.lock();
        let now = now_ns();
        let State { schedule, entries, rung, .. } = &mut *state;
        let new = entries.len() - *rung;
        for entry in entries.iter_mut().skip(*rung).filter(|entry| entry.stage == Stage::Posted) {
            let peer = self.peer.or_else(|| self.regions.owner(entry.op.remote()?.region));
            entry.stage = Stage::Due(schedule.due(&entry.op, peer, now));
        }
        *rung = entries.len();
        self.advance(&mut state)?;
        if new > 0 && self.next_look(&state).is_some() {
            drop(state);
            self.bell.ring();
        }
        Ok(())
    }

    fn flush(&self) -> Ticket {
        let state = self.lock();
        Ticket::new(self.number, state.completed + state.entries.len() as u64)
    }

    fn test(&self, ticket: Ticket, completion: Completion) -> Result<bool, QueueError> {
        let mut state = self.lock();
        let mark = self.mark(&state, ticket)?;
        self.collect(&mut state).map_err(|error| state.failure.get_or_insert(error).clone())?;
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        // The queue below says whether the level can be had at all.
        let all_that_left = state.last.unwrap_or_else(|| self.inner.flush());
        let done = self.inner.test(all_that_left, completion)?;
        if mark <= state.completed {
            return Ok(done || state.last.is_none());
        }
        for entry in state.entries.iter().take((mark - state.completed) as usize) {
            match entry.stage {
                Stage::Left(below) if entry.fate == Fate::Complete && self.inner.test(below, completion)? => {}
                Stage::Cancelled => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    fn progress(&self) -> Result<usize, QueueError> {
        self.advance(&mut self.lock())
    }

    fn cancel(&self, ticket: Ticket) -> Result<Cancelled, QueueError> {
        let mut state = self.lock();
        let mark = self.mark(&state, ticket)?;
        let of_list = |entry: &&mut Entry| entry.end == mark;
        let mut stopped = false;
        // From the first that has not left to the end of the list: a signal never goes without its put.
        for entry in state.entries.iter_mut().filter(of_list) {
            if matches!(entry.stage, Stage::Posted | Stage::Due(_)) {
                entry.stage = Stage::Cancelled;
                stopped = true;
            }
        }
        Ok(if stopped { Cancelled::Stopped } else { Cancelled::TooLate })
    }

    fn describe(&self) -> String {
        let state = self.lock();
        let left = state.entries.iter().filter(|entry| matches!(entry.stage, Stage::Left(_))).count();
        format!(
            "held back: completed {}, rung {}, written {}, {left} handed on; below: {}",
            state.completed,
            state.completed + state.rung as u64,
            state.completed + state.entries.len() as u64,
            self.inner.describe()
        )
    }
}
