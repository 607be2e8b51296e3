//! Windows: symmetric registered memory.
//!
//! Every rank of a team has the same number of bytes, addressed by (team position, offset). Where load / store reaches
//! a peer, [`map`](Window::map) gives a pointer; everywhere, [`put`](Window::put) and [`signal`](Window::signal) move
//! bytes and words by whatever path the communicator chose.
//!
//! The host does not load from or store to memory of a device, its own rank's neither: what it does to a window there goes
//! through queues, and [`device_window`](Window::device_window) is what kernels get.
//!
//! A window is made together by all ranks of a communicator
//! ([`Communicator::window`](crate::Communicator::window)) and dropped alone: dropping it waits for what this rank has
//! posted for it, and a peer's late store lands in memory that its own mapping keeps alive.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::communicator::Shared;
use crate::{
    Agent, CommError, Completion, Condition, ControlError, DeviceWindow, LocalAddress, Memory, MemoryKind, Op,
    PostError, Rank, Region, RemoteAddress, RemoteRegion, SignalAction, SignalUpdate, Strength, Team, Wait,
};

/// Symmetric memory of a team.
#[derive(Clone)]
pub struct Window {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    /// What its keys in the bootstrap begin with.
    key: String,
    team: Team,
    position: usize,
    region: Region,
    remotes: Vec<RemoteRegion>,
    maps: Vec<Option<NonNull<u8>>>,
}

// SAFETY: the pointers are mappings that `remotes` keep alive; all access through them is by the ordering contract.
unsafe impl Send for Inner {}
// SAFETY: as for Send; the struct itself is immutable.
unsafe impl Sync for Inner {}

/// Operations name regions by key: this rank's are complete before the regions end, and its region outlives those of the
/// others.
impl Drop for Inner {
    fn drop(&mut self) {
        let by_queue = (0..self.maps.len()).filter(|&position| self.host(position).is_none());
        by_queue.for_each(|position| self.shared.drain(self.team.member(position)));
        // Whoever has it mapped keeps the memory by that.
        if (0..self.maps.len()).any(|position| self.map(position).is_none()) {
            let key = std::mem::take(&mut self.key);
            self.shared.outlive(Dropped { key, team: self.team.clone(), _region: self.region.clone() });
        }
    }
}

impl Inner {
    /// First byte of the part of the member at `position`, for whoever loads and stores there.
    #[inline]
    fn map(&self, position: usize) -> Option<NonNull<u8>> {
        if position == self.position { NonNull::new(self.region.address()) } else { self.maps[position] }
    }

    /// The same, if that is the host.
    #[inline]
    fn host(&self, position: usize) -> Option<NonNull<u8>> {
        if self.region.kind().is_device() { None } else { self.map(position) }
    }
}

/// What stays of a window that this rank has dropped.
pub(crate) struct Dropped {
    key: String,
    pub(crate) team: Team,
    _region: Region,
}

impl Dropped {
    /// The key under which a member says that it has dropped the window.
    pub(crate) fn mark(&self, member: Rank) -> String {
        format!("{}/dropped/{}", self.key, member.0)
    }
}

impl Window {
    pub(crate) fn new(
        shared: Arc<Shared>,
        key: String,
        team: Team,
        position: usize,
        region: Region,
        remotes: Vec<RemoteRegion>,
    ) -> Self {
        let maps = remotes.iter().map(|remote| shared.map(remote)).collect();
        Self { inner: Arc::new(Inner { shared, key, team, position, region, remotes, maps }) }
    }

    /// Bytes on each rank.
    pub fn bytes(&self) -> usize {
        self.inner.region.bytes()
    }

    /// Where the memory lives.
    pub fn kind(&self) -> MemoryKind {
        self.inner.region.kind()
    }

    /// This rank's part.
    pub fn region(&self) -> &Region {
        &self.inner.region
    }

