//! Operations: every kind, every size, to this rank itself and to others.

use std::alloc::Layout;

use campanile_core::{
    Completion, Condition, Inline, LocalAddress, Memory, MemoryKind, Op, OpKind, PostError, Rank, RemoteAddress,
    SignalUpdate, Strength,
};

use super::case::{Case, Group};
use super::finding::{Expected, Proof, Stop, failed, require, same, same_bytes};
use super::member::{Member, WORDS};
use super::need::Need;
use super::stage::Stage;
use super::window::{Window, pattern};

pub(super) const GROUP: Group = Group {
    name: "operations",
    about: "every operation at every size, to this rank itself and to others",
    cases: &[
        Case::new(
            "puts_of_every_size",
            "a put of any size, from and to any offset that the caps allow, moves its bytes and touches no other",
            &[Need::Op(OpKind::Put)],
            puts_of_every_size,
        ),
        Case::new(
            "gets_of_every_size",
            "a get of any size moves its bytes, which are there at local completion, and touches no other",
            &[Need::Op(OpKind::Get)],
            gets_of_every_size,
        ),
        Case::new(
            "put_signals_of_every_size",
            "a put with a signal moves its bytes and signals exactly once, also with 0 bytes",
            &[Need::Op(OpKind::PutSignal), Need::Signals],
            put_signals_of_every_size,
        ),
        Case::new(
            "inline_puts_up_to_the_limit",
            "an inline put of up to the bytes that the caps name moves them; one more is refused",
            &[Need::Op(OpKind::PutInline)],
            inline_puts,
        ),
        Case::new(
            "everyone_to_everyone",
            "all ranks put to all others at once, on many queues, and nothing is mixed up",
            &[Need::Op(OpKind::PutSignal), Need::SignalSet],
            everyone_to_everyone,
        ),
        Case::new(
            "host_and_device_memory_in_one_list",
            "a list moves bytes between host and device memory both ways, in order, and its signals cover both",
            &[
                Need::DeviceMemory,
                Need::Op(OpKind::Put),
                Need::Op(OpKind::Get),
                Need::Op(OpKind::PutSignal),
                Need::Op(OpKind::Fence),
                Need::SignalSet,
            ],
            host_and_device_memory,
        ),
        Case::new(
            "offsets_beyond_4_gib_here",
            "local offsets are 64-bit: a put from and a get to beyond 4 GiB of registered memory",
            &[Need::Op(OpKind::Put), Need::Op(OpKind::Get)],
            offsets_beyond_4_gib_here,
        ),
        Case::new(
            "offsets_beyond_4_gib_there",
            "remote offsets are 64-bit: a put to beyond 4 GiB of a peer's memory",
            &[Need::Op(OpKind::Put), Need::Memory(BEYOND as u64 + (1 << 20))],
            offsets_beyond_4_gib_there,
        ),
    ],
};

/// Around every power of two at which something may change: a word, a cache line, what is inline, a page; and a size
/// that no cache level near a core holds.
const SIZES: [usize; 22] =
    [0, 1, 2, 3, 7, 8, 9, 15, 31, 32, 33, 63, 64, 65, 255, 4095, 4096, 4097, 65_537, 100_000, 1 << 20, (1 << 20) + 1];
/// Offsets of source and target.
const OFFSETS: [(usize, usize); 5] = [(0, 0), (1, 0), (0, 3), (7, 63), (4095, 1)];
/// Bytes on both sides of a target that must stay as they are.
const GUARD: usize = 4160;
const LARGEST: usize = SIZES[SIZES.len() - 1];
const BEYOND: usize = (1 << 32) + 4096;

/// The sizes and offsets that are legal by the caps.
fn shapes(alignment: u32, max_bytes: u64) -> impl Iterator<Item = (usize, usize, usize)> {
    let legal = move |number: usize| number.is_multiple_of(alignment.max(1) as usize);
    let sizes = SIZES.into_iter().filter(move |&bytes| legal(bytes) && bytes as u64 <= max_bytes);
    sizes.flat_map(move |bytes| {
        let offsets = OFFSETS.into_iter().filter(move |&(from, to)| legal(from) && legal(to));
        // Small ones from everywhere, large ones once.
        offsets.take(if bytes <= 4097 { OFFSETS.len() } else { 1 }).map(move |(from, to)| (bytes, from, to))
    })
}

/// This rank itself, and the next one.
fn peers(stage: &Stage) -> Vec<usize> {
    if stage.ranks() == 1 { vec![0] } else { vec![stage.rank(), stage.next()] }
}

