//! The command ring: queue-style operations on shared memory.
//!
//! A queue is a doorbell queue ([`campanile_core::doorbell`]) in this process's memory; its engine is whoever calls
//! `progress`, on this rank. Operations execute in order, so every signal is strong and every fence is free; what is
//! complete has been copied, so local and remote completion are one. Addresses are keys: they are checked when an
//! operation is posted and held while it executes, so a region that was dropped in between fails the queue and is never
//! touched.
//!
//! Memory that load / store does not reach, registered memory of peers and this process's address space as such, is copied
//! by the kernel ([`cross_memory`](crate::cross_memory)); operations that store instead of copying are refused there.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use campanile_core::doorbell::{
    Clock, CommandRing, Patience, Poisoned, QueueFault, ReserveError, TicketError, Written,
};
use campanile_core::{
    Agent, AtomicOp, Cancelled, Completion, ControlError, Initiator, LocalAddress, Op, PostError, Queue, QueueError,
    QueueOptions, QueueTarget, Rank, RemoteAddress, SignalAction, SignalUpdate, Ticket,
};
use campanile_host::clock::now_ns;
use campanile_host::copy::Copier;

use crate::cross_memory::{self, CopyError};
use crate::plugin::NAME;
use crate::registry::{Pin, Registry};
use crate::transport::Inner;

/// What an operation can fail with when it executes; the ring carries the number.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Status {
    LocalGone = 1,
    RemoteGone = 2,
    Unmapped = 3,
    PeerGone = 4,
    Refused = 5,
    Deregistered = 6,
}

impl From<CopyError> for Status {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Unmapped => Self::Unmapped,
            CopyError::Gone => Self::PeerGone,
            CopyError::Refused(_) => Self::Refused,
        }
    }
}

impl Status {
    fn describe(status: u32) -> String {
        match status {
            1 => "its local region was dropped before it executed; keep a region until local completion".to_owned(),
            2 => "its remote region was dropped before it executed; keep it until completion".to_owned(),
            3 => "nothing is mapped at an address that it names in private memory, or it may not be written; name memory \
                  that is there until completion"
                .to_owned(),
            4 => "the process whose private memory it names has died or left".to_owned(),
            5 => "the kernel refuses to copy private memory of that process, which it did not when they connected; \
                  process_vm_readv and process_vm_writev must be allowed"
                .to_owned(),
            6 => "its remote region was deregistered by its owner; keep a region until all peers are done with it".to_owned(),
            other => format!("status {other}"),
        }
    }
}

/// A clock that starts when it is first looked at: a post that need not wait reads no time.
#[derive(Default)]
struct SinceFirstLook(Cell<Option<u64>>);

impl Clock for SinceFirstLook {
    fn now(&self) -> Duration {
        let now = now_ns();
        let start = self.0.get().unwrap_or(now);
        self.0.set(Some(start));
        Duration::from_nanos(now - start)
    }
}

pub(crate) struct ShmQueue {
    inner: Arc<Inner>,
    number: u64,
    /// `Some`: only this peer's memory may be named.
    peer: Option<Rank>,
    ring: CommandRing<Op>,
    /// The first failure, with its words.
    failure: OnceLock<QueueError>,
}

impl ShmQueue {
    pub(crate) fn new(
        inner: Arc<Inner>,
        number: u64,
        target: QueueTarget,
        options: QueueOptions,
    ) -> Result<Self, ControlError> {
        let unsupported = |reason: String| ControlError::Unsupported { transport: NAME, what: "queue", reason };
        let peer = match target {
            QueueTarget::Peer(peer) if inner.peer(peer).is_none() => {
                return Err(unsupported(format!("{peer} is not connected")));
            }
            QueueTarget::Peer(peer) => Some(peer),
            QueueTarget::Engine(0) => None,
            other => return Err(unsupported(format!("{other:?} does not exist; the only engine is 0, the CPU"))),
        };
        if options.initiator == Initiator::Device {
            return Err(unsupported("a device cannot post to a CPU's command ring".to_owned()));
        }
        if options.depth > QueueOptions::MAX_DEPTH {
            let most = QueueOptions::MAX_DEPTH;
            return Err(unsupported(format!("a depth of {}; it is a power of two from 1 to {most}", options.depth)));
        }
        let depth = options.depth as u32;
        let ring = CommandRing::new(depth).map_err(|error| unsupported(error.to_string()))?;
        Ok(Self { inner, number, peer, ring, failure: OnceLock::new() })
    }

