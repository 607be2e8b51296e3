//! `campanile bench put`: one-sided puts between two ranks.
//!
//! A put and its signal travel to the peer, whose put and signal travel back; half of the round trip is one value (the
//! receiver waits for the signal and does not read the bytes). Buffers rotate over 64 MiB, so large payloads come from
//! and go to memory. By load / store the put is a copy through the mapping and the signal a store; by the queue both are
//! one posted operation.

use std::sync::Arc;

use anyhow::{Context, anyhow};
use campanile::core::{
    Completion, LocalAddress, PostError, Queue, QueueOptions, QueueTarget, RemoteAddress, SignalAction, SignalUpdate,
    Strength,
};
use campanile::host::clock::now_ns;
use campanile::host::copy::Copier;
use campanile::{Barrier, Communicator, Condition, MemoryKind, Op, Wait, Window};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde::{Deserialize, Serialize};

use super::{percentile, print_json, size};
use crate::exit::Error;
use crate::job::Job;
use crate::output::print;
use crate::progress;
use crate::ranks::{Options, Ranks};

/// Arguments of `campanile bench put`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Smallest size in bytes; K, M and G are powers of 1024
    #[arg(long, short = 'b', default_value = "8", value_parser = size::parse)]
    begin: usize,
    /// Largest size
    #[arg(long, short = 'e', default_value = "16M", value_parser = size::parse)]
    end: usize,
    /// Factor from one size to the next
    #[arg(long, short = 'f', default_value_t = 2)]
    factor: usize,
    #[command(flatten)]
    ranks_options: Options,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Bytes over which the buffers of one size rotate.
const SPAN: usize = 64 << 20;
/// Bytes that one value moves, roughly, so that small puts are timed in batches.
const BATCH_BYTES: usize = 16 << 20;
/// Values of each size and kind.
const VALUES: usize = 15;
/// The signal word and, behind it in the same cache line, the payload of a small put.
const LINE: usize = 64;
/// From this size on a copy may stream; a smaller one is over before a line has left the core.
const STREAM_FROM: usize = 2048;

/// The benchmark as both ranks are told of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    sizes: Vec<usize>,
}

/// Half round trips in nanoseconds, by load / store and by the queue.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Values {
    load_store: Vec<f64>,
    queue: Vec<f64>,
}

/// One rank's end.
struct End<'a> {
    comm: &'a Communicator,
    window: &'a Window,
    queue: Arc<dyn Queue>,
    peer: usize,
    copier: Copier,
    bytes: usize,
    sent: u64,
}

impl End<'_> {
    /// Where message `sent` lies: behind the word if it is small, else in turn over the rest of the window.
    fn offset(&self) -> usize {
        if self.bytes <= LINE - 8 {
            return 8;
        }
        let stride = self.bytes.next_multiple_of(LINE);
        let places = (SPAN / stride).max(1);
        LINE + (self.sent as usize % places) * stride
    }

    fn store(&mut self) -> anyhow::Result<()> {
        let (own, offset) = (self.window.region().address(), self.offset());
        let base = self.window.map(self.peer).context("load / store does not reach the peer")?;
        self.sent += 1;
        // SAFETY: `offset + bytes` is inside both parts of the window (its size is made for the largest); the peer reads
        // neither before the signal, and nobody writes the source.
        unsafe { self.copier.copy(base.as_ptr().add(offset), own.add(offset), self.bytes) };
        self.copier.fence();
        Ok(self.window.signal(self.peer, 0, self.sent)?)
    }

    fn post(&mut self) -> anyhow::Result<()> {
        let offset = self.offset() as u64;
        self.sent += 1;
        let remote = self.window.remote(self.peer).key();
        let op = Op::PutSignal {
            source: LocalAddress { region: self.window.region().key(), offset },
            target: RemoteAddress { region: remote, offset },
            bytes: self.bytes as u64,
            signal: SignalUpdate {
                target: RemoteAddress { region: remote, offset: 0 },
                action: SignalAction::Set,
                value: self.sent,
                strength: Strength::Weak,
            },
        };
        let ticket = loop {
            match self.queue.post(&[op]) {
                Ok(ticket) => break ticket,
                Err(PostError::Busy { .. }) => self.queue.progress()?,
                Err(error) => return Err(error.into()),
            };
        };
        self.queue.wait(ticket, Completion::Local, self.comm.timeout())?;
        Ok(())
    }

    /// The peer's message number `sent` of this rank, which alternates with it.
    fn receive(&self, number: u64) -> anyhow::Result<()> {
        self.comm.wait(&Wait {
            region: self.window.region(),
            offset: 0,
            condition: Condition::AtLeast(number),
            peer: self.comm.team().member(self.peer),
            operation: "bench put",
            slot: "signal",
            epoch: number,
        })?;
        Ok(())
    }
}

