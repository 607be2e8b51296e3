//! The barrier on devices: [`GpuBarrier`].

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{Arena, Rank, Team};
use campanile_gpu::view::{CommunicatorView, TeamView};
use campanile_gpu::{
    Address, Cache, CallError, Coherence, Compile, CompileError, Device, DeviceCommunicator, DeviceCommunicatorError,
    DeviceFailure, DeviceMemory, Grid, Plan, PlanError, Residency, Source, Stream,
};

/// `BarrierState` of `kernels/device/barrier.h`, before the members of the team.
const STATE_BYTES: usize = 24;
/// The number by which a failure names a barrier that was launched as a kernel.
const OPERATION: u32 = 0xba;

/// `BarrierView` of `kernels/device/barrier.h`: what a kernel is given to join the barrier with all of its blocks.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BarrierView {
    /// The team.
    pub team: TeamView,
    /// State of this rank, in device memory.
    pub state: Address,
    /// Signal word of the first member; those of the others follow.
    pub first_slot: u32,
    /// The number by which a failure names it.
    pub operation: u32,
}

/// `EnterArguments` of `kernels/barrier.cpp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Enter {
    comm: CommunicatorView,
    barrier: BarrierView,
    rounds: u32,
}

/// A barrier over a team, in stream order: nobody's later work on the stream begins before everybody's earlier work has
/// ended, and what that put and stored into windows is visible.
///
/// Every member raises one word at every other and waits for theirs, in one launch of one block: one step, the latency of
/// a flag. The words count barriers and are never reset. A kernel with several blocks, all of them resident, joins by
/// calling `barrier(c, b)` of `kernels/campanile.h` with this one's [`view`](Self::view); launches and joined kernels
/// may alternate, the same on all ranks.
///
/// ```
/// use std::time::Duration;
/// use campanile_collectives::gpu::GpuBarrier;
/// use campanile_gpu::{Cache, Emulation, Gpu, Settings};
///
/// let gpu = Gpu::emulator(Emulation::default(), &Settings::default())?;
/// # if !campanile_gpu::has_compiler(&gpu) { return Ok(()); }
/// let devices = [gpu.device(0)?, gpu.device(1)?, gpu.device(2)?];
/// let barriers = GpuBarrier::in_process(&devices, Duration::from_secs(10), &Cache::none())?;
/// let mut streams = Vec::new();
/// for (barrier, device) in barriers.iter().zip(&devices) {
///     let stream = device.stream()?;
///     // SAFETY: the stream is the device's, and is done before the barriers are dropped.
///     let graph = stream.capture(|stream| unsafe { barrier.enter(stream) })?;
///     for _ in 0..3 {
///         unsafe { graph.launch(&stream)? };
///     }
///     streams.push((stream, graph));
/// }
/// for (barrier, (stream, _)) in barriers.iter().zip(&streams) {
///     stream.synchronize(Duration::from_secs(20))?;
///     barrier.check()?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct GpuBarrier {
    comm: Arc<DeviceCommunicator>,
    plan: Plan<Enter>,
    view: BarrierView,
    _state: DeviceMemory,
}

impl GpuBarrier {
    /// A barrier over as many ranks as there are devices, threads of this process, on a communicator of their own. Index
    /// of the result is the rank.
    ///
    /// # Errors
    /// [`GpuBarrierError`]: a device without peer access, too little memory, no compiler.
    pub fn in_process(devices: &[Device], deadline: Duration, cache: &Cache) -> Result<Vec<Self>, GpuBarrierError> {
        if devices.is_empty() {
            return Ok(Vec::new());
        }
        let ranks = DeviceCommunicator::in_process(devices, &Arena::new(), devices.len(), deadline)?;
        let team = Team::world(ranks.len());
        ranks.into_iter().map(|comm| Self::new(&Arc::new(comm), &team, 0, cache)).collect()
    }

    /// A barrier over a team of the communicator's ranks, of which this one is a member. It owns as many signal words as
    /// there are members, from `first_slot` on, the same on each of them; no kernel may use them.
    ///
    /// # Errors
    /// [`GpuBarrierError`]: a rank that is no member, words that there are not, no compiler.
    pub fn new(
        comm: &Arc<DeviceCommunicator>,
        team: &Team,
        first_slot: u32,
        cache: &Cache,
    ) -> Result<Self, GpuBarrierError> {
        Self::starting_at(comm, team, first_slot, 0, cache)
    }