    fn failed(&self, poisoned: Poisoned) -> QueueError {
        let error = self.failure.get_or_init(|| match poisoned.fault {
            QueueFault::Completion { position, status } => {
                QueueError::Completion { queue: self.number, position, reason: Status::describe(status) }
            }
            _ => QueueError::Poisoned { queue: self.number, reason: poisoned.to_string() },
        });
        error.clone()
    }

    fn mark(&self, ticket: Ticket) -> Result<Written, QueueError> {
        if ticket.queue() != self.number {
            return Err(QueueError::ForeignTicket { queue: self.number, given: ticket.queue() });
        }
        Ok(Written::from_raw(ticket.mark()))
    }

    fn ticket_error(&self, ticket: Ticket, error: TicketError) -> QueueError {
        match error {
            TicketError::Poisoned(poisoned) => self.failed(poisoned),
            // A mark beyond all that was written was made up, or is of a queue of another transport.
            _ => QueueError::ForeignTicket { queue: self.number, given: ticket.queue() },
        }
    }

    /// Checks an operation as it is posted: keys alive, ranges inside, words aligned.
    fn check(&self, op: &Op) -> Result<(), String> {
        match *op {
            Op::Put { source, target, bytes } => {
                self.check_local(source, bytes)?;
                self.check_remote(target, bytes)
            }
            Op::PutSignal { source, target, bytes, signal } => {
                self.check_local(source, bytes)?;
                self.check_remote(target, bytes)?;
                self.check_word(signal.target)
            }
            Op::PutInline { data, target } => self.check_mapped(target, data.as_slice().len() as u64),
            Op::Signal(signal) => self.check_word(signal.target),
            Op::Get { source, target, bytes } => {
                self.check_remote(source, bytes)?;
                self.check_local(target, bytes)
            }
            Op::Atomic { op, target } => {
                self.check_word(target)?;
                match op {
                    AtomicOp::Add { .. } => Ok(()),
                    AtomicOp::FetchAdd { result, .. }
                    | AtomicOp::CompareSwap { result, .. }
                    | AtomicOp::Swap { result, .. } => self.check_result(result),
                }
            }
            Op::Fence => Ok(()),
            ref other => Err(format!("{:?} is not known to transport {NAME}", other.kind())),
        }
    }

    fn check_local(&self, at: LocalAddress, bytes: u64) -> Result<(), String> {
        check_range("local", &self.inner.locals, at.region.0, at.offset, bytes).map(|_| ())
    }

    /// Results of atomics are stored by this process.
    fn check_result(&self, at: LocalAddress) -> Result<(), String> {
        let pin = check_range("local", &self.inner.locals, at.region.0, at.offset, 8)?;
        match pin.process {
            Some(_) => Err("its result is in the address space as such; name a region of its own".to_owned()),
            None => Ok(()),
        }
    }

    fn check_remote(&self, at: RemoteAddress, bytes: u64) -> Result<(), String> {
        self.remote_range(at, bytes).map(|_| ())
    }

