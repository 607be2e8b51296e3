//! The benchmark on a device.
//!
//! Every round is run twice. First as the host does it: dispatch, then combine, each between two barriers, from the call
//! to the return of the wait for the stream, which gives `end_to_end_us`. Then as the device does it, which gives
//! `kernel_us`, by which rates are told: in a graph of ten rounds, between stamps of the device's clock, less what a stamp
//! takes; without a graph by events, behind a round that was launched just before, so that the launch itself is hidden
//! where the kernel is long. (Events cost about 4 µs of their own.) Limits are those of the links, by a kernel that only copies, before the rounds and
//! after them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use campanile::gpu::{Event, Graph, Pins, Stamps, Stream};
use campanile::host::clock::now_ns;
use campanile::moe::gpu::exchange::DeviceProblem;
use campanile::moe::gpu::{DeviceOut, GpuMoe, GpuMoeOptions, Index};
use campanile::{Barrier, Communicator, Problem, Set};
use serde::{Deserialize, Serialize};

use super::{Expected, Settings};
use crate::bench::{Span, percentile};
use crate::device::{Devices, Kind};
use crate::device_limit::DeviceLimit;
use crate::exit::Error;
use crate::ranks::Ranks;
use crate::traffic::rows;

const SET: Set = Set(0);
/// Rounds of a graph of whole rounds.
const ROUNDS: usize = 10;

/// What a rank measured on its device, beside what is measured everywhere.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Measured {
    /// Each dispatch, and each combine.
    pub(super) kernel_us: [Vec<f64>; 2],
    /// Each round of a graph of many, without stamps.
    pub(super) round_us: Vec<f64>,
    /// GB/s of stores to a peer, and of loads from one.
    pub(super) link: [f64; 2],
    /// Blocks and threads of dispatch and combine.
    pub(super) grids: [[u32; 2]; 2],
    /// Schedules of dispatch and combine.
    pub(super) schedules: [String; 2],
    /// Multiprocessors that the larger of them takes.
    pub(super) sms: u32,
}

/// Median over iterations of the slowest rank.
pub(super) fn slowest(ranks: &[&Measured], of: impl Fn(&Measured) -> &Vec<f64>) -> f64 {
    let iterations = of(ranks[0]).len();
    let slowest = |iteration: usize| ranks.iter().map(|rank| of(rank)[iteration]).fold(0.0, f64::max);
    percentile((0..iterations).map(slowest).collect(), 0.5)
}

impl Settings {
    /// Refuses what its device cannot do, and opens the devices that there are.
    pub(super) fn check_device(&self, ranks: &Ranks, count: usize) -> Result<Option<Devices>, Error> {
        let operation = self.config(&self.problem(0, 1)?)?;
        self.device.check_moe(&operation, count, ranks.config().path())?;
        if self.device == Kind::Host {
            let given = [("--sms", self.sms.is_some()), ("--graph", self.graph)];
            return match given.into_iter().find(|(_, given)| *given) {
                None => Ok(None),
                Some((name, _)) => {
                    Err(Error::input(anyhow!("{name} is of kernels; it needs --device gpu or --device emulator")))
                }
            };
        }
        let devices = Devices::open(self.device, ranks.config())?;
        if let Some(devices) = &devices {
            let has = devices.multiprocessors()?;
            if let Some(sms) = self.sms.filter(|&sms| sms > has) {
                return Err(Error::input(anyhow!("--sms is {sms}; the device has {has} multiprocessors")));
            }
            devices.warn_if_shared(count);
        }
        Ok(devices)
    }
}

/// One rank's part.
pub(super) fn run(settings: &Settings, comm: &Arc<Communicator>, devices: &Devices) -> anyhow::Result<super::Measured> {
    let problem = settings.problem(comm.rank(), comm.ranks())?;
    let device = devices.of_rank(comm)?;
    let pins = Pins { blocks: settings.sms, ..Pins::default() };
    let options = GpuMoeOptions { dispatch: pins, combine: pins, ..GpuMoeOptions::default() };
    let moe = GpuMoe::new(comm, &device, settings.config(&problem)?, &options, &devices.cache)?;
    let part = DeviceProblem::new(&moe, &problem, Index::I32, 0)?;
    let bench = Bench {
        // Weights are asked back in the rounds that are verified only, as on the host.
        out: DeviceOut { out_weights: 0, ..part.out },
        events: [device.event()?, device.event()?, device.event()?],
        stamps: Stamps::new(&device, 2 * ROUNDS + 1, &devices.cache)?,
        patience: 4 * comm.timeout(),
        moe,
        part,
    };
    let limit = DeviceLimit::new(comm, &device, &devices.cache)?;
    let mut barrier = Barrier::new(comm)?;
    let grids = bench.moe.grids();
    let sms = grids.map(|grid| grid.blocks.min(device.multiprocessors())).into_iter().max();
    let mut on_device = Measured {
        grids: grids.map(|grid| [grid.blocks, grid.threads]),
        schedules: bench.moe.schedules().map(|mode| mode.to_string()),
        sms: sms.unwrap_or(0),
        ..Measured::default()
    };
    let mut measured = super::Measured {
        rows: rows(&problem).swap_remove(comm.rank()),
        combine_by: bench.moe.combine_by().to_string(),
        transport: comm.transport().info().name.to_owned(),
        ..super::Measured::default()
    };

    let expected = Expected::of(&problem);
    bench.verify(&problem, &expected, comm.rank()).context("the first round")?;
    let before = limit.measure(&mut barrier)?;
    let graphs = settings.graph.then(|| bench.graphs()).transpose()?;
    for iteration in 0..settings.warmup + settings.iters {
        let [dispatch, combine] = bench.round(graphs.as_ref(), &mut barrier)?;
        barrier.wait()?;
        let kernels = bench.kernels(graphs.as_ref())?;
        let rounds = graphs.as_ref().map(|graphs| {
            barrier.wait()?;
            bench.rounds(graphs)
        });
        if iteration < settings.warmup {
            continue;
        }
        measured.dispatch.push(dispatch);
        measured.combine.push(combine);
        on_device.kernel_us.iter_mut().zip(kernels).for_each(|(all, us)| all.push(us));
        on_device.round_us.extend(rounds.transpose()?);
    }
    let after = limit.measure(&mut barrier)?;
    on_device.link = [0, 1].map(|which| before[which].max(after[which]));
    bench.verify(&problem, &expected, comm.rank()).context("the last round")?;
    measured.verified = true;
    measured.device = Some(on_device);
    Ok(measured)
}

