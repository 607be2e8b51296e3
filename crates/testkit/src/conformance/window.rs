//! Memory that every rank has and every other one reaches, made straight from a transport, in the memory that is examined.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use campanile_core::{
    Agent, Completion, LocalAddress, MemoryKind, Op, OpKind, PeerClass, Queue, QueueOptions, QueueTarget, Rank, Region,
    RemoteAddress, RemoteRegion, Transport,
};

use super::finding::{Expected, Proof};
use super::stage::Stage;

/// A region of this rank and what it imported of the others, itself included.
pub(super) struct Window {
    pub(super) region: Region,
    pub(super) remotes: Vec<RemoteRegion>,
    /// For memory that the host does not touch.
    bounce: Option<Bounce>,
}

impl Window {
    /// `bytes` on each rank, of the memory that is examined. Collective.
    pub(super) fn new(stage: &Stage, transport: &dyn Transport, bytes: usize) -> Proof<Self> {
        Self::of(stage, transport, bytes, stage.memory())
    }

    /// `bytes` on each rank. Collective.
    pub(super) fn of(stage: &Stage, transport: &dyn Transport, bytes: usize, kind: MemoryKind) -> Proof<Self> {
        let region = transport.allocate(bytes, kind).wait(stage.timeout()).expected("memory")?;
        let everyone: Vec<_> = (0..stage.ranks()).map(Rank::new).collect();
        let blob = transport.export(&region, &everyone).expected("an export")?;
        let blobs = stage.exchange(&blob)?;
        let import = |(peer, blob): (usize, Vec<u8>)| {
            transport.import(Rank::new(peer), &blob).wait(stage.timeout()).expected("an import")
        };
        let remotes = blobs.into_iter().enumerate().map(import).collect::<Proof<_>>()?;
        stage.meet()?;
        Ok(Self { remotes, ..Self::alone(stage, transport, region)? })
    }

    /// A region that nobody has imported, or others have by themselves.
    pub(super) fn alone(stage: &Stage, transport: &dyn Transport, region: Region) -> Proof<Self> {
        let far = region.kind().is_device();
        let bounce = if far { Some(Bounce::new(stage, transport)?) } else { None };
        Ok(Self { region, remotes: Vec::new(), bounce })
    }

    pub(super) fn local(&self, offset: usize) -> LocalAddress {
        LocalAddress { region: self.region.key(), offset: offset as u64 }
    }

    pub(super) fn remote(&self, peer: usize, offset: usize) -> RemoteAddress {
        RemoteAddress { region: self.remotes[peer].key(), offset: offset as u64 }
    }

    /// Whether a look at a word costs no more than a load.
    pub(super) fn is_near(&self) -> bool {
        self.bounce.is_none()
    }

    /// This rank's word at an aligned offset, of host memory.
    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: inside the region and aligned (checked by the callers), alive as long as `self`; cases use words as
        // atomics only.
        unsafe { AtomicU64::from_ptr(self.region.address().add(offset).cast()) }
    }

    /// The word at an aligned offset.
    pub(super) fn load(&self, offset: usize) -> Proof<u64> {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.region.bytes(), "a case uses words inside its window");
        if self.is_near() {
            return Ok(self.word(offset).load(Ordering::Acquire));
        }
        let bytes = self.read(offset, 8)?;
        Ok(u64::from_ne_bytes(bytes.try_into().expect("8 bytes were read")))
    }

    /// Changes the word at an aligned offset, where no peer does meanwhile.
    pub(super) fn store(&self, offset: usize, value: u64) -> Proof {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.region.bytes(), "a case uses words inside its window");
        if !self.is_near() {
            return self.write(offset, &value.to_ne_bytes());
        }
        self.word(offset).store(value, Ordering::Release);
        Ok(())
    }

    /// Writes where no peer does meanwhile.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) -> Proof {
        assert!(offset + bytes.len() <= self.region.bytes(), "a case writes inside its window");
        if let Some(bounce) = &self.bounce {
            return bounce.write(self.local(offset), bytes);
        }
        // SAFETY: inside the region (checked), alive as long as `self`; races are excluded by the case.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.region.address().add(offset), bytes.len()) };
        Ok(())
    }

    /// Reads what a signal, a completion or a meeting has announced.
    pub(super) fn read(&self, offset: usize, bytes: usize) -> Proof<Vec<u8>> {
        assert!(offset + bytes <= self.region.bytes(), "a case reads inside its window");
        let mut seen = vec![0; bytes];
        if let Some(bounce) = &self.bounce {
            bounce.read(self.local(offset), &mut seen)?;
            return Ok(seen);
        }
        // SAFETY: inside the region (checked), alive as long as `self`; a transport that announces too early races here,
        // which is what the case is to find.
        unsafe { std::ptr::copy_nonoverlapping(self.region.address().add(offset), seen.as_mut_ptr(), bytes) };
        Ok(seen)
    }
}