    fn remote_range(&self, at: RemoteAddress, bytes: u64) -> Result<Pin<'_>, String> {
        let pin = check_range("remote", &self.inner.remotes, at.region.0, at.offset, bytes)?;
        match self.peer {
            Some(peer) if pin.owner != peer => {
                Err(format!("its remote region belongs to {}, the queue leads to {peer}", pin.owner))
            }
            _ => Ok(pin),
        }
    }

    /// What is stored, and not copied, needs memory that load / store reaches.
    fn check_mapped(&self, at: RemoteAddress, bytes: u64) -> Result<(), String> {
        match self.remote_range(at, bytes)?.process {
            Some(_) => {
                Err("its remote region is registered memory, which puts and gets reach; allocate it for all else"
                    .to_owned())
            }
            None => Ok(()),
        }
    }

    fn check_word(&self, at: RemoteAddress) -> Result<(), String> {
        if !at.offset.is_multiple_of(8) {
            return Err(format!("a word at offset {}; words are 8-byte aligned", at.offset));
        }
        self.check_mapped(at, 8)
    }

    /// Executes one operation.
    fn execute(&self, op: &Op) -> Result<(), Status> {
        match *op {
            Op::Put { source, target, bytes } => self.put(source, target, bytes),
            Op::PutSignal { source, target, bytes, signal } => {
                self.put(source, target, bytes)?;
                self.signal(&signal)
            }
            Op::PutInline { data, target } => {
                let to = self.remote(target.region.0)?;
                let bytes = data.as_slice();
                // SAFETY: the range was checked when it was posted, the pin keeps the mapping; races are the callers'.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.at(target.offset), bytes.len()) };
                Ok(())
            }
            Op::Signal(signal) => self.signal(&signal),
            Op::Get { source, target, bytes } => {
                let (from, to) = (self.remote(source.region.0)?, self.local(target.region.0)?);
                let (source, target, bytes) = (from.at(source.offset), to.at(target.offset), bytes as usize);
                match from.process.or(to.process) {
                    Some(process) => {
                        cross_memory::read(process, source, target, bytes)?;
                        self.still_there(&from)
                    }
                    None => {
                        copy(target, source, bytes);
                        Ok(())
                    }
                }
            }
            Op::Atomic { op, target } => self.atomic(op, target),
            // In order anyway. Other operations were refused when they were posted.
            _ => Ok(()),
        }
    }

    fn put(&self, source: LocalAddress, target: RemoteAddress, bytes: u64) -> Result<(), Status> {
        let (from, to) = (self.local(source.region.0)?, self.remote(target.region.0)?);
        let (source, target, bytes) = (from.at(source.offset), to.at(target.offset), bytes as usize);
        match to.process.or(from.process) {
            Some(process) => {
                // A process that is gone may have left its number to another, which must not be written.
                self.still_there(&to)?;
                cross_memory::write(process, target, source, bytes)?;
                self.still_there(&to)
            }
            None => {
                copy(target, source, bytes);
                Ok(())
            }
        }
    }

    /// Whether what was copied by the kernel was the region: its process lives, so its number means no other, and its owner
    /// has it registered.
    fn still_there(&self, remote: &Pin<'_>) -> Result<(), Status> {
        if remote.process.is_none() {
            return Ok(());
        }
        if self.inner.peer(remote.owner).is_some_and(|peer| peer.gone().is_some()) {
            return Err(Status::PeerGone);
        }
        // The bytes are read before the word is.
        std::sync::atomic::fence(Ordering::SeqCst);
        if remote.registered() { Ok(()) } else { Err(Status::Deregistered) }
    }

    fn signal(&self, signal: &SignalUpdate) -> Result<(), Status> {
        let pin = self.remote(signal.target.region.0)?;
        let word = word(&pin, signal.target.offset);
        match signal.action {
            SignalAction::Set => word.store(signal.value, Ordering::Release),
            SignalAction::Add => {
                word.fetch_add(signal.value, Ordering::Release);
            }
        }
        self.notify(pin.owner);
        Ok(())
    }

    fn atomic(&self, op: AtomicOp, target: RemoteAddress) -> Result<(), Status> {
        let pin = self.remote(target.region.0)?;
        let word = word(&pin, target.offset);
        let (old, result) = match op {
            AtomicOp::Add { operand } => {
                word.fetch_add(operand, Ordering::AcqRel);
                self.notify(pin.owner);
                return Ok(());
            }
            AtomicOp::FetchAdd { operand, result } => (word.fetch_add(operand, Ordering::AcqRel), result),
            AtomicOp::CompareSwap { compare, swap, result } => {
                let old = word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
                (old.unwrap_or_else(|old| old), result)
            }
            AtomicOp::Swap { value, result } => (word.swap(value, Ordering::AcqRel), result),
        };
        self.notify(pin.owner);
        let to = self.local(result.region.0)?;
        // SAFETY: 8 bytes inside the region (checked when it was posted), pinned; any alignment is legal here.
        unsafe { to.at(result.offset).cast::<u64>().write_unaligned(old) };
        Ok(())
    }

    fn notify(&self, owner: Rank) {
        if let Some(peer) = self.inner.peer(owner) {
            peer.control().notify();
        }
    }

    fn local(&self, key: u64) -> Result<Pin<'_>, Status> {
        self.inner.locals.pin(key).ok_or(Status::LocalGone)
    }

    fn remote(&self, key: u64) -> Result<Pin<'_>, Status> {
        self.inner.remotes.pin(key).ok_or(Status::RemoteGone)
    }
}