/// A window with a source half and a target half, each with room for the largest size and its guards.
fn halves<'a>(stage: &'a Stage) -> Proof<(Member<'a>, usize)> {
    let half = (2 * GUARD + LARGEST + 4096).next_multiple_of(4096);
    Ok((Member::join_with(stage, 2 * half, stage.timeout())?, half))
}

/// What the target half must look like: `bytes` at `at` in a field of guards.
fn field(guard: u8, at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![guard; at + bytes.len() + GUARD];
    field[at..at + bytes.len()].copy_from_slice(bytes);
    field
}

fn puts_of_every_size(stage: &Stage) -> Proof {
    let (me, half) = halves(stage)?;
    for class in 0..peers(stage).len() {
        let (peer, from) = if class == 0 { (stage.rank(), stage.rank()) } else { (stage.next(), stage.previous()) };
        let caps = me.caps(peer, OpKind::Put)?;
        let queue = me.queue(peer, 16)?;
        for (number, (bytes, source, to)) in shapes(caps.alignment, caps.max_bytes).enumerate() {
            let at = GUARD + to;
            me.window.write(source, &pattern((stage.rank() << 16 | number) as u64, bytes))?;
            me.window.write(half, &vec![0xee; at + bytes + GUARD])?;
            stage.meet()?;
            me.execute(&*queue, &[me.put(source, peer, half + at, bytes)])?;
            stage.meet()?;
            let expected = field(0xee, at, &pattern((from << 16 | number) as u64, bytes));
            same_bytes(&format!("a put of {bytes} bytes to {to}"), &me.window.read(half, expected.len())?, &expected)?;
        }
    }
    me.end()
}

fn gets_of_every_size(stage: &Stage) -> Proof {
    let (me, half) = halves(stage)?;
    let whole = pattern(stage.rank() as u64, LARGEST + 4096);
    me.window.write(0, &whole)?;
    stage.meet()?;
    for peer in peers(stage) {
        let caps = me.caps(peer, OpKind::Get)?;
        let queue = me.queue(peer, 16)?;
        let theirs = pattern(peer as u64, LARGEST + 4096);
        for (bytes, source, to) in shapes(caps.alignment, caps.max_bytes) {
            let at = GUARD + to;
            me.window.write(half, &vec![0xdd; at + bytes + GUARD])?;
            let get = Op::Get {
                source: me.window.remote(peer, source),
                target: me.window.local(half + at),
                bytes: bytes as u64,
            };
            let ticket = me.post(&*queue, &[get])?;
            queue.wait(ticket, Completion::Local, stage.timeout()).expected("local completion")?;
            let expected = field(0xdd, at, &theirs[source..source + bytes]);
            same_bytes(&format!("a get of {bytes} bytes to {to}"), &me.window.read(half, expected.len())?, &expected)?;
        }
    }
    me.end()
}

fn put_signals_of_every_size(stage: &Stage) -> Proof {
    let (me, half) = halves(stage)?;
    let words = Window::new(stage, &*me.transport, 4096)?;
    for class in 0..peers(stage).len() {
        let (peer, from) = if class == 0 { (stage.rank(), stage.rank()) } else { (stage.next(), stage.previous()) };
        let caps = me.caps(peer, OpKind::PutSignal)?;
        let queue = me.queue(peer, 16)?;
        let word = 64 * class;
        let mut count = 0;
        for (number, (bytes, source, to)) in shapes(caps.alignment, caps.max_bytes).enumerate() {
            me.window.write(source, &pattern((stage.rank() << 16 | number) as u64, bytes))?;
            me.window.write(half, &vec![0xcc; GUARD + to + bytes + GUARD])?;
            stage.meet()?;
            let strength = if number % 2 == 0 { Strength::Weak } else { Strength::Strong };
            let mut signal = me.raise(peer, 0, count, 3)?;
            (signal.target, signal.strength) = (words.remote(peer, word), strength);
            let put = Op::PutSignal {
                source: me.window.local(source),
                target: me.window.remote(peer, half + GUARD + to),
                bytes: bytes as u64,
                signal,
            };
            me.execute(&*queue, &[put])?;
            stage.meet()?;
            count += 3;
            let seen = words.load(word)?;
            same(&format!("the word after {} signals, the last with {bytes} bytes", number + 1), seen, count)?;
            let expected = field(0xcc, GUARD + to, &pattern((from << 16 | number) as u64, bytes));
            same_bytes(&format!("a put of {bytes} bytes"), &me.window.read(half, expected.len())?, &expected)?;
            stage.meet()?;
        }
    }
    me.end()
}

