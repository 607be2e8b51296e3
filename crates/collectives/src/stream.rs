//! Streams: how a rank hands bytes to all others of its team, any number of times, without a barrier.
//!
//! # Memory
//!
//! On every rank, at the same offsets:
//!
//! | region | written by | read by |
//! |---|---|---|
//! | `arrived`, by source, a cache line each | the source: how many slots it has published | this rank, polling |
//! | `returned`, by reader, a cache line each | the reader: how many slots of this rank it has read | this rank, polling |
//! | `ring` of slots | this rank | readers whose load / store reaches it; this rank's queues |
//! | `near` parts of slots, only where all ranks are [near](distance) | this rank | readers |
//! | `lanes`, by source and slot, only where load / store does not reach every rank | the source, by puts | this rank |
//! | `input` | this rank's caller | as `ring` |
//!
//! A slot is a line of header (call, bytes of the whole message, where the bytes are) and room for a part of a message; the
//! small parts of near ranks lie in `near` instead, close together.
//!
//! # Words
//!
//! Both are counters of slots, monotone, 64 bits, with one writer, never reset, compared by signed difference. Slot n of
//! a rank lies at n modulo the number of slots.
//!
//! # Rules
//!
//! 1. **Publish.** A rank writes its slot n when every reader's `returned` is at least n − slots; then it raises
//!    `arrived` of every reader to n: behind a put of the slot into the reader's lane where load / store does not reach.
//! 2. **Read.** A reader waits until `arrived` of the source is n, and reads slot n where it lies: in the source's ring,
//!    or in its lane.
//! 3. **Return.** It raises its word `returned` at the source after its last load from the slot: every quarter of the
//!    ring; at once for a slot that lends.
//! 4. **Lend.** A message in the source's `input` takes one slot without bytes: readers read the input itself. The source
//!    writes its input again when every reader has returned that slot. (By queues it travels in parts, like any other.)
//!    A message in private memory is lent likewise where [gets](private) reach it, which is [faster](private); the source ends its call when every reader has returned the slot.
//! 5. **One order.** All ranks make the same calls in the same order, one at a time.
//!
//! # Why it is race free
//!
//! A part is read only after an acquire load of a word that was released after it was written (1, 2). It is overwritten
//! only after an acquire load of words that were released after all readers had read it (3, 1). Words are counted from
//! the beginning, so no call has to look at those of another: calls run into each other, at most a ring apart. Each lane
//! has one writer, so the order of puts to different ranks does not matter.
//!
//! # Why it ends
//!
//! A source waits for readers of an old slot only, and publishes at most half a ring ahead of what it reads itself. The
//! rank that has come least far therefore never waits for a slot: all others have read, and returned, what it needs
//! (return runs at most a quarter of the ring behind), and they have published what it reads. `model` goes
//! through all interleavings.

mod copy;
mod distance;
#[cfg(test)]
mod model;
mod private;
mod slots;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_core::{Arena, ArenaRegion, CommError, Communicator, Condition, MemoryKind, Wait, Window};
use campanile_host::copy::Copier;

use private::Private;
use slots::Slots;

/// Words of different writers, and parts, do not share a cache line.
const LINE: usize = 64;
/// Slots of a ring.
const SLOTS: Slots = Slots::new(8);
/// Most bytes of a part: eight of them, and what a reader writes meanwhile, stay in a core's L2.
const LARGEST_PART: usize = 64 << 10;
/// Fewest bytes of a part of a message that is cut: less is over before the next word has travelled.
const SMALLEST_PART: usize = 8 << 10;
/// Parts that a message is cut into if they are large enough, so that writer and readers overlap.
const PARTS: usize = 8;
/// Bytes of a part between near ranks: eight of them, read and written, stay in a core's L1.
const NEAR_PART: usize = 1 << 10;

/// The first line of a slot. Plain memory, covered by `arrived`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Header {
    /// Which call of the object, so that ranks that are out of step are found.
    call: u64,
    /// Bytes of the whole message.
    bytes: u64,
    /// [`PART`], [`INPUT`] or [`PRIVATE`].
    lent: u64,
    /// Where in the source's private memory the bytes are.
    address: u64,
}

/// A part of the bytes follows.
const PART: u64 = 0;
/// The bytes are in the source's input.
const INPUT: u64 = 1;
/// They are in its private memory.
const PRIVATE: u64 = 2;

const _: () = assert!(size_of::<Header>() <= LINE);

