//! Cases: what is passed, in which memory, and what is left out of the rules.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use campanile_gpu::{Address, Cache, Coherence, Compile, Device, Grid, Plan, Residency, Source, Stream, VirtualMemory};

use crate::Result;

/// Bounds every wait on the device.
const DEADLINE: Duration = Duration::from_secs(10);
/// Bounds a case.
const PATIENCE: Duration = Duration::from_secs(60);

/// How much.
#[derive(Clone, Copy)]
pub struct Size {
    pub rounds: u32,
    pub blocks: u32,
    pub rows: u64,
}

/// How rows get to the reader.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// They lie in the reader's memory.
    Pushed,
    /// They lie in the writer's memory.
    Pulled,
    /// The same, by plain stores of a kernel that ends before the word is raised.
    Left,
}

/// `LeftOut` of `kernels/litmus/litmus.h`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum LeftOut {
    Nothing = 0,
    Release = 1,
    Barrier = 2,
    Acquire = 3,
    WriteThrough = 4,
    Bypass = 5,
    KernelEnd = 6,
}

/// A case.
#[derive(Clone, Copy)]
pub struct Case {
    way: Way,
    memory: Coherence,
    left_out: LeftOut,
    must_hold: bool,
}

/// What a case gave.
pub struct Outcome {
    pub rounds: u32,
    pub wrong: u64,
    /// Every wait has seen what it waited for.
    pub ended: bool,
}

impl Case {
    /// The rules as the kernels use them, then with something left out.
    pub fn all() -> Vec<Self> {
        let (uncached, coarse) = (Coherence::Uncached, Coherence::Coarse);
        let case = |must_hold, way, memory, left_out| Self { way, memory, left_out, must_hold };
        let mut all = vec![
            case(true, Way::Pushed, uncached, LeftOut::Nothing),
            case(true, Way::Pulled, uncached, LeftOut::Nothing),
            // Windows are uncached, so results may be left by plain stores; in other memory they must be written back.
            case(true, Way::Left, uncached, LeftOut::KernelEnd),
            case(true, Way::Left, coarse, LeftOut::Nothing),
            // Not what the kernels use.
            case(false, Way::Pushed, coarse, LeftOut::Nothing),
            case(false, Way::Pulled, coarse, LeftOut::Nothing),
            case(false, Way::Left, coarse, LeftOut::KernelEnd),
        ];
        for way in [Way::Pushed, Way::Pulled] {
            for memory in [uncached, coarse] {
                let left_out =
                    [LeftOut::Release, LeftOut::Barrier, LeftOut::Acquire, LeftOut::WriteThrough, LeftOut::Bypass];
                all.extend(left_out.map(|left_out| case(false, way, memory, left_out)));
            }
        }
        all
    }

    /// Whether a wrong row is an error.
    pub fn must_hold(&self) -> bool {
        self.must_hold
    }

    /// Its name, for people.
    pub fn name(&self) -> String {
        let way = match self.way {
            Way::Pushed => "pushed",
            Way::Pulled => "pulled",
            Way::Left => "left by a kernel",
        };
        let memory = if self.memory == Coherence::Uncached { "uncached" } else { "coarse" };
        let without = match self.left_out {
            LeftOut::Nothing => "",
            LeftOut::Release => ", no release",
            LeftOut::Barrier => ", no drain and barrier",
            LeftOut::Acquire => ", no acquire",
            LeftOut::WriteThrough => ", cached stores",
            LeftOut::Bypass => ", cached loads",
            LeftOut::KernelEnd => ", no release at its end",
        };
        format!("{way}, {memory}{without}")
    }