impl Settings {
    /// One rank's part: the values of every size as JSON.
    pub fn run(&self, comm: &Arc<Communicator>) -> anyhow::Result<Vec<u8>> {
        let most = self.sizes.iter().copied().max().unwrap_or(0).next_multiple_of(LINE);
        let mut values = Vec::new();
        let mut barrier = Barrier::new(comm)?;
        for &bytes in &self.sizes {
            let window = comm.window(LINE + most.max(SPAN), MemoryKind::Host)?;
            let (rank, peer) = (comm.rank(), 1 - comm.rank());
            let queue = comm.transport().queue(QueueTarget::Peer(comm.team().member(peer)), QueueOptions::default())?;
            let copier = if bytes < STREAM_FROM { Copier::TEMPORAL } else { Copier::for_bytes(SPAN) };
            let mut end = End { comm, window: &window, queue, peer, copier, bytes, sent: 0 };
            let trips = (BATCH_BYTES / bytes.max(1)).clamp(2, 2000);
            let mut of_size = Values::default();
            // Interleaved, the first value of each kind dropped.
            for value in 0..=VALUES {
                for by_queue in [false, true] {
                    barrier.wait()?;
                    let start = now_ns();
                    for _ in 0..trips {
                        let number = end.sent + 1;
                        if rank == 1 {
                            end.receive(number)?;
                        }
                        if by_queue {
                            end.post()?
                        } else {
                            end.store()?
                        }
                        if rank == 0 {
                            end.receive(number)?;
                        }
                    }
                    let half = (now_ns() - start) as f64 / trips as f64 / 2.0;
                    if value > 0 {
                        if by_queue { of_size.queue.push(half) } else { of_size.load_store.push(half) }
                    }
                }
            }
            values.push(of_size);
        }
        Ok(serde_json::to_vec(&values)?)
    }
}

#[derive(Serialize)]
struct Kind {
    median_us: f64,
    p99_us: f64,
    gbps: f64,
}

impl Kind {
    fn of(bytes: usize, nanoseconds: &[f64]) -> Self {
        let median = percentile(nanoseconds.to_vec(), 0.5);
        Self {
            median_us: median / 1e3,
            p99_us: percentile(nanoseconds.to_vec(), 0.99) / 1e3,
            gbps: bytes as f64 / median,
        }
    }
}

#[derive(Serialize)]
struct Row {
    bytes: usize,
    load_store: Kind,
    queue: Kind,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<(), Error> {
    let settings = Settings { sizes: size::series(args.begin, args.end, args.factor)? };
    let ranks = Ranks::new(2, &args.ranks_options, None)?;
    if ranks.config().path() == campanile::Path::Queue {
        return Err(Error::input(anyhow!(
            "path queue: bench put measures load / store and the queue side by side; use auto"
        )));
    }
    let spinner = progress::spinner("putting");
    let results = ranks.run(&Job::BenchPut(settings.clone()), |comm| settings.run(comm))?;
    spinner.finish_and_clear();
    let values: Vec<Values> = serde_json::from_slice(&results[0]).context("the result of rank 0")?;
    let rows = settings.sizes.iter().zip(&values).map(|(&bytes, values)| Row {
        bytes,
        load_store: Kind::of(bytes, &values.load_store),
        queue: Kind::of(bytes, &values.queue),
    });
    let rows: Vec<_> = rows.collect();
    if args.json {
        #[derive(Serialize)]
        struct Report {
            ranks_as: &'static str,
            rows: Vec<Row>,
        }
        return print_json(&Report { ranks_as: args.ranks_options.ranks_as.name(), rows });
    }
    let mut table = comfy_table::Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY);
    table.set_header(["bytes", "load/store µs", "p99", "GB/s", "queue µs", "p99", "GB/s"]);
    for row in &rows {
        let kind = |kind: &Kind| {
            [format!("{:.3}", kind.median_us), format!("{:.3}", kind.p99_us), format!("{:.2}", kind.gbps)]
        };
        let cells = [vec![row.bytes.to_string()], kind(&row.load_store).to_vec(), kind(&row.queue).to_vec()].concat();
        table.add_row(cells);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(comfy_table::CellAlignment::Right);
    }
    let mut text = String::new();
    text +=
        &format!("Half round trip between 2 {}, buffers rotating over 64 MiB\n", args.ranks_options.ranks_as.name());
    text += &format!("{table}\n");
    print(&text)
}