/// One rank's end of the streams from every rank to all others.
pub(crate) struct Stream {
    comm: Arc<Communicator>,
    /// Of which collective, for errors.
    operation: &'static str,
    window: Window,
    arrived: ArenaRegion,
    returned: ArenaRegion,
    ring: ArenaRegion,
    /// Empty unless all ranks are near.
    near: ArenaRegion,
    /// Largest message that travels in near parts.
    near_most: usize,
    lanes: ArenaRegion,
    input: ArenaRegion,
    /// Where gets reach private memory.
    private: Option<Private>,
    /// Bytes of a message, at most.
    capacity: usize,
    call: u64,
    /// The last slot of this rank that was published.
    sent: u64,
    /// The last slot of this rank that lends the input.
    lent: u64,
    peers: Vec<Lane>,
}

/// What this rank knows of the streams between it and one peer.
#[derive(Clone, Copy, Debug)]
struct Lane {
    /// Whether load / store reaches it.
    mapped: bool,
    /// The last slot of this rank that it was seen to have returned.
    seen: u64,
    /// The last slot of it that this rank has read.
    read: u64,
    /// The last slot of it that this rank has returned.
    returned: u64,
    /// Bytes of its message of this call that this rank has read.
    taken: usize,
    /// Whether that is all of it; a message of 0 bytes takes a slot, too.
    complete: bool,
}

impl Stream {
    /// Parts that a rank publishes ahead of what it reads from others.
    pub(crate) const AHEAD: usize = SLOTS.ahead();

    /// How a rank copies what it receives, `bytes` in a call.
    pub(crate) fn copier(bytes: usize) -> Copier {
        copy::out(bytes)
    }

    /// Makes the window, for messages of at most `capacity` bytes; words begin at `first`. Messages of up to `near_most`
    /// bytes travel in small parts between near ranks. Collective.
    pub(crate) fn new(
        comm: &Arc<Communicator>,
        operation: &'static str,
        capacity: usize,
        first: u64,
        near_most: usize,
    ) -> Result<Self, CommError> {
        comm.agree(operation, &[("capacity", capacity.to_string()), ("first slot", first.to_string())])?;
        let ranks = comm.ranks();
        // Ranks may see different neighbours: lanes are there for all of them or for none, and so is what else needs all.
        let offered = [u8::from(comm.maps_all()), u8::from(comm.maps_all() && Private::is_offered(comm))];
        let offers = comm.gather(operation, &offered)?;
        let everywhere = |of: usize| offers.iter().all(|offer| offer.get(of) == Some(&1));
        let mapped = everywhere(0);
        let near = mapped && distance::is_near(comm, operation)?;
        let private = if everywhere(1) { Private::new(comm, operation)? } else { None };
        let too_large = |error: campanile_core::ArenaError| CommError::Misuse {
            what: operation,
            reason: format!("a capacity of {capacity} bytes: {error}"),
        };
        let slot = LINE + far_part_bytes(capacity).min(capacity).next_multiple_of(LINE);
        let mut arena = Arena::new();
        let mut carve = |name, element, stride, count| arena.carve(name, element, stride, count).map_err(too_large);
        let arrived = carve("arrived", "word", LINE, ranks)?;
        let returned = carve("returned", "word", LINE, ranks)?;
        let ring = carve("ring", "slot", slot, SLOTS.count())?;
        let near = carve("near", "part", NEAR_PART, if near { SLOTS.count() } else { 0 })?;
        let lanes = carve("lanes", "slot", slot, if mapped { 0 } else { ranks * SLOTS.count() })?;
        let input = carve("input", "byte", 1, capacity)?;
        let window = comm.window(arena.bytes(), MemoryKind::Host)?;
        for words in [&arrived, &returned] {
            for peer in 0..ranks {
                window.word(words.at(peer)).store(first, Ordering::Relaxed);
            }
        }
        let lane = |peer| Lane {
            mapped: window.map(peer).is_some(),
            seen: first,
            read: first,
            returned: first,
            taken: 0,
            complete: false,
        };
        let peers = (0..ranks).map(lane).collect();
        // Nobody signals before all words are set.
        comm.agree(operation, &[("words", "set".to_owned())])?;
        Ok(Self {
            comm: Arc::clone(comm),
            operation,
            window,
            arrived,
            returned,
            ring,
            near,
            near_most,
            lanes,
            input,
            private,
            capacity,
            call: 0,
            sent: first,
            lent: first,
            peers,
        })
    }

    pub(crate) fn comm(&self) -> &Communicator {
        &self.comm
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// An error of the caller; nothing has happened.
    pub(crate) fn misuse(&self, reason: String) -> CommError {
        CommError::Misuse { what: self.operation, reason }
    }

    /// Refuses a message that is too large.
    pub(crate) fn check_bytes(&self, bytes: usize) -> Result<(), CommError> {
        if bytes <= self.capacity {
            return Ok(());
        }
        let most = self.capacity;
        Err(self.misuse(format!("{bytes} bytes; it was made for at most {most}: make one with more capacity")))
    }

    /// The peers, the next one first: ranks that start together begin with different ones.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, ranks) = (self.comm.rank(), self.comm.ranks());
        (1..ranks).map(move |step| (rank + step) % ranks)
    }