    /// Runs it between a writer and a reader.
    pub fn run(&self, [writer, reader]: &[Kernels; 2], size: Size) -> Result<Outcome> {
        let home = if self.way == Way::Pushed { reader } else { writer };
        let rows = shared(home, [writer, reader], size.rows as usize * 16, self.memory)?;
        // A line each: the word, the other side's acknowledgement.
        let words = [reader, writer].map(|of| shared(of, [writer, reader], 4096, Coherence::Uncached));
        let [signal, ack] = words;
        let (signal, ack) = (signal?, ack?);
        let own = |side: &Kernels| -> Result<_> {
            let counters = side.device.allocate(128, Coherence::Coarse)?;
            side.stream.upload(&counters, 0, &[0; 128])?;
            Ok((counters, side.device.allocate_host(64)?))
        };
        let (written, read) = (own(writer)?, own(reader)?);
        let arguments = |counters: Address, outcome: Address| Arguments {
            rows: rows.address(),
            count: size.rows,
            signal: signal.address(),
            ack: ack.address(),
            blocks: counters,
            base: 0,
            wrong: counters + 64,
            outcome,
            abort: 0,
            nanoseconds: DEADLINE.as_nanos() as u64,
            first: 1,
            rounds: size.rounds,
            left_out: self.left_out as u32,
        };
        let write = arguments(written.0.address(), written.1.address());
        // Launches of a round each are fewer.
        let rounds = if self.way == Way::Left { size.rounds.div_ceil(10) } else { size.rounds };
        // SAFETY: all memory outlives the waits below.
        unsafe {
            let read = arguments(read.0.address(), read.1.address());
            reader.read.launch(&reader.stream, &Arguments { rounds, ..read })?;
            if self.way == Way::Left {
                for round in 1..=u64::from(rounds) {
                    let write = Arguments { first: round, rounds: 1, ..write };
                    writer.leave.launch(&writer.stream, &write)?;
                    writer.raise.launch(&writer.stream, &write)?;
                }
            } else {
                writer.write.launch(&writer.stream, &write)?;
            }
        }
        writer.stream.synchronize(PATIENCE)?;
        reader.stream.synchronize(PATIENCE)?;
        let mut wrong = [0; 8];
        reader.stream.download(&read.0, 64, &mut wrong)?;
        let done = |outcome: &campanile_gpu::HostMemory| {
            // SAFETY: an aligned word; the kernels are done.
            unsafe { &*outcome.as_ptr().cast::<AtomicU32>() }.load(Ordering::Acquire) == 0
        };
        let ended = done(&written.1) && done(&read.1);
        Ok(Outcome { rounds, wrong: u64::from_ne_bytes(wrong), ended })
    }
}

/// Zeroed memory of `home`, which both sides reach.
fn shared(home: &Kernels, sides: [&Kernels; 2], bytes: usize, coherence: Coherence) -> Result<VirtualMemory> {
    let memory = home.device.allocate_virtual(bytes, coherence)?;
    for side in sides {
        if side.device.ordinal() != home.device.ordinal() {
            memory.allow_access(&side.device)?;
        }
    }
    // SAFETY: the memory outlives the wait.
    unsafe { home.stream.fill(&memory, 0)? };
    home.stream.synchronize(PATIENCE)?;
    Ok(memory)
}

/// `LitmusArguments` of `kernels/litmus/litmus.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Arguments {
    rows: Address,
    count: u64,
    signal: Address,
    ack: Address,
    blocks: Address,
    base: u64,
    wrong: Address,
    outcome: Address,
    abort: Address,
    nanoseconds: u64,
    first: u64,
    rounds: u32,
    left_out: u32,
}

/// What a side runs.
pub struct Kernels {
    device: Device,
    stream: Stream,
    write: Plan<Arguments>,
    read: Plan<Arguments>,
    leave: Plan<Arguments>,
    raise: Plan<Arguments>,
}

impl Kernels {
    /// Compiles them for a device.
    pub fn new(device: &Device, size: Size, cache: &Cache) -> Result<Self> {
        let compile = |name: &str, text: &str| {
            let source = Source::new(format!("litmus/{name}.cpp"), text)
                .with_header("litmus/litmus.h", include_str!("../../../../kernels/litmus/litmus.h"));
            device.compile(&source, &Compile::default(), cache)
        };
        let rows = compile("rows", include_str!("../../../../kernels/litmus/rows.cpp"))?;
        let outputs = compile("outputs", include_str!("../../../../kernels/litmus/outputs.cpp"))?;
        let grid = Grid { blocks: size.blocks, threads: 256, shared_bytes: 0 };
        let one = Grid { blocks: 1, threads: device.wave(), shared_bytes: 0 };
        Ok(Self {
            device: device.clone(),
            stream: device.stream()?,
            write: Plan::new(&rows, "litmus_write", grid, Residency::Together)?,
            read: Plan::new(&rows, "litmus_read", grid, Residency::Together)?,
            leave: Plan::new(&outputs, "litmus_leave", grid, Residency::Together)?,
            raise: Plan::new(&outputs, "litmus_raise", one, Residency::Any)?,
        })
    }
}
