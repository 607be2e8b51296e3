//! A queue that lies: an engine that executes one operation at a time on a queue of the wrapped transport.
//!
//! What is posted is checked by a queue of the wrapped transport of the same depth, which never executes it, and kept
//! here. `progress` starts what was rung, in order; a liar puts some operations off (*late*), and they follow some
//! calls of `progress` later.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use campanile_core::{
    Agent, AtomicOp, Cancelled, Completion, ControlError, Inline, LocalAddress, MemoryKind, Op, PostError, Queue,
    QueueError, QueueOptions, QueueTarget, Region, RemoteAddress, SignalAction, SignalUpdate, Strength, Ticket,
    Transport,
};

use super::Lie;

/// How many calls of `progress` a late operation is late.
const LATE: u64 = 3;
/// How long the target has to look at what it should not see yet.
const HELD: Duration = Duration::from_micros(300);

pub(super) struct LyingQueue {
    lie: Option<Lie>,
    number: u64,
    depth: usize,
    timeout: Duration,
    /// Says whether a list is legal.
    judge: Arc<dyn Queue>,
    /// Executes one operation at a time.
    worker: Arc<dyn Queue>,
    /// A word of this rank's that nobody else uses.
    scratch: Region,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What was posted and is not complete, from position `base` on.
    entries: VecDeque<Entry>,
    base: u64,
    /// Everything before this position was rung.
    rung: u64,
    /// Everything before this position was started.
    started: u64,
    late: Vec<Late>,
    /// Calls of `progress`.
    calls: u64,
    signals: u64,
    failure: Option<QueueError>,
}

struct Entry {
    op: Op,
    /// Where its post begins.
    first: u64,
    done: bool,
    cancelled: bool,
    /// When it was rung, in calls of `progress`.
    since: Option<u64>,
}

/// An operation that is put off.
struct Late {
    position: u64,
    op: Op,
    due: u64,
}

impl State {
    fn end(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    fn entry(&mut self, position: u64) -> &mut Entry {
        let at = (position - self.base) as usize;
        &mut self.entries[at]
    }

    fn ring(&mut self) {
        let calls = self.calls;
        for position in self.rung.max(self.base)..self.end() {
            self.entry(position).since = Some(calls);
        }
        self.rung = self.end();
    }

    /// Forgets what is complete up to the first that is not.
    fn retire(&mut self) {
        while self.entries.front().is_some_and(|entry| entry.done) {
            self.entries.pop_front();
            self.base += 1;
        }
    }
}

impl LyingQueue {
    pub(super) fn new(
        transport: &Arc<dyn Transport>,
        lie: Option<Lie>,
        number: u64,
        target: QueueTarget,
        options: QueueOptions,
        timeout: Duration,
    ) -> Result<Self, ControlError> {
        Ok(Self {
            lie,
            number,
            depth: options.depth,
            timeout,
            judge: transport.queue(target, options)?,
            worker: transport.queue(target, QueueOptions { depth: 4, ..options })?,
            scratch: transport.allocate(64, MemoryKind::Host).wait(timeout)?,
            state: Mutex::default(),
        })
    }