    /// Begins a call.
    pub(crate) fn begin(&mut self) {
        self.call = self.call.wrapping_add(1);
        for peer in &mut self.peers {
            (peer.taken, peer.complete) = (0, false);
        }
    }

    /// Publishes the part of `message` that begins at `at`; returns where the next one begins.
    pub(crate) fn send(&mut self, message: &[u8], at: usize) -> Result<usize, CommError> {
        let end = message.len().min(at + self.part_bytes(message.len()));
        let number = self.claim()?;
        let header = Header { call: self.call, bytes: message.len() as u64, lent: PART, address: 0 };
        let part = &message[at..end];
        let copier = copy::into_ring(part.len());
        self.write_header(number, header);
        let to = self.window.region().address().wrapping_add(self.part(number, message.len()));
        // SAFETY: the slot is this rank's, inside its window, with room for a part; every reader has returned its last use
        // (`claim`), and no queue reads it any more.
        unsafe { copier.copy(to, part.as_ptr(), part.len()) };
        copier.fence();
        self.publish(part.len())?;
        Ok(end)
    }

    /// Publishes `bytes` of the input, all of them at once where load / store reaches every peer; returns where the next
    /// part begins.
    pub(crate) fn lend(&mut self, bytes: usize, at: usize) -> Result<usize, CommError> {
        if self.lanes.count > 0 {
            // SAFETY: `bytes` of the input were checked to be inside it; this rank's caller, who alone writes it, is in a
            // call that has `self` for itself. It is apart from the ring, the only thing that `send` writes.
            let input = unsafe { std::slice::from_raw_parts(self.input_address(), bytes) };
            return self.send(input, at);
        }
        self.publish_lent(Header { call: self.call, bytes: bytes as u64, lent: INPUT, address: 0 })?;
        Ok(bytes)
    }

    /// Whether messages of `bytes` in private memory, one of every rank at a time, are better lent than sent.
    pub(crate) fn lends(&self, bytes: usize) -> bool {
        self.private.is_some() && private::pays(bytes)
    }

    /// Publishes a message where it lies. Until [`take_back`](Self::take_back) it must stay, and stay unchanged.
    pub(crate) fn lend_private(&mut self, message: *const u8, bytes: usize) -> Result<(), CommError> {
        let address = message.expose_provenance() as u64;
        self.publish_lent(Header { call: self.call, bytes: bytes as u64, lent: PRIVATE, address })
    }

    /// Waits until every reader has read what was lent.
    pub(crate) fn take_back(&mut self) -> Result<(), CommError> {
        self.await_returned(self.lent)
    }

    fn publish_lent(&mut self, header: Header) -> Result<(), CommError> {
        let number = self.claim()?;
        self.write_header(number, header);
        self.publish(0)?;
        self.lent = self.sent;
        Ok(())
    }

    /// Into the slot that was claimed.
    fn write_header(&self, number: u64, header: Header) {
        // SAFETY: the slot is this rank's, inside its window, with room for a header; every reader has returned its last use
        // (`claim`), and no queue reads it any more. A window's parts are aligned to lines.
        unsafe { self.window.region().address().add(self.ring.at(SLOTS.index(number))).cast::<Header>().write(header) };
    }

    /// Bytes of each part of a message, the last one excepted. All ranks cut alike.
    fn part_bytes(&self, message: usize) -> usize {
        if self.is_near(message) { NEAR_PART } else { far_part_bytes(message) }
    }

    /// Offset of the part in slot `number` of a message in a rank's window.
    fn part(&self, number: u64, message: usize) -> usize {
        let index = SLOTS.index(number);
        if self.is_near(message) { self.near.at(index) } else { self.ring.at(index) + LINE }
    }

    fn is_near(&self, message: usize) -> bool {
        self.near.count > 0 && message <= self.near_most
    }

    /// The input, once no peer reads it any more.
    pub(crate) fn input(&mut self) -> Result<&mut [u8], CommError> {
        self.take_back()?;
        // SAFETY: `capacity` bytes inside this rank's window; every reader has returned the slot that lent them, and only
        // a call that has `self` for itself lends them again.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.input_address(), self.capacity) })
    }

    /// First byte of the input.
    pub(crate) fn input_address(&self) -> *mut u8 {
        self.window.region().address().wrapping_add(self.input.offset)
    }