fn inline_puts(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    for class in 0..peers(stage).len() {
        let (peer, from) = if class == 0 { (stage.rank(), stage.rank()) } else { (stage.next(), stage.previous()) };
        let limit = me.caps(peer, OpKind::PutInline)?.inline_bytes as usize;
        let queue = me.queue(peer, 4)?;
        let data = |rank: usize, bytes: usize| pattern((rank << 8 | bytes) as u64, bytes);
        let inline = |bytes: usize| Inline::new(&data(stage.rank(), bytes));
        for bytes in 0..=limit.min(Inline::MAX) {
            me.window.write(0, &[0xbb; 128])?;
            stage.meet()?;
            let data_here = inline(bytes).expect("at most Inline::MAX bytes");
            me.execute(&*queue, &[Op::PutInline { data: data_here, target: me.window.remote(peer, 41) }])?;
            stage.meet()?;
            let mut expected = vec![0xbb; 128];
            expected[41..41 + bytes].copy_from_slice(&data(from, bytes));
            same_bytes(&format!("an inline put of {bytes} bytes"), &me.window.read(0, 128)?, &expected)?;
            stage.meet()?;
        }
        if let Some(data) = inline(limit + 1) {
            match queue.post(&[Op::PutInline { data, target: me.window.remote(peer, 0) }]) {
                Err(PostError::Invalid { index: 0, .. }) => {}
                other => return Err(failed(format!("{} inline bytes to be refused", limit + 1), format!("{other:?}"))),
            }
        }
    }
    me.end()
}

fn everyone_to_everyone(stage: &Stage) -> Proof {
    const ROUNDS: u64 = 40;
    const BLOCK: usize = 1500;
    let me = Member::join(stage)?;
    let ranks = stage.ranks();
    let most = WORDS / (BLOCK * 2);
    require(ranks <= most, &format!("at most {most} ranks"), || format!("{ranks}"))?;
    let number = |from: usize, to: usize, round: u64| (from << 40 | to << 20) as u64 | round;
    let queues = (0..ranks).map(|peer| me.queue(peer, 8)).collect::<Proof<Vec<_>>>()?;
    for round in 1..=ROUNDS {
        let mut tickets = Vec::new();
        for (peer, queue) in queues.iter().enumerate() {
            let from = (ranks + peer) * BLOCK;
            me.window.write(from, &pattern(number(stage.rank(), peer, round), BLOCK))?;
            let put = Op::PutSignal {
                source: me.window.local(from),
                target: me.window.remote(peer, stage.rank() * BLOCK),
                bytes: BLOCK as u64,
                signal: me.set(peer, WORDS + 64 * stage.rank(), round, Strength::Weak),
            };
            tickets.push(me.post(&**queue, &[put])?);
            stage.pause();
        }
        for (queue, ticket) in queues.iter().zip(tickets) {
            me.finish(&**queue, ticket)?;
        }
        for peer in 0..ranks {
            me.arrived(peer, WORDS + 64 * peer, round)?;
            let expected = pattern(number(peer, stage.rank(), round), BLOCK);
            same_bytes(&format!("the bytes of rank {peer}"), &me.window.read(peer * BLOCK, BLOCK)?, &expected)?;
        }
        stage.meet()?;
    }
    me.end()
}

fn host_and_device_memory(stage: &Stage) -> Proof {
    const BYTES: usize = 5000;
    // The same places in both windows.
    let [first, second, third, word] = [0, 8192, 16_384, WORDS];
    let me = Member::join(stage)?;
    let host = Window::of(stage, &*me.transport, WORDS + 4096, MemoryKind::Host)?;
    let (peer, from) = (stage.next(), stage.previous());
    let queue = me.queue(peer, 16)?;
    for round in 1..=40_u64 {
        let bytes = |rank: usize| pattern((rank as u64) << 16 | round, BYTES);
        host.write(first, &bytes(stage.rank()))?;
        let signal = |window: &Window| {
            let signal = me.set(peer, word, round, Strength::Strong);
            SignalUpdate { target: window.remote(peer, word), ..signal }
        };
        let (source, moved) = (host.local(first), BYTES as u64);
        let list = [
            Op::Put { source, target: me.window.remote(peer, first), bytes: moved },
            Op::Fence,
            Op::Get { source: me.window.remote(peer, first), target: host.local(second), bytes: moved },
            Op::PutSignal { source, target: me.window.remote(peer, third), bytes: moved, signal: signal(&host) },
            Op::PutSignal { source, target: host.remote(peer, third), bytes: moved, signal: signal(&me.window) },
        ];
        match round % 2 {
            0 => me.execute(&*queue, &list)?,
            // One by one, so that each finds the one before it under way.
            _ => {
                for op in list {
                    me.post(&*queue, &[op])?;
                    queue.ring().expected("a ring")?;
                    queue.progress().expected("progress")?;
                }
                let ticket = queue.flush();
                me.finish(&*queue, ticket)?;
            }
        }
        same_bytes("what came back from the device", &host.read(second, BYTES)?, &bytes(stage.rank()))?;
        me.wait_in(&host, from, word, Condition::AtLeast(round)).expected("the signal in host memory")?;
        same_bytes("what it announces on the device", &me.window.read(third, BYTES)?, &bytes(from))?;
        me.wait(from, word, round).expected("the signal in device memory")?;
        same_bytes("what it announces on the host", &host.read(third, BYTES)?, &bytes(from))?;
        stage.meet()?;
    }
    me.end()
}