    /// The part of the member at `position`, as operations address it.
    pub fn remote(&self, position: usize) -> &RemoteRegion {
        &self.inner.remotes[position]
    }

    /// First byte of the part of the member at `position`, where load / store reaches it, for the processor that the
    /// memory of this rank's part belongs to: the host must not touch what this says of a window in device memory.
    /// Always there for this rank.
    pub fn map(&self, position: usize) -> Option<NonNull<u8>> {
        self.inner.map(position)
    }

    /// The window as kernels on this rank's device see it, by the transport's [device code](crate::DeviceCode). What it
    /// names is valid while the window lives. Where the path that was asked for is by queue, no other member is mapped.
    ///
    /// # Errors
    /// [`ControlError::Unsupported`], as [`CommError`], with the transport's name: it has no device code, or none that this
    /// host compiles; the window is in host memory; what it gives is not what its code reads.
    pub fn device_window(&self) -> Result<DeviceWindow, CommError> {
        let inner = &*self.inner;
        let transport = inner.shared.transport();
        let info = transport.info();
        let unsupported = |what, reason: String| ControlError::Unsupported { transport: info.name, what, reason };
        let code =
            info.device_code.ok_or_else(|| unsupported("device code", "it brings none for kernels".to_owned()))?;
        code.check().map_err(|error| unsupported("device code", error.to_string()))?;
        let view = transport.device_view(&inner.region, &inner.remotes)?;
        let mut window = view
            .check(code, inner.remotes.len(), inner.position)
            .map_err(|error| unsupported("device view", error.to_string()))?;
        for (position, address) in window.windows.iter_mut().enumerate() {
            if inner.map(position).is_none() {
                *address = 0;
            }
        }
        Ok(window)
    }

    /// Address of the part of the member at `position` for kernels on this rank's device; `None` for a window in host
    /// memory, and where load / store does not reach. Valid while the window lives.
    pub fn device_address(&self, position: usize) -> Option<u64> {
        if !self.kind().is_device() {
            return None;
        }
        self.map(position).map(|first| first.as_ptr().addr() as u64)
    }

