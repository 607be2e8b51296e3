//! The limit of the links between the devices of a job: what kernels reach that only store to all peers, or only load from
//! them, all ranks at once. As `campanile bench link` measures it, here by the ranks of the job themselves, which may be
//! processes.

use std::sync::Arc;

use campanile::gpu::link::{Arm, LinkLayout, LinkOptions, LinkRank, Pattern};
use campanile::gpu::{Backend, Cache, Device, DeviceCommunicator};
use campanile::{Barrier, Communicator};

use crate::bench::percentile;

/// Bytes that a rank moves on a GPU: some hundred microseconds of its links.
const BYTES: usize = 128 << 20;
/// Bytes on an emulated one.
const EMULATED_BYTES: usize = 128 << 10;
/// Runs of which the median is the limit.
const RUNS: usize = 12;

/// Transfers between the devices of all ranks.
pub struct DeviceLimit {
    /// `None` for a rank that is alone: it has no link.
    link: Option<LinkRank>,
    layout: LinkLayout,
}

impl DeviceLimit {
    /// Makes it. Collective.
    pub fn new(comm: &Arc<Communicator>, device: &Device, cache: &Cache) -> anyhow::Result<Self> {
        let emulated = device.gpu().backend() == Backend::Emulator;
        let options = LinkOptions { bytes: if emulated { EMULATED_BYTES } else { BYTES }, ..LinkOptions::default() };
        let layout = LinkLayout::new(comm.ranks(), &options)?;
        if comm.ranks() == 1 {
            return Ok(Self { link: None, layout });
        }
        let of_device = DeviceCommunicator::new(comm, device, &layout.arena, 1)?;
        Ok(Self { link: Some(LinkRank::new(of_device, &layout, &options, cache)?), layout })
    }

    /// GB/s of this rank's stores to all others and of its loads from them, while all ranks do the same; 0 for a rank that is
    /// alone. Collective.
    pub fn measure(&self, barrier: &mut Barrier) -> anyhow::Result<[f64; 2]> {
        let mut rates = [0.0; 2];
        let Some(link) = &self.link else { return Ok(rates) };
        for (rate, arm) in rates.iter_mut().zip([Arm::PeerStores, Arm::PeerLoads]) {
            let mut times = Vec::new();
            for _ in 0..RUNS {
                barrier.wait()?;
                times.extend(link.run(arm, Pattern::AllToAll)?.map(|took| took.as_secs_f64() * 1e9));
            }
            *rate = self.layout.bytes(arm, Pattern::AllToAll) as f64 / percentile(times, 0.5);
        }
        // Nobody's window goes away while another rank still moves bytes.
        barrier.wait()?;
        Ok(rates)
    }
}