/// Zeroed memory that takes no pages until it is touched.
struct Sparse {
    address: *mut u8,
    layout: Layout,
}

impl Sparse {
    fn new(bytes: usize) -> Option<Self> {
        // No more than the allocator aligns by itself: it would touch every page to align and zero it.
        let layout = Layout::from_size_align(bytes, 8).ok()?;
        // SAFETY: the layout has a size above 0.
        let address = unsafe { std::alloc::alloc_zeroed(layout) };
        (!address.is_null()).then_some(Self { address, layout })
    }
}

impl Drop for Sparse {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout.
        unsafe { std::alloc::dealloc(self.address, self.layout) };
    }
}

fn offsets_beyond_4_gib_here(stage: &Stage) -> Proof {
    if usize::BITS < 64 {
        return Err(Stop::Skipped { reason: "addresses have 32 bits".to_owned() });
    }
    let me = Member::join(stage)?;
    if stage.rank() == 0 {
        let bytes = BEYOND + 4096;
        let reserved = || Sparse::new(bytes).ok_or_else(|| "the system does not reserve 4 GiB".to_owned());
        let sparse = reserved().map_err(|reason| Stop::Skipped { reason })?;
        let span = Memory { address: sparse.address, bytes, kind: MemoryKind::Host };
        // SAFETY: `sparse` is dropped after the region: it was declared before.
        let registered = unsafe { me.transport.register(span) }.wait(stage.timeout());
        let region = registered.map_err(|error| Stop::Skipped { reason: error.to_string() })?;
        let expected = pattern(5, 1000);
        // SAFETY: 1000 bytes at BEYOND of BEYOND + 4096 that nobody else touches.
        let there = unsafe { std::slice::from_raw_parts_mut(sparse.address.add(BEYOND), 2000) };
        there[..1000].copy_from_slice(&expected);
        let queue = me.queue(0, 4)?;
        let at = |offset| LocalAddress { region: region.key(), offset };
        let put = Op::Put { source: at(BEYOND as u64), target: me.window.remote(0, 64), bytes: 1000 };
        me.execute(&*queue, &[put])?;
        same_bytes("what was put from beyond 4 GiB", &me.window.read(64, 1000)?, &expected)?;
        let get = Op::Get { source: me.window.remote(0, 64), target: at(BEYOND as u64 + 1000), bytes: 1000 };
        me.execute(&*queue, &[get])?;
        // SAFETY: as above; the get is complete.
        let there = unsafe { std::slice::from_raw_parts(sparse.address.add(BEYOND + 1000), 1000) };
        same_bytes("what was got beyond 4 GiB", there, &expected)?;
    }
    me.end()
}

fn offsets_beyond_4_gib_there(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let last = stage.ranks() - 1;
    let region = match stage.rank() == last {
        true => {
            let allocated = me.transport.allocate(BEYOND + 4096, stage.memory()).wait(stage.timeout());
            Some(allocated.map_err(|error| Stop::Skipped { reason: error.to_string() })?)
        }
        false => None,
    };
    let blob = region
        .as_ref()
        .map_or(Ok(Vec::new()), |region| me.transport.export(region, &[Rank(0)]).expected("an export"))?;
    let blob = stage.exchange(&blob)?.swap_remove(last);
    let expected = pattern(9, 1000);
    if stage.rank() == 0 {
        let imported = me.transport.import(Rank::new(last), &blob).wait(stage.timeout());
        let remote = imported.expected("an import")?;
        me.window.write(0, &expected)?;
        let target = RemoteAddress { region: remote.key(), offset: BEYOND as u64 };
        let queue = me.queue(last, 4)?;
        me.execute(&*queue, &[Op::Put { source: me.window.local(0), target, bytes: 1000 }])?;
    }
    stage.meet()?;
    if let Some(region) = region {
        let window = Window::alone(stage, &*me.transport, region)?;
        same_bytes("what was put beyond 4 GiB", &window.read(BEYOND, 1000)?, &expected)?;
        let low = window.read(BEYOND & 0xffff_ffff, 1000)?;
        same_bytes("the bytes at the low 32 bits of the offset", &low, &[0; 1000])?;
    }
    me.end()
}
