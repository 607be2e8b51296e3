//! Combine by push: [`Push`], its kernel and what a rank keeps for it beside the state.

use campanile_core::{Arena, ArenaError, ArenaRegion};
use campanile_gpu::{Address, Cache, Coherence, Device, DeviceMemory, Stream};

use super::arguments::{self, PHASES, PUSH_LANE_BYTES, PUSH_STATE_BYTES};
use super::kernels::Kernels;
use super::memory::StateError;
use super::{DeviceOut, DeviceOutputs, GpuMoe, GpuMoeError, GpuMoeOptions};
use crate::Plan;
use crate::protocol::{Epoch, Set, WordMap};

/// Of one set.
#[derive(Clone, Debug)]
struct Regions {
    state: ArenaRegion,
    /// Values of the RETURNED words, for each rank.
    lanes: ArenaRegion,
    /// For each rank, a cell for each unit of rows.
    batons: ArenaRegion,
}

/// The kernel, tickets and counters.
#[derive(Debug)]
pub(super) struct Push {
    plan: campanile_gpu::Plan<arguments::Push>,
    /// Blocks that send before they sum.
    senders: u32,
    sets: Vec<Regions>,
    memory: DeviceMemory,
    bytes: usize,
}

impl Push {
    /// Compiles, allocates, and initialises for a first round `first` of every set.
    pub(super) fn new(
        device: &Device,
        plan: &Plan,
        options: &GpuMoeOptions,
        cache: &Cache,
    ) -> Result<Self, GpuMoeError> {
        let config = plan.config();
        let kernel = Kernels::push(device, config, options.combine, cache)?;
        let mut arena = Arena::new();
        let sets = (0..config.sets).map(|set| {
            let mut carve = |name: &str, stride, count| arena.carve(&format!("{name}.{set}"), "word", stride, count);
            Ok(Regions {
                state: carve("push state", PUSH_STATE_BYTES, 1)?,
                lanes: carve("push lanes", PUSH_LANE_BYTES, plan.ranks)?,
                batons: carve("push batons", 4 * config.capacity, plan.ranks)?,
            })
        });
        let sets = sets.collect::<Result<Vec<_>, ArenaError>>().map_err(StateError::from)?;
        let bytes = arena.bytes();
        let memory = device.allocate(bytes, Coherence::Coarse)?;
        let blocks = kernel.grid().blocks;
        // Senders reach the link's rate with fewer blocks than sums reach the memory's.
        let senders = options.senders.unwrap_or(blocks - blocks / 3).clamp(1, blocks);
        let push = Self { plan: kernel, senders, sets, memory, bytes };
        push.begin_generation(&device.stream()?, &vec![options.first; config.sets as usize], plan.ranks)?;
        Ok(push)
    }

    /// Makes everything what it is before a first round `first` of each set.
    pub(super) fn begin_generation(&self, stream: &Stream, first: &[Epoch], ranks: usize) -> Result<(), GpuMoeError> {
        let mut bytes = vec![0; self.bytes];
        for (set, &first) in self.sets.iter().zip(first) {
            let initial = WordMap::initial(first).to_ne_bytes().repeat(ranks * PUSH_LANE_BYTES / 8);
            bytes[set.lanes.offset..][..initial.len()].copy_from_slice(&initial);
        }
        Ok(stream.upload(&self.memory, 0, &bytes)?)
    }

    fn address(&self, region: &ArenaRegion) -> Address {
        self.memory.address() + region.offset as Address
    }

    /// Geometry.
    pub(super) fn grid(&self) -> campanile_gpu::Grid {
        self.plan.grid()
    }
}

impl GpuMoe {
    /// Launches the combine by push.
    ///
    /// # Safety
    /// As [`combine_from`](Self::combine_from).
    pub(super) unsafe fn launch_push(
        &self,
        push: &Push,
        set: Set,
        stream: &Stream,
        outputs: DeviceOutputs<'_>,
        out: &DeviceOut,
    ) -> Result<(), GpuMoeError> {
        let common = self.common(set)?;
        let (planes, regions) = (self.plan.set(set), &push.sets[set.index()]);
        let argument = arguments::Push {
            common,
            results: self.results(outputs)?,
            out: out.out,
            out_stride: out.stride as u64,
            out_weights: out.out_weights,
            tokens: out.count,
            returns: planes.returns.offset as u64,
            return_weights: planes.return_weights.offset as u64,
            weight_stride: planes.return_weights.stride as u64,
            state: push.address(&regions.state),
            lanes: push.address(&regions.lanes),
            batons: push.address(&regions.batons),
            senders: push.senders,
            phases: PHASES,
        };
        // SAFETY: own memory, and the caller's promise for outputs and output.
        unsafe { push.plan.launch(stream, &argument)? };
        Ok(())
    }
}