    /// A barrier that has, as its words say, been passed `epoch` times; for tests near the wrap. Made by every member
    /// before any of them enters.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn starting_at(
        comm: &Arc<DeviceCommunicator>,
        team: &Team,
        first_slot: u32,
        epoch: u64,
        cache: &Cache,
    ) -> Result<Self, GpuBarrierError> {
        let (rank, ranks, words) = (comm.rank(), comm.ranks(), comm.signals());
        let Some(position) = team.position(Rank::new(rank)) else {
            return Err(GpuBarrierError::NoMember { rank });
        };
        if let Some(&stranger) = team.members().iter().find(|member| member.index() >= ranks) {
            return Err(GpuBarrierError::Stranger { stranger, ranks });
        }
        if (first_slot as usize).checked_add(team.len()).is_none_or(|end| end > words) {
            return Err(GpuBarrierError::Words { first_slot, members: team.len(), words });
        }
        let device = comm.device();
        let stream = device.stream()?;
        if epoch != 0 {
            stream.upload(&comm.signal_words(), first_slot as usize * 8, &epoch.to_ne_bytes().repeat(team.len()))?;
        }
        let mut bytes = vec![0; STATE_BYTES];
        bytes[..8].copy_from_slice(&epoch.to_ne_bytes());
        bytes.extend(team.members().iter().flat_map(|member| (member.index() as u32).to_ne_bytes()));
        let state = device.allocate(bytes.len(), Coherence::Coarse)?;
        stream.upload(&state, 0, &bytes)?;
        let is_world = team.len() == ranks && team.members().iter().enumerate().all(|(at, rank)| rank.index() == at);
        let members = if is_world { 0 } else { state.address() + STATE_BYTES as Address };
        let team = TeamView { members, position: position as u32, size: team.len() as u32 };
        let view = BarrierView { team, state: state.address(), first_slot, operation: OPERATION };

        let source = Source::new("barrier.cpp", include_str!("../../../../kernels/barrier.cpp"));
        let module = comm.compile(&source, &Compile::default(), cache)?;
        // One wave raises and awaits the words, whatever their number.
        let grid = Grid { blocks: 1, threads: device.wave(), shared_bytes: 0 };
        let plan = Plan::new(&module, "barrier_enter", grid, Residency::Together)?;
        Ok(Self { comm: Arc::clone(comm), plan, view, _state: state })
    }

    /// Enters the barrier: one launch.
    ///
    /// # Errors
    /// Those of the call. What goes wrong on the device is told by [`check`](Self::check).
    ///
    /// # Safety
    /// The stream is of this rank's device. The barrier lives until the stream has done it; in a graph, each launch of
    /// that.
    pub unsafe fn enter(&self, stream: &Stream) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe { self.enter_times(stream, 1) }
    }

    /// Enters it `rounds` times in one launch: what a barrier takes without the launch.
    ///
    /// # Errors
    /// As [`enter`](Self::enter).
    ///
    /// # Safety
    /// As [`enter`](Self::enter).
    pub unsafe fn enter_times(&self, stream: &Stream, rounds: u32) -> Result<(), CallError> {
        // SAFETY: own memory, and the caller's promise.
        unsafe { self.plan.launch(stream, &Enter { comm: self.comm.view(), barrier: self.view, rounds }) }
    }

    /// What a kernel joins it with.
    #[must_use]
    pub fn view(&self) -> BarrierView {
        self.view
    }

    /// The communicator: its [`view`](DeviceCommunicator::view) goes with the barrier's, its
    /// [`abort`](DeviceCommunicator::abort) frees who waits.
    #[must_use]
    pub fn comm(&self) -> &Arc<DeviceCommunicator> {
        &self.comm
    }

    /// What the kernels of the communicator have recorded so far; complete once the stream is done.
    ///
    /// # Errors
    /// [`GpuBarrierError::Failed`], for ever after the first failure.
    pub fn check(&self) -> Result<(), GpuBarrierError> {
        self.comm.failure().map_or(Ok(()), |failure| Err(GpuBarrierError::Failed(failure)))
    }
}

/// Why a barrier cannot be made, or has failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuBarrierError {
    /// This rank is not in the team.
    #[error("rank {rank} is no member of the team; only members make its barrier")]
    NoMember {
        /// The rank.
        rank: usize,
    },
    /// The team has a member that the communicator has not.
    #[error("{stranger} is in the team, but the communicator has {ranks} ranks")]
    Stranger {
        /// The member.
        stranger: Rank,
        /// Ranks of the communicator.
        ranks: usize,
    },
    /// There are not so many signal words.
    #[error(
        "a barrier of {members} members needs as many signal words from {first_slot} on; the communicator has {words}"
    )]
    Words {
        /// The first one.
        first_slot: u32,
        /// Members.
        members: usize,
        /// Signal words that there are.
        words: usize,
    },
    /// A kernel gave up.
    #[error("barrier: {0}")]
    Failed(DeviceFailure),
    /// The communicator could not be made.
    #[error(transparent)]
    Communicator(#[from] DeviceCommunicatorError),
    /// The kernel could not be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The kernel could not be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
}