fn check_range<'a>(side: &str, registry: &'a Registry, key: u64, offset: u64, bytes: u64) -> Result<Pin<'a>, String> {
    let pin = registry.pin(key).ok_or_else(|| format!("its {side} region {key:#x} does not exist (any more)"))?;
    if offset.checked_add(bytes).is_some_and(|end| end <= pin.bytes as u64) {
        return Ok(pin);
    }
    Err(format!("{bytes} bytes at offset {offset} are outside its {side} region of {} bytes", pin.bytes))
}

fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    let copier = Copier::for_bytes(bytes);
    let distance = to.addr().abs_diff(from.addr());
    // SAFETY: both ranges were checked when the operation was posted and are pinned; that nobody else touches them
    // meanwhile is the ordering contract. A put inside one's own region may overlap: `ptr::copy` is for that.
    unsafe {
        if distance < bytes {
            std::ptr::copy(from, to, bytes);
        } else {
            copier.copy(to, from, bytes);
            copier.fence();
        }
    }
}

fn word<'a>(pin: &'a Pin<'_>, offset: u64) -> &'a AtomicU64 {
    // SAFETY: 8 bytes inside the region and aligned (checked when it was posted; windows are page-aligned), pinned while
    // `pin` lives; words are only accessed as atomics (the ordering contract).
    unsafe { AtomicU64::from_ptr(pin.at(offset).cast()) }
}

impl Queue for ShmQueue {
    fn post(&self, ops: &[Op]) -> Result<Ticket, PostError> {
        for (index, op) in ops.iter().enumerate() {
            self.check(op).map_err(|reason| PostError::Invalid { index, reason })?;
        }
        // What may be waited for here is an earlier producer in the middle of its publish.
        let patience = Patience {
            clock: &SinceFirstLook::default(),
            deadline: self.inner.timeout(),
            abort: &|| self.inner.fault().is_some(),
            relax: &|_| std::thread::yield_now(),
        };
        let posted = self.ring.post(ops, &patience);
        posted.map(|mark| Ticket::new(self.number, mark.raw())).map_err(|error| match error {
            ReserveError::Busy { needed, free } => PostError::Busy { needed: needed as usize, free: free as usize },
            ReserveError::TooLarge { needed, depth, .. } => PostError::TooLarge { needed, depth: depth as usize },
            ReserveError::Poisoned(poisoned) => PostError::Queue(self.failed(poisoned)),
            other => PostError::Queue(QueueError::Poisoned { queue: self.number, reason: other.to_string() }),
        })
    }

    fn ring(&self) -> Result<(), QueueError> {
        // The engine is whoever calls `progress`: there is nobody to wake.
        self.ring.ring(|_| ()).map(|_| ()).map_err(|poisoned| self.failed(poisoned))
    }

    fn flush(&self) -> Ticket {
        Ticket::new(self.number, self.ring.flush().raw())
    }

    fn test(&self, ticket: Ticket, completion: Completion) -> Result<bool, QueueError> {
        match completion {
            Completion::Local | Completion::Remote(Agent::Cpu) => {}
            Completion::Remote(agent) => {
                return Err(QueueError::Unsupported {
                    queue: self.number,
                    level: format!("{agent:?}"),
                    reason: format!("transport {NAME} makes memory visible to CPUs"),
                });
            }
        }
        let mark = self.mark(ticket)?;
        self.ring.test(mark).map_err(|error| self.ticket_error(ticket, error))
    }

    fn progress(&self) -> Result<usize, QueueError> {
        let run = |op: &Op| self.execute(op).map_err(|status| status as u32);
        self.ring.execute(run).map(|done| done as usize).map_err(|poisoned| self.failed(poisoned))
    }

    fn cancel(&self, ticket: Ticket) -> Result<Cancelled, QueueError> {
        let mark = self.mark(ticket)?;
        match self.ring.cancel(mark) {
            Ok(true) => Ok(Cancelled::Stopped),
            Ok(false) => Ok(Cancelled::TooLate),
            Err(error) => Err(self.ticket_error(ticket, error)),
        }
    }

    fn describe(&self) -> String {
        self.ring.state().to_string()
    }
}