/// A bounce buffer in host memory: through it and a queue to this rank itself a case reads and writes device memory.
struct Bounce {
    queue: Arc<dyn Queue>,
    region: Region,
    remote: RemoteRegion,
    timeout: std::time::Duration,
    /// Bytes of one operation.
    most: usize,
    /// Held by who uses it.
    turn: Mutex<()>,
}

/// Bytes of a bounce buffer.
const BOUNCE: usize = 64 << 10;

impl Bounce {
    fn new(stage: &Stage, transport: &dyn Transport) -> Proof<Self> {
        let (own, timeout) = (Rank::new(stage.rank()), stage.timeout());
        let region = transport.allocate(BOUNCE, MemoryKind::Host).wait(timeout).expected("host memory")?;
        let blob = transport.export(&region, &[own]).expected("an export to itself")?;
        let remote = transport.import(own, &blob).wait(timeout).expected("an import of its own")?;
        let options = QueueOptions { depth: 4, ..QueueOptions::default() };
        let queue = transport.queue(QueueTarget::Peer(own), options).expected("a queue to itself")?;
        let limit = |op| transport.caps(PeerClass::Own, MemoryKind::Host, op).map(|caps| caps.max_bytes);
        let limits = [OpKind::Put, OpKind::Get].into_iter().filter_map(limit);
        let most = limits.fold(BOUNCE as u64, u64::min) as usize;
        Ok(Self { queue, region, remote, timeout, most, turn: Mutex::new(()) })
    }

    fn write(&self, to: LocalAddress, bytes: &[u8]) -> Proof {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, piece) in (0..).step_by(self.most).zip(bytes.chunks(self.most)) {
            // SAFETY: inside the buffer, which is this thread's for its turn and no operation is on.
            unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), self.region.address(), piece.len()) };
            let source = RemoteAddress { region: self.remote.key(), offset: 0 };
            let target = LocalAddress { offset: to.offset + at, ..to };
            self.execute(Op::Get { source, target, bytes: piece.len() as u64 })?;
        }
        Ok(())
    }

    fn read(&self, from: LocalAddress, bytes: &mut [u8]) -> Proof {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, piece) in (0..).step_by(self.most).zip(bytes.chunks_mut(self.most)) {
            let source = LocalAddress { offset: from.offset + at, ..from };
            let target = RemoteAddress { region: self.remote.key(), offset: 0 };
            self.execute(Op::Put { source, target, bytes: piece.len() as u64 })?;
            // SAFETY: as in `write`; the operation is complete.
            unsafe { std::ptr::copy_nonoverlapping(self.region.address(), piece.as_mut_ptr(), piece.len()) };
        }
        Ok(())
    }

    fn execute(&self, op: Op) -> Proof {
        let ticket = self.queue.post(&[op]).expected("a copy between host and device memory to be taken")?;
        let waited = self.queue.wait(ticket, Completion::Remote(Agent::Cpu), self.timeout);
        waited.expected("a copy between host and device memory")
    }
}

/// After so many bytes a pattern begins anew: a prime, which no transport cuts its operations by.
const PERIOD: usize = 65_521;

/// Bytes that differ from place to place and from number to number.
pub(super) fn pattern(number: u64, bytes: usize) -> Vec<u8> {
    let word = |at: u64| (number << 32 | at).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let once = bytes.min(PERIOD);
    let mut pattern = Vec::with_capacity(bytes.next_multiple_of(8));
    (0..once.div_ceil(8) as u64).for_each(|at| pattern.extend_from_slice(&word(at).to_le_bytes()));
    pattern.truncate(once);
    while pattern.len() < bytes {
        // A whole number of periods, or the rest.
        pattern.extend_from_within(..(bytes - pattern.len()).min(pattern.len()));
    }
    pattern
}
