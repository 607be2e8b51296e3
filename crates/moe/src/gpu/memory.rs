//! What a rank keeps on its device beside the window: [`State`].

use campanile_core::{Arena, ArenaError, ArenaRegion};
use campanile_gpu::{Address, CallError, Coherence, Device, DeviceMemory, HostMemory, Memory, Stream};

use super::Failure;
use super::arguments::{NO_ROUTE, NONE, RECORD_BYTES, STATE_BYTES};
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

/// Counters, routes and tables in device memory; record and abort word in host memory.
#[derive(Debug)]
pub(super) struct State {
    pub(super) sets: Vec<SetRegions>,
    pub(super) failed: ArenaRegion,
    pub(super) windows: ArenaRegion,
    pub(super) expert_rank: ArenaRegion,
    pub(super) expert_number: ArenaRegion,
    pub(super) active: ArenaRegion,
    memory: DeviceMemory,
    host: HostMemory,
}

impl State {
    /// Allocates it. [`begin`](Self::begin) comes before its first use.
    pub(super) fn new(device: &Device, plan: &Plan) -> Result<Self, StateError> {
        let (config, ranks) = (plan.config(), plan.ranks);
        let slots = config.topk.min(ranks);
        let mut arena = Arena::new();
        let sets = (0..config.sets).map(|set| {
            let mut carve = |name: &str, stride, count| arena.carve(&format!("{name}.{set}"), "word", stride, count);
            Ok(SetRegions {
                state: carve("state", STATE_BYTES, 1)?,
                sent: carve("sent", 8, ranks)?,
                came: carve("came", 8, 2 * ranks)?,
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

        let active = arena.carve("active", "bits", 8, ranks.div_ceil(64))?;
        let memory = device.allocate(arena.bytes(), Coherence::Coarse)?;
        let host = device.allocate_host(RECORD_BYTES + 8)?;
        Ok(Self { sets, failed, windows: table, expert_rank, expert_number, active, memory, host })
    }

    /// Begins a generation: no failure, no open round, `first` the first round of each set, `active` the mask. No kernel
    /// that uses the state is running.
    pub(super) fn begin(
        &self,
        stream: &Stream,
        plan: &Plan,
        windows: &[Address],
        first: &[Epoch],
        active: &[bool],
    ) -> Result<(), CallError> {
        let mut image = vec![0; self.memory.bytes()];
        let mut put = |region: &ArenaRegion, at: usize, value: &[u8]| {
            let offset = region.offset + at;
            image[offset..offset + value.len()].copy_from_slice(value);
        };
        for (set, &first) in self.sets.iter().zip(first) {
            // The epoch is the state's first word.
            put(&set.state, 0, &first.prev().0.to_ne_bytes());
            let counters = WordMap::initial(first).to_ne_bytes().repeat(plan.ranks);
            put(&set.sent, 0, &counters);
            put(&set.came, 0, &counters);
            put(&set.came, counters.len(), &counters);
        }
        for (rank, window) in windows.iter().enumerate() {
            put(&self.windows, rank * 8, &window.to_ne_bytes());
        }
        for (expert, (_, number)) in plan.places().iter().enumerate() {
            put(&self.expert_number, expert * 4, &number.to_ne_bytes());
        }
        put(&self.expert_rank, 0, &owners(plan, active));
        put(&self.active, 0, &bits(active));
        stream.upload(&self.memory, 0, &image)?;
        // SAFETY: own memory, of this length; no kernel is running that looks at it.
        unsafe { self.host.as_ptr().write_bytes(0, self.host.bytes()) };
        Ok(())
    }

    /// Masks the ranks that are not `active`. What was sent to them in open rounds is forgotten, so that nothing is read
    /// back from them.
    pub(super) fn mask(&self, stream: &Stream, plan: &Plan, active: &[bool]) -> Result<(), CallError> {
        let slots = plan.config().topk.min(plan.ranks);
        for set in &self.sets {
            let mut routes = vec![0; set.routes.stride * set.routes.count];
            stream.download(&self.memory, set.routes.offset, &mut routes)?;
            for token in routes.as_chunks_mut::<8>().0.chunks_mut(slots) {
                let mut kept = 0;
                for at in 0..slots {
                    let route = u64::from_ne_bytes(token[at]);
                    if route == NO_ROUTE {
                        break;
                    }
                    if active[(route >> 32) as usize] {
                        token[kept] = token[at];
                        kept += 1;
                    }
                }
                if kept < slots {
                    token[kept] = NO_ROUTE.to_ne_bytes();
                }
            }
            stream.upload(&self.memory, set.routes.offset, &routes)?;
            for rank in (0..plan.ranks).filter(|&rank| !active[rank]) {
                stream.upload(&self.memory, set.rows_to.offset + 4 * rank, &[0; 4])?;
            }
        }
        stream.upload(&self.memory, self.expert_rank.offset, &owners(plan, active))?;
        stream.upload(&self.memory, self.active.offset, &bits(active))
    }

    /// The epoch of the last round begun on each set, after all earlier work of the stream.
    pub(super) fn epochs(&self, stream: &Stream) -> Result<Vec<Epoch>, CallError> {
        self.sets.iter().map(|set| Ok(Epoch(self.words(stream, &set.state, 1)?[0]))).collect()
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

    /// The first failure, if there was one.
    pub(super) fn failure(&self) -> Option<Failure> {
        // SAFETY: the record of this rank's kernels.
        unsafe { read_record(self.host.as_ptr()) }
    }

    pub(super) fn record_address(&self) -> Address {
        self.host.address()
    }

    /// The abort word, on the host: a u32.
    pub(super) fn abort(&self) -> *mut u8 {
        // SAFETY: behind the record, inside the memory.
        unsafe { self.host.as_ptr().add(RECORD_BYTES) }
    }

    pub(super) fn abort_address(&self) -> Address {
        self.host.address() + RECORD_BYTES as Address
    }
}

/// The owner of each expert as kernels see it; those of masked ranks have none.
fn owners(plan: &Plan, active: &[bool]) -> Vec<u8> {
    let owner = |rank: u32| if active[rank as usize] { rank } else { NONE };
    plan.places().iter().flat_map(|&(rank, _)| owner(rank).to_ne_bytes()).collect()
}

/// The mask as kernels see it.
fn bits(active: &[bool]) -> Vec<u8> {
    let word = |ranks: &[bool]| ranks.iter().rev().fold(0, |word, &active| word << 1 | u64::from(active));
    active.chunks(64).flat_map(|ranks| word(ranks).to_ne_bytes()).collect()
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