    fn lies(&self, lie: Lie) -> bool {
        self.lie == Some(lie)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the wrapped transport says of a list: it never runs.
    fn judge(&self, ops: &[Op]) -> Result<(), PostError> {
        let ticket = self.judge.post(ops)?;
        self.judge.cancel(ticket)?;
        self.judge.ring()?;
        self.judge.progress()?;
        Ok(())
    }

    /// Executes one operation on the wrapped transport.
    fn now(&self, op: Op) -> Result<(), String> {
        let ticket = self.worker.post(&[op]).map_err(|error| error.to_string())?;
        let waited = self.worker.wait(ticket, Completion::Remote(Agent::Cpu), self.timeout);
        waited.map_err(|error| error.to_string())
    }

    /// Starts an operation; `Ok(false)` if it is late.
    fn start(&self, state: &mut State, position: u64, op: Op) -> Result<bool, String> {
        let late = |state: &mut State, op: Op| {
            let due = state.calls + LATE;
            state.late.push(Late { position, op, due });
            Ok(false)
        };
        match op {
            Op::Put { .. } if matches!(self.lie, Some(Lie::StrongSignalEarly | Lie::FenceIgnored)) => late(state, op),
            // Every other one only: the later of two comes first.
            Op::Put { .. } if self.lies(Lie::PutsOutOfOrder) && position.is_multiple_of(2) => late(state, op),
            Op::Put { source, target, bytes } => {
                self.put(source, target, bytes)?;
                Ok(true)
            }
            Op::PutSignal { bytes: 0, .. } if self.lies(Lie::EmptySignalLost) => Ok(true),
            Op::PutSignal { source, target, bytes, signal } => {
                if self.lies(Lie::WeakSignalEarly) && signal.strength == Strength::Weak {
                    self.signal(state, signal)?;
                    return late(state, Op::Put { source, target, bytes });
                }
                self.barrier(state, signal.strength)?;
                self.put(source, target, bytes)?;
                self.signal(state, signal)?;
                Ok(true)
            }
            Op::Signal(signal) => {
                self.barrier(state, signal.strength)?;
                self.signal(state, signal)?;
                Ok(true)
            }
            Op::Get { .. } if self.lies(Lie::GetPassesFence) => late(state, op),
            Op::Fence if matches!(self.lie, Some(Lie::FenceIgnored | Lie::GetPassesFence)) => Ok(true),
            Op::Fence => self.deliver(state, u64::MAX).map(|_| true),
            Op::Atomic { op, target } if self.lies(Lie::AtomicsRace) => self.race(op, target).map(|()| true),
            op => self.now(op).map(|()| true),
        }
    }

    /// Executes what was posted, as an honest drain does. A queue that has failed has nothing to complete.
    pub(super) fn drain(&self) {
        if !self.lies(Lie::DrainForgets) {
            self.state().ring();
        }
        let rung = self.state().rung;
        while self.state().base < rung && self.progress().is_ok() {}
    }

    /// What an honest strong signal waits for.
    fn barrier(&self, state: &mut State, strength: Strength) -> Result<(), String> {
        match strength {
            Strength::Strong if !self.lies(Lie::StrongSignalEarly) => self.deliver(state, u64::MAX),
            _ => Ok(()),
        }
    }

    /// Executes the late operations that are due by then.
    fn deliver(&self, state: &mut State, by: u64) -> Result<(), String> {
        while let Some(at) = state.late.iter().position(|late| late.due <= by) {
            let Late { position, op, .. } = state.late.remove(at);
            if by != u64::MAX {
                std::thread::park_timeout(HELD);
            }
            self.now(op)?;
            state.entry(position).done = true;
        }
        Ok(())
    }

    fn put(&self, mut source: LocalAddress, mut target: RemoteAddress, bytes: u64) -> Result<(), String> {
        if self.lies(Lie::OffsetsOf32Bits) {
            source.offset &= 0xffff_ffff;
            target.offset &= 0xffff_ffff;
        }
        let lost = u64::from(self.lies(Lie::LastByteLost) && bytes > 4096);
        self.now(Op::Put { source, target, bytes: bytes - lost })
    }

    fn signal(&self, state: &mut State, signal: SignalUpdate) -> Result<(), String> {
        state.signals += 1;
        if self.lies(Lie::LostSignal) && state.signals.is_multiple_of(8) {
            return Ok(());
        }
        if self.lies(Lie::WordsTorn) && signal.action == SignalAction::Set {
            let bytes = signal.value.to_le_bytes();
            for at in [0, 4] {
                let data = Inline::new(&bytes[at..at + 4]).expect("4 bytes fit");
                let target = RemoteAddress { offset: signal.target.offset + at as u64, ..signal.target };
                self.now(Op::PutInline { data, target })?;
                (0..200).for_each(|_| std::hint::spin_loop());
            }
            // The whole word again wakes the waiter.
        }
        if self.lies(Lie::AddTwice) && signal.action == SignalAction::Add {
            self.now(Op::Signal(signal))?;
        }
        self.now(Op::Signal(signal))
    }

    /// An atomic as a read and a write with time between.
    fn race(&self, op: AtomicOp, target: RemoteAddress) -> Result<(), String> {
        let read = |result| self.now(Op::Atomic { op: AtomicOp::FetchAdd { operand: 0, result }, target });
        let scratch = LocalAddress { region: self.scratch.key(), offset: 0 };
        read(scratch)?;
        // SAFETY: 8 bytes of a region of 64 that only this queue uses, under the lock of its state.
        let old = unsafe { self.scratch.address().cast::<u64>().read() };
        let (new, result) = match op {
            AtomicOp::Add { operand } => (old.wrapping_add(operand), None),
            AtomicOp::FetchAdd { operand, result } => (old.wrapping_add(operand), Some(result)),
            AtomicOp::CompareSwap { compare, swap, result } => (if old == compare { swap } else { old }, Some(result)),
            AtomicOp::Swap { value, result } => (value, Some(result)),
        };
        if let Some(result) = result {
            read(result)?;
        }
        std::thread::park_timeout(HELD / 10);
        let data = Inline::new(&new.to_le_bytes()).expect("8 bytes fit");
        self.now(Op::PutInline { data, target })
    }

    /// An operation has failed: so has the queue.
    fn fail(&self, state: &mut State, position: u64, reason: String) -> Option<QueueError> {
        if self.lies(Lie::FailureSwallowed) {
            state.entry(position).done = true;
            return None;
        }
        let error = QueueError::Completion { queue: self.number, position, reason };
        if self.lies(Lie::FailureForgotten) {
            state.entry(position).done = true;
        } else {
            state.failure = Some(error.clone());
        }
        Some(error)
    }

    fn check(&self, ticket: Ticket, state: &State) -> Result<(), QueueError> {
        let own = ticket.queue() == self.number && ticket.mark() <= state.end();
        if own || self.lies(Lie::ForeignTicketAccepted) {
            return Ok(());
        }
        Err(QueueError::ForeignTicket { queue: self.number, given: ticket.queue() })
    }

    fn push(&self, state: &mut State, ops: &[Op]) -> Result<Ticket, PostError> {
        let free = self.depth - state.entries.len();
        if ops.len() > free {
            return Err(PostError::Busy { needed: ops.len(), free });
        }
        let first = state.end();
        let entry = |&op| Entry { op, first, done: false, cancelled: false, since: None };
        state.entries.extend(ops.iter().map(entry));
        Ok(Ticket::new(self.number, state.end()))
    }
}

impl Queue for LyingQueue {
    fn post(&self, ops: &[Op]) -> Result<Ticket, PostError> {
        let mut state = self.state();
        if let Some(failure) = &state.failure {
            return Err(failure.clone().into());
        }
        let accepted = |reason: &str| match self.lie {
            Some(Lie::RangeUnchecked) => reason.contains("outside"),
            Some(Lie::MisalignedAccepted) => reason.contains("aligned"),
            Some(Lie::StaleKeyAccepted) => reason.contains("does not exist"),
            _ => false,
        };
        match self.judge(ops) {
            Ok(()) => self.push(&mut state, ops),
            // Nothing is done instead.
            Err(PostError::Invalid { reason, .. }) if accepted(&reason) => {
                self.push(&mut state, &vec![Op::Fence; ops.len()])
            }
            Err(PostError::Invalid { index, reason }) => {
                if self.lies(Lie::RefusedListHalfQueued) {
                    self.push(&mut state, &ops[..index])?;
                }
                Err(PostError::Invalid { index, reason })
            }
            Err(PostError::TooLarge { needed, .. }) if self.lies(Lie::TooLargeIsBusy) => {
                Err(PostError::Busy { needed, free: self.depth - state.entries.len() })
            }
            Err(error) => Err(error),
        }
    }

