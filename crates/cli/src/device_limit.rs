//! The limit of the links between devices: what a kernel that only copies reaches, all ranks at once.
//!
//! Every rank stores a large run to the next rank's window, then loads one from there, on all multiprocessors. No
//! routing, no words, no rows. Ranks that share a device measure its memory.

use std::sync::Arc;

use anyhow::Context;
use campanile::gpu::{Backend, Cache, Compile, Device, Grid, Plan, Residency, Source};
use campanile::{Barrier, Communicator, MemoryKind, Window};

use crate::bench::percentile;

/// Bytes of a run on a GPU: some hundred microseconds of a link.
const BYTES: usize = 128 << 20;
/// Bytes of a run on an emulated one.
const EMULATED_BYTES: usize = 64 << 10;
/// Runs of which the median is the limit.
const RUNS: usize = 12;

/// The argument of `smoke_copy`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Copy16 {
    source: u64,
    target: u64,
    count: u64,
}

/// A copy between the devices of all ranks.
pub struct DeviceLimit {
    comm: Arc<Communicator>,
    device: Device,
    plan: Plan<Copy16>,
    /// Twice the bytes: what is copied, and where that of another rank goes.
    window: Window,
    bytes: usize,
}

impl DeviceLimit {
    /// Makes it. Collective.
    pub fn new(comm: &Arc<Communicator>, device: &Device, cache: &Cache) -> anyhow::Result<Self> {
        let emulated = device.gpu().backend() == Backend::Emulator;
        let bytes = if emulated { EMULATED_BYTES } else { BYTES };
        let window = comm.window(2 * bytes, MemoryKind::Device(device.ordinal()))?;
        let module = device.compile(&Source::smoke(), &Compile::default(), cache)?;
        let grid =
            Grid { blocks: 2 * device.multiprocessors(), threads: if emulated { 64 } else { 1024 }, shared_bytes: 0 };
        let plan = Plan::new(&module, "smoke_copy", grid, Residency::Any)?;
        Ok(Self { comm: Arc::clone(comm), device: device.clone(), plan, window, bytes })
    }

    /// GB/s of this rank's stores to another rank and of its loads from one, while all ranks do the same. Collective.
    pub fn measure(&self, barrier: &mut Barrier) -> anyhow::Result<[f64; 2]> {
        let next = (self.comm.rank() + 1) % self.comm.ranks();
        let address = |rank| self.window.device_address(rank).context("a window that the device does not reach");
        let (own, peer) = (address(self.comm.rank())?, address(next)?);
        let (stream, events) = (self.device.stream()?, [self.device.event()?, self.device.event()?]);
        let count = self.bytes as u64 / 16;
        let mut rates = [0.0; 2];
        let pairs = [(own, peer + self.bytes as u64), (peer, own + self.bytes as u64)];
        for (rate, (source, target)) in rates.iter_mut().zip(pairs) {
            let mut times = Vec::new();
            for _ in 0..RUNS {
                barrier.wait()?;
                events[0].record(&stream)?;
                // SAFETY: both halves are mapped for this device as long as the window lives; the stream is waited for.
                unsafe { self.plan.launch(&stream, &Copy16 { source, target, count })? };
                events[1].record(&stream)?;
                events[1].synchronize(self.comm.timeout())?;
                times.push(events[1].since(&events[0])?.as_secs_f64() * 1e9);
            }
            *rate = self.bytes as f64 / percentile(times, 0.5);
        }
        // Nobody's window goes away while another rank still copies.
        barrier.wait()?;
        Ok(rates)
    }
}