/// Graphs of what is timed.
struct Graphs {
    dispatch: Graph,
    combine: Graph,
    rounds: Graph,
    stamped: Graph,
    /// What a stamp takes.
    overhead: Duration,
}

/// One rank of the benchmark.
struct Bench {
    moe: GpuMoe,
    part: DeviceProblem,
    out: DeviceOut,
    events: [Event; 3],
    /// Around the phases of the rounds of a graph.
    stamps: Stamps,
    patience: Duration,
}

impl Bench {
    fn stream(&self) -> &Stream {
        &self.part.stream
    }

    fn dispatch(&self, graphs: Option<&Graphs>) -> anyhow::Result<()> {
        // SAFETY: the part of this rank, which lives until its stream is done: every caller waits for that.
        unsafe {
            match graphs {
                None => Ok(self.moe.dispatch(SET, self.stream(), &self.part.tokens)?),
                Some(graphs) => Ok(graphs.dispatch.launch(self.stream())?),
            }
        }
    }

    fn combine(&self, graphs: Option<&Graphs>) -> anyhow::Result<()> {
        // SAFETY: as in `dispatch`.
        unsafe {
            match graphs {
                None => Ok(self.moe.combine(SET, self.stream(), &self.out)?),
                Some(graphs) => Ok(graphs.combine.launch(self.stream())?),
            }
        }
    }

    /// A whole round with experts, from poisoned buffers, compared with the model.
    fn verify(&self, problem: &Problem, expected: &Expected<'_>, rank: usize) -> anyhow::Result<()> {
        self.part.poison(0xa5)?;
        // SAFETY: as in `dispatch`.
        unsafe { self.moe.launch_round(SET, &self.part)? };
        self.moe.finish(self.stream(), self.patience)?;
        let got = self.part.output(problem)?;
        Ok(expected.verify(rank, got.out, got.out_weights)?)
    }

    /// A round as the host sees it.
    fn round(&self, graphs: Option<&Graphs>, barrier: &mut Barrier) -> anyhow::Result<[Span; 2]> {
        let mut span = |launch: &dyn Fn() -> anyhow::Result<()>| -> anyhow::Result<Span> {
            barrier.wait()?;
            let start = now_ns();
            launch()?;
            self.moe.finish(self.stream(), self.patience)?;
            Ok([start, now_ns()])
        };
        Ok([span(&|| self.dispatch(graphs))?, span(&|| self.combine(graphs))?])
    }

    /// A round as the device sees it, µs.
    fn kernels(&self, graphs: Option<&Graphs>) -> anyhow::Result<[f64; 2]> {
        if let Some(graphs) = graphs {
            // SAFETY: as in `dispatch`.
            unsafe { graphs.stamped.launch(self.stream())? };
            self.moe.finish(self.stream(), self.patience)?;
            let spans = self.stamps.spans(self.stream())?;
            let mean = |phase: usize| {
                let spans = spans[phase..].iter().step_by(2);
                spans.map(|span| us(*span) - us(graphs.overhead)).sum::<f64>() / ROUNDS as f64
            };
            return Ok([mean(0), mean(1)]);
        }
        let [start, middle, end] = &self.events;
        self.dispatch(None)?;
        self.combine(None)?;
        start.record(self.stream())?;
        self.dispatch(None)?;
        middle.record(self.stream())?;
        self.combine(None)?;
        end.record(self.stream())?;
        self.moe.finish(self.stream(), self.patience)?;
        Ok([us(middle.since(start)?), us(end.since(middle)?)])
    }

    /// A round of many in a graph, µs.
    fn rounds(&self, graphs: &Graphs) -> anyhow::Result<f64> {
        let [start, end, _] = &self.events;
        start.record(self.stream())?;
        // SAFETY: as in `dispatch`.
        unsafe { graphs.rounds.launch(self.stream())? };
        end.record(self.stream())?;
        self.moe.finish(self.stream(), self.patience)?;
        Ok(us(end.since(start)?) / ROUNDS as f64)
    }

    fn graphs(&self) -> anyhow::Result<Graphs> {
        let capture =
            |work: &dyn Fn() -> anyhow::Result<()>| -> anyhow::Result<Graph> { self.stream().capture(|_| work()) };
        Ok(Graphs {
            dispatch: capture(&|| self.dispatch(None))?,
            combine: capture(&|| self.combine(None))?,
            rounds: capture(&|| {
                (0..ROUNDS).try_for_each(|_| {
                    self.dispatch(None)?;
                    self.combine(None)
                })
            })?,
            stamped: capture(&|| {
                self.stamps.stamp(self.stream(), 0)?;
                (0..ROUNDS).try_for_each(|round| {
                    self.dispatch(None)?;
                    self.stamps.stamp(self.stream(), 2 * round + 1)?;
                    self.combine(None)?;
                    Ok(self.stamps.stamp(self.stream(), 2 * round + 2)?)
                })
            })?,
            overhead: self.stamps.overhead(self.stream())?,
        })
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
