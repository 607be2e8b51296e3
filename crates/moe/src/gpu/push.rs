//! Combine by push: [`Push`], its kernel and what a rank keeps for it beside the state.

use campanile_core::{Arena, ArenaError, ArenaRegion};
use campanile_gpu::{Address, Cache, CallError, Coherence, Device, DeviceMemory, Grid, Memory, Stream};

use super::arguments::{self, PUSH_LANE_BYTES, PUSH_STATE_BYTES, RECEIVE, SEND};
use super::kernels::Kernels;
use super::memory::StateError;
use super::{DeviceOut, DeviceOutputs, GpuMoe, GpuMoeError, GpuMoeOptions};
use crate::Plan;
use crate::protocol::{Epoch, Set, WordMap};

/// Blocks that send before they sum, where there are at least 48, else two of three: the best of those measured on 2 × H200,
/// with 4096 tokens and with 128 (`docs/benchmarks/gpu_moe.md`).
const SENDERS: u32 = 32;

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
    kernel: campanile_gpu::Plan<arguments::Push>,
    /// Blocks that send before they sum.
    senders: u32,
    sets: Vec<Regions>,
    memory: DeviceMemory,
}

impl Push {
    /// Compiles and allocates. [`begin`](Self::begin) comes before its first use.
    pub(super) fn new(
        device: &Device,
        plan: &Plan,
        options: &GpuMoeOptions,
        sharing: usize,
        cache: &Cache,
    ) -> Result<Self, GpuMoeError> {
        let config = plan.config();
        let kernel = Kernels::push(device, config, options.combine, sharing, cache)?;
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
        let memory = device.allocate(arena.bytes(), Coherence::Coarse)?;
        let blocks = kernel.grid().blocks;
        let senders = options.senders.unwrap_or(SENDERS.min(blocks - blocks / 3)).clamp(1, blocks);
        Ok(Self { kernel, senders, sets, memory })
    }

    /// Begins a generation: `first` is the first round of each set.
    pub(super) fn begin(&self, stream: &Stream, first: &[Epoch]) -> Result<(), CallError> {
        let mut image = vec![0; self.memory.bytes()];
        for (Regions { lanes, .. }, &first) in self.sets.iter().zip(first) {
            let initial = WordMap::initial(first).to_ne_bytes().repeat(lanes.stride * lanes.count / 8);
            image[lanes.offset..][..initial.len()].copy_from_slice(&initial);
        }
        stream.upload(&self.memory, 0, &image)
    }

    /// Geometry.
    pub(super) fn grid(&self) -> Grid {
        self.kernel.grid()
    }

    fn address(&self, region: &ArenaRegion) -> Address {
        self.memory.address() + region.offset as Address
    }
}

impl GpuMoe {
    /// Launches phases of the combine by push: sending needs `outputs`, receiving `out`.
    ///
    /// # Safety
    /// As [`combine_from`](Self::combine_from).
    pub(super) unsafe fn launch_push(
        &self,
        push: &Push,
        set: Set,
        stream: &Stream,
        outputs: Option<DeviceOutputs<'_>>,
        out: Option<&DeviceOut>,
    ) -> Result<(), GpuMoeError> {
        let common = self.common(set)?;
        let (planes, regions) = (self.plan.set(set), &push.sets[set.index()]);
        let phases = if outputs.is_some() { SEND } else { 0 } | if out.is_some() { RECEIVE } else { 0 };
        let argument = arguments::Push {
            common,
            results: self.results(outputs.unwrap_or_default())?,
            out: out.map_or(0, |out| out.out),
            out_stride: out.map_or(0, |out| out.stride as u64),
            out_weights: out.map_or(0, |out| out.out_weights),
            tokens: out.map_or(0, |out| out.count),
            returns: planes.returns.offset as u64,
            return_weights: planes.return_weights.offset as u64,
            weight_stride: planes.return_weights.stride as u64,
            state: push.address(&regions.state),
            lanes: push.address(&regions.lanes),
            batons: push.address(&regions.batons),
            // A launch that only sends has no block to keep for sums.
            senders: if phases == SEND { push.grid().blocks } else { push.senders },
            phases,
        };
        // SAFETY: own memory, and the caller's promise for outputs and output.
        unsafe { push.kernel.launch(stream, &argument)? };
        Ok(())
    }
}