    /// This rank's word at `offset`. See [`load`](Self::load) for a word in any memory.
    ///
    /// # Panics
    /// If `offset` is no multiple of 8 or beyond the window, or the window is in device memory.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.check_word(offset);
        assert!(!self.kind().is_device(), "a word of {} memory has no reference on the host: load it", self.kind());
        // SAFETY: checked to be inside this rank's region and aligned; the region lives as long as `self`, and words
        // of a window are only accessed as atomics (the ordering contract).
        unsafe { AtomicU64::from_ptr(self.inner.region.address().add(offset).cast()) }
    }

    /// Value of this rank's word at `offset`; what its writer published before it is visible.
    ///
    /// # Errors
    /// The queue's error, of a window in device memory.
    ///
    /// # Panics
    /// If `offset` is no multiple of 8 or beyond the window.
    pub fn load(&self, offset: usize) -> Result<u64, CommError> {
        if !self.kind().is_device() {
            return Ok(self.word(offset).load(Ordering::Acquire));
        }
        self.check_word(offset);
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Stores `value` into the word at `offset` of the member at `position`, as a strong signal: whoever sees it sees
    /// all earlier puts and stores of this caller to that member. What kernels store to device memory they announce
    /// themselves.
    ///
    /// # Errors
    /// [`CommError::Failed`] if the communicator has failed (then nothing is published), or the queue's error.
    ///
    /// # Panics
    /// If `offset` is no multiple of 8 or beyond the window.
    #[inline]
    pub fn signal(&self, position: usize, offset: usize, value: u64) -> Result<(), CommError> {
        self.check_word(offset);
        let inner = &*self.inner;
        inner.shared.check()?;
        let Some(base) = inner.host(position) else {
            let signal = SignalUpdate {
                target: self.remote_address(position, offset),
                action: SignalAction::Set,
                value,
                strength: Strength::Strong,
            };
            return self.post(position, &[Op::Signal(signal)]);
        };
        // SAFETY: checked to be inside the member's region (all parts have the same size) and aligned; the mapping
        // lives as long as `self`; words of a window are only accessed as atomics (the ordering contract).
        let word = unsafe { AtomicU64::from_ptr(base.as_ptr().add(offset).cast()) };
        word.store(value, Ordering::Release);
        if position != inner.position {
            inner.shared.transport().notify(inner.team.member(position));
        }
        Ok(())
    }

    /// Moves `bytes` from `source` to `offset` of the member at `position`. The source is unchanged by the caller
    /// until [`flush`](Self::flush). From device memory into a window of the host it is complete on return, so that a later
    /// signal covers it.
    ///
    /// # Errors
    /// [`CommError::Misuse`] if a range is outside its region; the queue's error.
    pub fn put(
        &self,
        position: usize,
        source: &Region,
        source_offset: usize,
        offset: usize,
        bytes: usize,
    ) -> Result<(), CommError> {
        self.inner.shared.check()?;
        self.check_range("the window", self.bytes(), offset, bytes)?;
        self.check_range("the source", source.bytes(), source_offset, bytes)?;
        let stored = self.inner.host(position);
        if let (Some(base), false) = (stored, source.kind().is_device()) {
            // SAFETY: both ranges were checked; the regions live as long as the handles; that nobody else touches
            // them meanwhile is the ordering contract. Overlap (a put to oneself) is legal for `copy`.
            unsafe { std::ptr::copy(source.address().add(source_offset), base.as_ptr().add(offset), bytes) };
            return Ok(());
        }
        let op = Op::Put {
            source: LocalAddress { region: source.key(), offset: source_offset as u64 },
            target: self.remote_address(position, offset),
            bytes: bytes as u64,
        };
        self.post(position, &[op])?;
        if stored.is_some() { self.drain(position, Completion::Remote(Agent::Cpu)) } else { Ok(()) }
    }

    /// Writes into this rank's own part; a window in device memory through a queue, and waits for that.
    ///
    /// # Errors
    /// [`CommError::Misuse`] if the range is outside the window; the queue's error, of a window in device memory.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), CommError> {
        self.check_range("the window", self.bytes(), offset, bytes.len())?;
        if self.kind().is_device() {
            return self.copy_own(bytes.as_ptr().cast_mut(), bytes.len(), |own| Op::Put {
                source: own,
                target: self.remote_address(self.inner.position, offset),
                bytes: bytes.len() as u64,
            });
        }
        // SAFETY: the range was checked, the region lives as long as `self`, `bytes` is the caller's; that no peer
        // touches the range meanwhile is the ordering contract.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.inner.region.address().add(offset), bytes.len()) };
        Ok(())
    }

    /// Reads from this rank's own part, as [`write`](Self::write) writes.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), CommError> {
        self.check_range("the window", self.bytes(), offset, bytes.len())?;
        if self.kind().is_device() {
            let count = bytes.len() as u64;
            return self.copy_own(bytes.as_mut_ptr(), bytes.len(), |own| Op::Get {
                source: self.remote_address(self.inner.position, offset),
                target: own,
                bytes: count,
            });
        }
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy(self.inner.region.address().add(offset), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Executes an operation between this rank's own part and `bytes` bytes of the caller's at `address`.
    fn copy_own(&self, address: *mut u8, bytes: usize, op: impl FnOnce(LocalAddress) -> Op) -> Result<(), CommError> {
        let inner = &*self.inner;
        inner.shared.check()?;
        if bytes == 0 {
            return Ok(());
        }
        let memory = Memory { address, bytes, kind: MemoryKind::Host };
        // SAFETY: the caller's slice lives until this returns; the region is dropped before, by which the transport has
        // done with it.
        let region = unsafe { inner.shared.transport().register(memory) }.wait(inner.shared.timeout())?;
        self.post(inner.position, &[op(LocalAddress { region: region.key(), offset: 0 })])?;
        self.drain(inner.position, Completion::Remote(Agent::Cpu))
    }

    /// Waits until the word at `offset` of this rank's part, which only the member at `position` writes, fulfils
    /// `condition`; returns it. `what` is for the error.
    ///
    /// # Errors
    /// [`CommError::Wait`] if the member died, stalled or aborted; sticky.
    pub fn wait(
        &self,
        position: usize,
        offset: usize,
        condition: Condition,
        what: &'static str,
    ) -> Result<u64, CommError> {
        let inner = &*self.inner;
        inner.shared.wait(&Wait {
            region: &inner.region,
            offset,
            condition,
            peer: inner.team.member(position),
            operation: what,
            slot: "signal",
            epoch: 0,
        })
    }

    /// Waits until the sources of all earlier puts to that member are reusable.
    ///
    /// # Errors
    /// The queue's error.
    pub fn flush(&self, position: usize) -> Result<(), CommError> {
        self.complete(position, Completion::Local)
    }

    /// Waits until all earlier puts and signals to that member are in its memory and visible to its CPUs.
    ///
    /// # Errors
    /// The queue's error.
    pub fn quiet(&self, position: usize) -> Result<(), CommError> {
        self.complete(position, Completion::Remote(Agent::Cpu))
    }

    fn complete(&self, position: usize, completion: Completion) -> Result<(), CommError> {
        self.inner.shared.check()?;
        if self.inner.host(position).is_some() { Ok(()) } else { self.drain(position, completion) }
    }

    /// Waits until what was posted for the member at `position` has come that far.
    fn drain(&self, position: usize, completion: Completion) -> Result<(), CommError> {
        let inner = &*self.inner;
        let peer = inner.team.member(position);
        let queue = inner.shared.queue(peer)?;
        let waited = queue.wait(queue.flush(), completion, inner.shared.timeout());
        waited.or_else(|error| inner.shared.fail_to(peer, error.into()))
    }

    fn post(&self, position: usize, ops: &[Op]) -> Result<(), CommError> {
        let shared = &self.inner.shared;
        let peer = self.inner.team.member(position);
        self.post_to(peer, ops).or_else(|error| shared.fail_to(peer, error))
    }

    fn post_to(&self, peer: Rank, ops: &[Op]) -> Result<(), CommError> {
        let shared = &self.inner.shared;
        let queue = shared.queue(peer)?;
        let mut start = None;
        loop {
            match queue.post(ops) {
                Ok(_) => {
                    queue.ring()?;
                    queue.progress()?;
                    return Ok(());
                }
                Err(busy @ PostError::Busy { .. }) => {
                    let start = *start.get_or_insert_with(std::time::Instant::now);
                    if start.elapsed() >= shared.timeout() {
                        return Err(busy.into());
                    }
                    queue.ring()?;
                    if queue.progress()? == 0 {
                        std::thread::yield_now();
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn remote_address(&self, position: usize, offset: usize) -> RemoteAddress {
        RemoteAddress { region: self.inner.remotes[position].key(), offset: offset as u64 }
    }

    #[inline]
    fn check_word(&self, offset: usize) {
        assert!(
            offset.is_multiple_of(8) && offset < self.bytes(),
            "a word at {offset} of a window of {} bytes: offsets of words are multiples of 8 inside it",
            self.bytes()
        );
    }

    fn check_range(&self, what: &str, limit: usize, offset: usize, bytes: usize) -> Result<(), CommError> {
        if offset.checked_add(bytes).is_some_and(|end| end <= limit) {
            return Ok(());
        }
        let reason = format!("{bytes} bytes at {offset} are outside {what} of {limit} bytes");
        Err(CommError::Misuse { what: "window", reason })
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({} bytes on each of {} ranks)", self.bytes(), self.inner.team.len())
    }
}
