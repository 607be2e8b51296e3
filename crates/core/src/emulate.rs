//! Emulation: what the core does where a transport's caps lack something that callers may rely on.
//!
//! | lacking | what is done | cost |
//! |---|---|---|
//! | native strong signals | earlier puts of the queue are drained before the signal | a wait for remote completion a signal |
//! | operations of that size | puts and gets are split | an operation a piece |
//! | `Add` or `Set` signals, 64-bit words, inline puts of that size, alignment | refused, with the reason and what to do | – |
//!
//! A transport that lacks nothing is not wrapped. A list that needs nothing of the above goes through as it is; one that
//! does is posted in parts, in order: the first part is posted or refused as any list, later parts wait for room within
//! the communicator's deadline. Nothing here allocates or locks, but draining waits inside `post`.
//!
//! The caps asked are those of host memory: a queue does not know what memory it will be given. What device memory lacks
//! beyond that, its transport refuses when it is posted.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::{
    Agent, Cancelled, Caps, Completion, Inline, LocalAddress, Op, OpKind, PostError, Queue, QueueError, RemoteAddress,
    SignalAction, SignalUpdate, Strength, Ticket,
};

/// Most operations of one part of a list.
const PART: usize = 16;
/// No memory is larger.
const NO_LIMIT: u64 = isize::MAX as u64;

/// What the transport's queues to a class of peers lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lacks {
    /// Kinds of operations that are not there at all, one bit each; see [`bit`].
    kinds: u32,
    strong: bool,
    set: bool,
    add: bool,
    /// Bits of a word that arrive together.
    bits: u32,
    inline_bytes: usize,
    /// The largest piece, a multiple of `alignment`.
    max_bytes: u64,
    alignment: u64,
}

const KINDS: [OpKind; 6] =
    [OpKind::Put, OpKind::PutSignal, OpKind::PutInline, OpKind::Get, OpKind::Atomic, OpKind::Fence];

const fn bit(kind: OpKind) -> u32 {
    1 << kind as u32
}

impl Lacks {
    const NOTHING: Self = Self {
        kinds: 0,
        strong: false,
        set: false,
        add: false,
        bits: 64,
        inline_bytes: Inline::MAX,
        max_bytes: NO_LIMIT,
        alignment: 1,
    };

    /// What is lacking where these are the caps of each kind of operation.
    pub(crate) fn of(caps: impl Fn(OpKind) -> Option<Caps>) -> Self {
        let mut lacks = Self::NOTHING;
        for kind in KINDS {
            let Some(caps) = caps(kind) else {
                lacks.kinds |= bit(kind);
                continue;
            };
            lacks.alignment = lacks.alignment.max(u64::from(caps.alignment));
            match kind {
                OpKind::Put | OpKind::Get => lacks.max_bytes = lacks.max_bytes.min(caps.max_bytes),
                OpKind::PutSignal => {
                    lacks.max_bytes = lacks.max_bytes.min(caps.max_bytes);
                    lacks.strong = !caps.signal.native_strong;
                    (lacks.set, lacks.add) = (!caps.signal.set, !caps.signal.add);
                    lacks.bits = caps.signal.bits.min(64);
                }
                OpKind::PutInline => lacks.inline_bytes = (caps.inline_bytes as usize).min(Inline::MAX),
                OpKind::Atomic | OpKind::Fence => {}
            }
        }
        if lacks.max_bytes < NO_LIMIT {
            lacks.max_bytes = (lacks.max_bytes - lacks.max_bytes % lacks.alignment).max(lacks.alignment);
        }
        lacks
    }

    /// `queue` with what it lacks made up for, or the queue itself if that is nothing. `depth` is the queue's,
    /// `timeout` bounds what is waited for inside a post.
    pub(crate) fn emulate(self, queue: Arc<dyn Queue>, depth: usize, timeout: Duration) -> Arc<dyn Queue> {
        if self == Self::NOTHING {
            return queue;
        }
        Arc::new(Emulated { queue, lacks: self, depth, timeout, failure: OnceLock::new() })
    }

