//! The limit of the links between the devices of a job: what kernels reach that only store to all peers, or only load from
//! them, all ranks at once. As `campanile bench link` measures it, here by the ranks of the job themselves, which may be
//! processes.

use std::sync::Arc;

use campanile::gpu::link::{Arm, LinkLayout, LinkOptions, LinkRank, Pattern};
use campanile::gpu::{Cache, Device, DeviceCommunicator};
use campanile::{Barrier, Communicator};

use crate::bench::percentile;

/// The most bytes that a rank moves: some hundred microseconds of a GPU's links.
const MOST_BYTES: usize = 128 << 20;
/// Bytes for each multiprocessor of a smaller device, such as a slice of a GPU, or an emulated one whatever library it is behind.
const BYTES_PER_MULTIPROCESSOR: usize = 1 << 20;
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
        let bytes = MOST_BYTES.min(device.multiprocessors() as usize * BYTES_PER_MULTIPROCESSOR);
        let options = LinkOptions { bytes, ..LinkOptions::default() };
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