    /// Copies the next part of `peer`'s message of this call to its place in `to`, which has the size of the message.
    /// Returns whether the message is complete.
    pub(crate) fn receive(&mut self, peer: usize, to: &mut [u8], copier: Copier) -> Result<bool, CommError> {
        let Lane { read, taken, complete, .. } = self.peers[peer];
        if complete {
            return Ok(true);
        }
        let number = read.wrapping_add(1);
        self.await_word(peer, &self.arrived, number, "arrived")?;
        let base = self.window.map(peer);
        let slot = match base {
            Some(base) => base.as_ptr().wrapping_add(self.ring.at(SLOTS.index(number))),
            None => self.window.region().address().wrapping_add(self.lane(peer, number)),
        };
        // SAFETY: a slot of the peer's ring or of this rank's lane, inside the window, aligned to a line; it was published
        // (the word), and is not written again before this rank returns it.
        let header = unsafe { slot.cast::<Header>().read() };
        self.check(peer, header, to.len())?;
        let bytes = to.len();
        let end = if header.lent == PART { bytes.min(taken + self.part_bytes(bytes)) } else { bytes };
        let part = &mut to[taken..end];
        if let (PRIVATE, Some(private)) = (header.lent, &self.private) {
            private.get(&self.comm, peer, header.address, part)?;
        } else {
            let from = match base {
                Some(base) if header.lent == INPUT => base.as_ptr().wrapping_add(self.input.offset),
                Some(base) => base.as_ptr().wrapping_add(self.part(number, bytes)),
                None => slot.wrapping_add(LINE),
            };
            // SAFETY: the source has as many bytes there (it agreed on the size of the message, and cuts it as this rank
            // does) and leaves them alone until they are returned; `part` is the caller's.
            unsafe { copier.copy(part.as_mut_ptr(), from, part.len()) };
        }
        let lane = &mut self.peers[peer];
        lane.read = number;
        (lane.taken, lane.complete) = (end, end == bytes);
        if header.lent != PART || SLOTS.owes(lane.returned, number) {
            lane.returned = number;
            self.window.signal(peer, self.returned.at(self.comm.rank()), number)?;
        }
        Ok(end == bytes)
    }

    /// Waits until the next slot of the ring may be written; its number.
    fn claim(&mut self) -> Result<u64, CommError> {
        let number = self.sent.wrapping_add(1);
        self.await_returned(SLOTS.last_use(number))?;
        Ok(number)
    }

    /// Tells every peer of the slot that was claimed, with `bytes` behind its header.
    fn publish(&mut self, bytes: usize) -> Result<(), CommError> {
        self.sent = self.sent.wrapping_add(1);
        let rank = self.comm.rank();
        for peer in self.others() {
            if !self.peers[peer].mapped {
                let from = self.ring.at(SLOTS.index(self.sent));
                self.window.put(peer, self.window.region(), from, self.lane(rank, self.sent), LINE + bytes)?;
            }
            self.window.signal(peer, self.arrived.at(rank), self.sent)?;
        }
        Ok(())
    }

    /// Waits until every reader has returned slot `number`.
    fn await_returned(&mut self, number: u64) -> Result<(), CommError> {
        for peer in self.others() {
            let Lane { mapped, seen, .. } = self.peers[peer];
            if Condition::AtLeast(number).holds(seen) {
                continue;
            }
            self.peers[peer].seen = self.await_word(peer, &self.returned, number, "returned")?;
            if !mapped {
                // What the reader has read, the queue has read; this makes it official, and costs a look.
                self.window.flush(peer)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn await_word(&self, peer: usize, words: &ArenaRegion, number: u64, slot: &'static str) -> Result<u64, CommError> {
        self.comm.wait(&Wait {
            region: self.window.region(),
            offset: words.at(peer),
            condition: Condition::AtLeast(number),
            peer: self.comm.team().member(peer),
            operation: self.operation,
            slot,
            epoch: self.call,
        })
    }

    /// Offset of the place of slot `number` of `source` in the lanes.
    fn lane(&self, source: usize, number: u64) -> usize {
        self.lanes.at(source * SLOTS.count() + SLOTS.index(number))
    }

    /// Ranks that do not make the same calls are found here; the first one to see it fails the communicator.
    fn check(&self, peer: usize, header: Header, bytes: usize) -> Result<(), CommError> {
        let (field, given, theirs) = if header.call != self.call {
            ("call", self.call, header.call)
        } else if header.bytes != bytes as u64 {
            ("bytes", bytes as u64, header.bytes)
        } else {
            return Ok(());
        };
        Err(self.comm.fail(CommError::Mismatch {
            what: self.operation.to_owned(),
            field: field.to_owned(),
            given: given.to_string(),
            theirs: theirs.to_string(),
            peer: self.comm.team().member(peer),
        }))
    }
}

/// Bytes of each part of a message, the last one excepted, between ranks that are not near.
fn far_part_bytes(message: usize) -> usize {
    (message / PARTS).clamp(SMALLEST_PART, LARGEST_PART).next_multiple_of(LINE)
}