    fn ring(&self) -> Result<(), QueueError> {
        let mut state = self.state();
        let from = state.rung.max(state.base) - state.base;
        let bytes: u64 = state.entries.iter().skip(from as usize).map(|entry| entry.op.bytes()).sum();
        if self.lies(Lie::RingBlocks) && bytes > 4 << 20 {
            // The peers do the same, so nobody comes.
            std::thread::park_timeout(self.timeout);
            let reason = format!("{bytes} bytes were not sent in time");
            return Err(QueueError::Poisoned { queue: self.number, reason });
        }
        state.ring();
        state.failure.clone().map_or(Ok(()), Err)
    }

    fn flush(&self) -> Ticket {
        let end = self.state().end();
        if self.lies(Lie::FlushRings) {
            self.state().ring();
        }
        let start = Instant::now();
        while self.lies(Lie::FlushWaits) && self.state().base < end && start.elapsed() < self.timeout {
            std::thread::yield_now();
        }
        Ticket::new(self.number, end)
    }

    fn test(&self, ticket: Ticket, completion: Completion) -> Result<bool, QueueError> {
        if let Completion::Remote(Agent::Gpu | Agent::Nic) = completion {
            return self.judge.test(self.judge.flush(), completion);
        }
        let state = self.state();
        self.check(ticket, &state)?;
        let early = match completion {
            Completion::Local => self.lies(Lie::LocalCompletionEarly),
            Completion::Remote(_) => self.lies(Lie::RemoteCompletionEarly),
        };
        let (mark, complete) = (ticket.mark(), if early { state.rung } else { state.base });
        let reached = match self.lies(Lie::TicketsOf16Bits) {
            true => complete as u16 >= mark as u16,
            false => complete >= mark,
        };
        match &state.failure {
            Some(failure) if !reached => Err(failure.clone()),
            _ => Ok(reached),
        }
    }

