//! What the barrier on devices takes, for `campanile bench link`.
//!
//! Two values: a barrier of many in one launch, which is the algorithm, and a barrier of many launches in a graph, which is
//! what a job pays. Each is the time of the slowest rank's stream over the number of barriers.

use std::time::Duration;

use anyhow::Context;
use campanile::collectives::gpu::GpuBarrier;
use campanile::gpu::{Cache, Device, Event, Graph, Stream};
use serde::Serialize;

use super::percentile;

/// Barriers of one launch, and launches of a graph.
const IN_LAUNCH: u32 = 1000;
const IN_GRAPH: u32 = 100;
/// The same on the emulator.
const FEW: u32 = 10;
/// Bounds every wait.
const PATIENCE: Duration = Duration::from_secs(20);

/// Figures of the barrier.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DeviceBarrier {
    /// One of many in a launch: median, µs.
    pub in_launch_us: f64,
    /// 99th percentile of the same.
    pub in_launch_p99_us: f64,
    /// One launch of many in a graph: median, µs.
    pub in_graph_us: f64,
    /// 99th percentile of the same.
    pub in_graph_p99_us: f64,
    /// `in_launch_us` over one way of a flag, in the same run.
    pub of_flag: Option<f64>,
}

struct Rank {
    barrier: GpuBarrier,
    stream: Stream,
    graph: Graph,
    events: [Event; 2],
}

/// Measures it between ranks on `devices`; `flag_us` is one way of a flag.
pub fn measure(
    devices: &[Device],
    iterations: usize,
    emulated: bool,
    flag_us: Option<f64>,
    cache: &Cache,
) -> anyhow::Result<DeviceBarrier> {
    let (in_launch, in_graph) = if emulated { (FEW, FEW) } else { (IN_LAUNCH, IN_GRAPH) };
    let rank = |barrier: GpuBarrier| -> anyhow::Result<Rank> {
        let device = barrier.comm().device().clone();
        let stream = device.stream()?;
        let all = |stream: &Stream| {
            // SAFETY: the stream is the device's; the barrier outlives the graph's launches, which are waited for.
            (0..in_graph).try_for_each(|_| unsafe { barrier.enter(stream) })
        };
        let graph = stream.capture(all)?;
        Ok(Rank { barrier, stream, graph, events: [device.event()?, device.event()?] })
    };
    let barriers = GpuBarrier::in_process(devices, PATIENCE, cache)?;
    let ranks = barriers.into_iter().map(rank).collect::<anyhow::Result<Vec<_>>>()?;
    // The slowest rank's time of `work` on every stream at once, µs.
    let time = |work: &dyn Fn(&Rank) -> anyhow::Result<()>| -> anyhow::Result<f64> {
        for rank in &ranks {
            rank.events[0].record(&rank.stream)?;
            work(rank)?;
            rank.events[1].record(&rank.stream)?;
        }
        let mut slowest = 0.0f64;
        for rank in &ranks {
            rank.events[1].synchronize(PATIENCE)?;
            rank.barrier.check()?;
            slowest = slowest.max(rank.events[1].since(&rank.events[0])?.as_secs_f64() * 1e6);
        }
        Ok(slowest)
    };
    let (mut launches, mut graphs) = (Vec::new(), Vec::new());
    for iteration in 0..=iterations {
        let launch = time(&|rank| {
            // SAFETY: as above.
            unsafe { rank.barrier.enter_times(&rank.stream, in_launch) }.context("the barrier of devices")
        })?;
        let graph = time(&|rank| {
            // SAFETY: as above.
            unsafe { rank.graph.launch(&rank.stream) }.context("the barrier in a graph")
        })?;
        // The first one warms up.
        if iteration > 0 {
            launches.push(launch / f64::from(in_launch));
            graphs.push(graph / f64::from(in_graph));
        }
    }
    let in_launch_us = percentile(launches.clone(), 0.5);
    Ok(DeviceBarrier {
        in_launch_us,
        in_launch_p99_us: percentile(launches, 0.99),
        in_graph_us: percentile(graphs.clone(), 0.5),
        in_graph_p99_us: percentile(graphs, 0.99),
        of_flag: flag_us.filter(|&flag| flag > 0.0).map(|flag| in_launch_us / flag),
    })
}