    /// Why an operation cannot be had, if so.
    fn refuse(&self, op: &Op) -> Result<(), String> {
        let kind = op.kind();
        if self.kinds & bit(kind) != 0 {
            return Err(format!("{kind:?} is not in the transport's caps for this peer; use another operation"));
        }
        if let Some(signal) = op.signal() {
            self.refuse_signal(signal)?;
        }
        match *op {
            Op::PutInline { data, .. } if data.as_slice().len() > self.inline_bytes => Err(format!(
                "an inline put of {} bytes; the transport takes up to {}: put them from registered memory",
                data.as_slice().len(),
                self.inline_bytes
            )),
            Op::PutInline { target, data } => self.refuse_unaligned(0, target.offset, data.as_slice().len() as u64),
            Op::Put { source, target, bytes } | Op::PutSignal { source, target, bytes, .. } => {
                self.refuse_unaligned(source.offset, target.offset, bytes)
            }
            Op::Get { source, target, bytes } => self.refuse_unaligned(target.offset, source.offset, bytes),
            _ => Ok(()),
        }
    }

    fn refuse_signal(&self, signal: &SignalUpdate) -> Result<(), String> {
        if self.bits < 64 {
            return Err(format!("a signal; words have 64 bits, the transport's arrive {} at a time", self.bits));
        }
        match signal.action {
            SignalAction::Add if self.add => {
                Err("an Add signal; the transport cannot add: keep the sum here and Set it".to_owned())
            }
            SignalAction::Set if self.set => {
                Err("a Set signal; the transport cannot set: Add what it grows by".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn refuse_unaligned(&self, local: u64, remote: u64, bytes: u64) -> Result<(), String> {
        let odd = [("a local offset", local), ("a remote offset", remote), ("a length", bytes)];
        match odd.into_iter().find(|(_, value)| !value.is_multiple_of(self.alignment)) {
            Some((what, value)) => {
                Err(format!("{what} of {value}; the transport takes multiples of {}", self.alignment))
            }
            None => Ok(()),
        }
    }

    /// Whether an operation goes through as it is.
    fn is_native(&self, op: &Op) -> bool {
        let is_strong = op.signal().is_some_and(|signal| signal.strength == Strength::Strong);
        op.bytes() <= self.max_bytes && !(self.strong && is_strong)
    }
}

/// A queue with what it lacks made up for.
struct Emulated {
    queue: Arc<dyn Queue>,
    lacks: Lacks,
    depth: usize,
    timeout: Duration,
    /// A list of which a part was posted and another could not be.
    failure: OnceLock<QueueError>,
}

/// A list that is posted in parts.
struct Parts<'a> {
    to: &'a Emulated,
    waiting: [Op; PART],
    /// Which operations of the caller's list those are.
    origins: [usize; PART],
    count: usize,
    /// Ticket of the last part, once there is one.
    posted: Option<Ticket>,
    /// Which operation of the caller's list is being taken apart.
    index: usize,
}

impl Emulated {
    fn check(&self) -> Result<(), QueueError> {
        self.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    fn post_in_parts(&self, ops: &[Op]) -> Result<Ticket, PostError> {
        let mut parts =
            Parts { to: self, waiting: [Op::Fence; PART], origins: [0; PART], count: 0, posted: None, index: 0 };
        for (index, op) in ops.iter().enumerate() {
            parts.index = index;
            parts.push(op)?;
        }
        parts.post()?;
        Ok(parts.posted.unwrap_or_else(|| self.queue.flush()))
    }
}

impl Parts<'_> {
    fn push(&mut self, op: &Op) -> Result<(), PostError> {
        let lacks = self.to.lacks;
        match *op {
            Op::Put { source, target, bytes } => self.pieces(bytes, |at, bytes| Op::Put {
                source: LocalAddress { offset: source.offset.saturating_add(at), ..source },
                target: RemoteAddress { offset: target.offset.saturating_add(at), ..target },
                bytes,
            }),
            Op::Get { source, target, bytes } => self.pieces(bytes, |at, bytes| Op::Get {
                source: RemoteAddress { offset: source.offset.saturating_add(at), ..source },
                target: LocalAddress { offset: target.offset.saturating_add(at), ..target },
                bytes,
            }),
            Op::PutSignal { source, target, bytes, signal } if bytes > lacks.max_bytes => {
                // The signal covers all pieces, not only the one that it could be bundled with.
                self.push(&Op::Put { source, target, bytes })?;
                self.push(&Op::Signal(SignalUpdate { strength: Strength::Strong, ..signal }))
            }
            Op::PutSignal { source, target, bytes, signal } => {
                let signal = self.weakened(signal)?;
                self.add(Op::PutSignal { source, target, bytes, signal })
            }
            Op::Signal(signal) => {
                let signal = self.weakened(signal)?;
                self.add(Op::Signal(signal))
            }
            op => self.add(op),
        }
    }

    /// A signal that the transport has, after what must be visible before it.
    fn weakened(&mut self, signal: SignalUpdate) -> Result<SignalUpdate, PostError> {
        if signal.strength == Strength::Weak || !self.to.lacks.strong {
            return Ok(signal);
        }
        self.post()?;
        let queue = &self.to.queue;
        let drained = queue.wait(queue.flush(), Completion::Remote(Agent::Cpu), self.to.timeout);
        drained.map_err(|error| self.refused(error.into()))?;
        Ok(SignalUpdate { strength: Strength::Weak, ..signal })
    }

    /// The last piece goes first, so that what ends outside a region is refused before any of it has moved.
    fn pieces(&mut self, bytes: u64, piece: impl Fn(u64, u64) -> Op) -> Result<(), PostError> {
        let most = self.to.lacks.max_bytes;
        let mut left = bytes;
        while left > most {
            let last = if left.is_multiple_of(most) { most } else { left % most };
            left -= last;
            self.add(piece(left, last))?;
        }
        self.add(piece(0, left))
    }

    fn add(&mut self, op: Op) -> Result<(), PostError> {
        if self.count == PART.min(self.to.depth) {
            self.post()?;
        }
        self.waiting[self.count] = op;
        self.origins[self.count] = self.index;
        self.count += 1;
        Ok(())
    }

    /// Posts what waits. The first part may be refused; after that the list is on its way, and only the deadline ends it.
    fn post(&mut self) -> Result<(), PostError> {
        if self.count == 0 {
            return Ok(());
        }
        let ops = &self.waiting[..self.count];
        let queue = &self.to.queue;
        let mut start = None;
        let posted = loop {
            match queue.post(ops) {
                Err(PostError::Busy { needed, free }) if self.posted.is_some() => {
                    let start = *start.get_or_insert_with(Instant::now);
                    if start.elapsed() >= self.to.timeout {
                        break Err(PostError::Busy { needed, free });
                    }
                    queue.ring()?;
                    if queue.progress()? == 0 {
                        std::thread::yield_now();
                    }
                }
                posted => break posted,
            }
        };
        self.posted = Some(posted.map_err(|error| self.refused(error))?);
        self.count = 0;
        Ok(())
    }

    /// The error of a part: of the whole list if nothing of it is on its way, else of the queue, for good.
    fn refused(&self, error: PostError) -> PostError {
        let Some(before) = self.posted else {
            return match error {
                PostError::Invalid { index, reason } => {
                    PostError::Invalid { index: self.origins.get(index).copied().unwrap_or(self.index), reason }
                }
                error => error,
            };
        };
        let (queue, position) = (before.queue(), before.mark());
        let reason = format!(
            "operation {} of a list that the core posts in parts could not follow the parts before it: {error}",
            self.index
        );
        self.to.failure.get_or_init(|| QueueError::Completion { queue, position, reason }).clone().into()
    }
}

impl Queue for Emulated {
    fn post(&self, ops: &[Op]) -> Result<Ticket, PostError> {
        self.check()?;
        let mut native = true;
        for (index, op) in ops.iter().enumerate() {
            self.lacks.refuse(op).map_err(|reason| PostError::Invalid { index, reason })?;
            native &= self.lacks.is_native(op);
        }
        if native {
            return self.queue.post(ops);
        }
        if ops.len() > self.depth {
            return Err(PostError::TooLarge { needed: ops.len(), depth: self.depth });
        }
        self.post_in_parts(ops)
    }

    fn ring(&self) -> Result<(), QueueError> {
        self.check()?;
        self.queue.ring()
    }

    fn flush(&self) -> Ticket {
        self.queue.flush()
    }

    fn test(&self, ticket: Ticket, completion: Completion) -> Result<bool, QueueError> {
        self.check()?;
        self.queue.test(ticket, completion)
    }

    fn progress(&self) -> Result<usize, QueueError> {
        self.check()?;
        self.queue.progress()
    }

    fn cancel(&self, ticket: Ticket) -> Result<Cancelled, QueueError> {
        self.queue.cancel(ticket)
    }

    fn wait(&self, ticket: Ticket, completion: Completion, timeout: Duration) -> Result<(), QueueError> {
        self.check()?;
        self.queue.wait(ticket, completion, timeout)
    }

    fn describe(&self) -> String {
        self.queue.describe()
    }
}

#[cfg(test)]
mod tests;