    fn progress(&self) -> Result<usize, QueueError> {
        let mut state = self.state();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        state.calls += 1;
        let (before, calls) = (state.base, state.calls);
        let slow = matches!(self.lie, Some(Lie::LocalCompletionEarly | Lie::RemoteCompletionEarly));
        let mut ended = self.deliver(&mut state, calls).map_err(|reason| (before, reason));
        state.started = state.started.max(state.base);
        while ended.is_ok() && state.started < state.rung {
            let position = state.started;
            let Entry { op, cancelled, since, .. } = *state.entry(position);
            if slow && since.is_some_and(|since| calls < since + LATE) {
                break;
            }
            state.started += 1;
            if cancelled {
                state.entry(position).done = true;
                continue;
            }
            match self.start(&mut state, position, op) {
                Ok(done) => state.entry(position).done = done,
                Err(reason) => ended = Err((position, reason)),
            }
        }
        let failure = ended.err().and_then(|(position, reason)| self.fail(&mut state, position, reason));
        state.retire();
        match failure {
            Some(error) => Err(error),
            None => Ok((state.base - before) as usize),
        }
    }

    fn cancel(&self, ticket: Ticket) -> Result<Cancelled, QueueError> {
        let mut state = self.state();
        self.check(ticket, &state)?;
        if state.base >= ticket.mark() {
            return Ok(Cancelled::TooLate);
        }
        if !self.lies(Lie::CancelDoesNothing) {
            let last = ticket.mark() - 1;
            let first = state.entry(last).first.max(state.started).max(state.base);
            (first..=last).for_each(|position| state.entry(position).cancelled = true);
        }
        Ok(Cancelled::Stopped)
    }

    fn describe(&self) -> String {
        let state = self.state();
        format!("complete {}, started {}, rung {}, posted {}", state.base, state.started, state.rung, state.end())
    }
}
