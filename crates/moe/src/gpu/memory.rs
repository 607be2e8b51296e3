//! What a rank keeps on its device beside the window: [`State`].

use campanile_core::{Arena, ArenaError, ArenaRegion};
use campanile_gpu::{Address, CallError, Coherence, Device, DeviceMemory, HostMemory, Stream};

use super::Failure;
use super::arguments::{RECORD_BYTES, STATE_BYTES};
use super::error::read_record;
use crate::Plan;
use crate::protocol::{Epoch, Set, WordMap};

/// Of one set.
#[derive(Clone, Debug)]
pub(super) struct SetRegions {
    pub(super) state: ArenaRegion,
    pub(super) sent: ArenaRegion,
    pub(super) came: ArenaRegion,
    pub(super) rows_to: ArenaRegion,
    pub(super) rows_from: ArenaRegion,
    pub(super) expert_counts: ArenaRegion,
    pub(super) routes: ArenaRegion,
}

/// Counters, routes and tables in device memory; a record a set and the abort word in host memory.
#[derive(Debug)]
pub(super) struct State {
    pub(super) sets: Vec<SetRegions>,
    pub(super) failed: ArenaRegion,
    pub(super) windows: ArenaRegion,
    pub(super) expert_rank: ArenaRegion,
    pub(super) expert_number: ArenaRegion,
    memory: DeviceMemory,
    host: HostMemory,
}

impl State {
    /// Allocates and initialises it, for a first round `first` of every set.
    pub(super) fn new(device: &Device, plan: &Plan, windows: &[Address], first: Epoch) -> Result<Self, StateError> {
        let (config, ranks) = (plan.config(), plan.ranks);
        let slots = config.topk.min(ranks);
        let mut arena = Arena::new();
        let sets = (0..config.sets).map(|set| {
            let mut carve = |name: &str, stride, count| arena.carve(&format!("{name}.{set}"), "word", stride, count);
            Ok(SetRegions {
                state: carve("state", STATE_BYTES, 1)?,
                sent: carve("sent", 8, ranks)?,
                came: carve("came", 8, ranks)?,
                rows_to: carve("rows_to", 4, ranks)?,
                rows_from: carve("rows_from", 4, ranks)?,
                expert_counts: carve("expert_counts", 4, plan.local_experts())?,
                routes: carve("routes", 8 * slots, config.capacity)?,
            })
        });
        let sets = sets.collect::<Result<Vec<_>, ArenaError>>()?;
        let failed = arena.carve("failed", "u32", 4, 1)?;
        let table = arena.carve("windows", "address", 8, ranks)?;
        let expert_rank = arena.carve("expert_rank", "u32", 4, config.expert_rank.len())?;
        let expert_number = arena.carve("expert_number", "u32", 4, config.expert_rank.len())?;

        let mut bytes = vec![0; arena.bytes()];
        let mut put = |region: &ArenaRegion, at: usize, value: &[u8]| {
            let offset = region.offset + at;
            bytes[offset..offset + value.len()].copy_from_slice(value);
        };
        for set in &sets {
            // The epoch is the state's first word.
            put(&set.state, 0, &first.prev().0.to_ne_bytes());
            for rank in 0..ranks {
                for counter in [&set.sent, &set.came] {
                    put(counter, rank * 8, &WordMap::initial(first).to_ne_bytes());
                }
            }
        }
        for (rank, window) in windows.iter().enumerate() {
            put(&table, rank * 8, &window.to_ne_bytes());
        }
        for (expert, (rank, number)) in plan.places().iter().enumerate() {
            put(&expert_rank, expert * 4, &rank.to_ne_bytes());
            put(&expert_number, expert * 4, &number.to_ne_bytes());
        }
        let memory = device.allocate(bytes.len(), Coherence::Coarse)?;
        device.stream()?.upload(&memory, 0, &bytes)?;
        let host = device.allocate_host(sets.len() * RECORD_BYTES + 8)?;
        Ok(Self { sets, failed, windows: table, expert_rank, expert_number, memory, host })
    }

    pub(super) fn set(&self, set: Set) -> &SetRegions {
        &self.sets[set.index()]
    }

    pub(super) fn address(&self, region: &ArenaRegion) -> Address {
        self.memory.address() + region.offset as Address
    }

    /// Reads 32-bit words of a region, after all earlier work of the stream.
    pub(super) fn words(&self, stream: &Stream, region: &ArenaRegion, count: usize) -> Result<Vec<u32>, CallError> {
        let mut bytes = vec![0; count * 4];
        stream.download(&self.memory, region.offset, &mut bytes)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).collect())
    }

    /// The first failure, if there was one: it is in the record of its set, and the others are empty.
    pub(super) fn failure(&self) -> Option<Failure> {
        let sets = (0..).map(Set).take(self.sets.len());
        // SAFETY: the records of this rank's kernels, inside the memory.
        sets.into_iter().find_map(|set| unsafe { read_record(self.host.as_ptr().add(set.index() * RECORD_BYTES), set) })
    }

    pub(super) fn record_address(&self, set: Set) -> Address {
        self.host.address() + (set.index() * RECORD_BYTES) as Address
    }

    /// The abort word, on the host: a u32.
    pub(super) fn abort(&self) -> *mut u8 {
        // SAFETY: behind the records, inside the memory.
        unsafe { self.host.as_ptr().add(self.sets.len() * RECORD_BYTES) }
    }

    pub(super) fn abort_address(&self) -> Address {
        self.host.address() + (self.sets.len() * RECORD_BYTES) as Address
    }
}

/// State that cannot be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
    #[error(transparent)]
    Size(#[from] ArenaError),
    #[error(transparent)]
    Call(#[from] CallError),
}

impl From<StateError> for super::GpuMoeError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Size(error) => Self::Config(error.into()),
            StateError::Call(error) => Self::Call(error),
        }
    }
}
