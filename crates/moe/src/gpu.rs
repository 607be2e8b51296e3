//! The MoE operation on GPUs: the same plan, words and bits as the host's, by kernels that load and store into peers.
//!
//! **Model.** A [`GpuMoe`] is one rank: a window in its device's memory, mapped on the devices of all ranks, and state that
//! lives on the device: epochs, counters, routes. A round is [`dispatch`](GpuMoe::dispatch), then the caller's experts on the
//! rows in place, then [`combine`](GpuMoe::combine) or [`release`](GpuMoe::release); each is one launch on the
//! caller's stream, which a graph may capture, since token counts, epochs and masks are read on the device. Dispatch and
//! combine split into send and receive, a launch each, so that other work fits in between. Results come back by pull, or by
//! push if the config says so; experts may work in a [`DeviceLayout`] too. Results are those of
//! [`model::solve`](crate::model::solve), bit for bit.
//!
//! **Invariants.** A launch allocates nothing and waits for nothing on the host. Every wait on the device has a deadline and
//! ends by [`abort`](GpuMoe::abort); the first failure is recorded, nothing is published after it, and later launches end
//! at once, until a new generation begins ([`go_on`](GpuMoe::go_on)). All ranks issue their launches in one order. The
//! device keeps the stage of each round, so that a phase out of order is a failure also in a graph.
//!
//! The ranks of [`new`](GpuMoe::new) are those of a communicator, processes or threads; a rank that dies, stalls or aborts is
//! named by all others. The ranks of [`in_process`](GpuMoe::in_process) are threads of one process without a communicator.

mod addresses;
mod arguments;
mod error;
pub mod exchange;
mod generation;
mod kernels;
mod layout;
mod memory;
mod outputs;
mod phases;
mod push;
mod schedule;
mod watch;
mod windows;

use std::sync::Arc;
use std::time::Duration;

use campanile_core::{CommError, Communicator, MemoryKind, MoeCombine, MoeMode};
use campanile_gpu::{Address, Cache, Device, Grid, Pins, Stream};

pub use error::{Failure, FailureKind, GpuMoeError};
pub use layout::{DeviceLayout, LayoutCopy, LayoutMap};
pub use outputs::{DeviceOutputs, DeviceRows};

use crate::protocol::{Epoch, Ready, Set, Word};
use crate::{MoeConfig, Plan, PlanError, PlanPaths};
use arguments::{RECEIVE, SEND};
use kernels::Kernels;
use memory::State;
use push::Push;
use schedule::Schedule;
use watch::Watch;
use windows::Windows;

/// Bounds each wait on the device where nothing else does.
const DEADLINE: Duration = Duration::from_secs(10);

/// How an operation runs. The result does not depend on it.
#[derive(Clone, Copy, Debug)]
pub struct GpuMoeOptions {
    /// Bounds each wait on the device, where that is less than the communicator's timeout. None is the timeout; without a
    /// communicator, ten seconds.
    pub deadline: Option<Duration>,
    /// Launch geometry of dispatch, where it is not that of the table.
    pub dispatch: Pins,
    /// Launch geometry of combine.
    pub combine: Pins,
    /// Launch geometry of layouts.
    pub arrange: Pins,
    /// Blocks of a combine by push that send before they sum, where it is not 32, or two of three of fewer than 48.
    pub senders: Option<u32>,
    /// Blocks of a dispatch that take in what comes, where it is not the default's. The others end once they have sent.
    pub receivers: Option<u32>,
    /// First epoch of every set; for tests, which start near the wrap.
    pub first: Epoch,
}

impl Default for GpuMoeOptions {
    /// The communicator's timeout, and the table's geometry.
    fn default() -> Self {
        let [dispatch, combine, arrange] = [Pins::default(); 3];
        let (deadline, senders, receivers) = (None, None, None);
        Self { deadline, dispatch, combine, arrange, senders, receivers, first: Epoch::FIRST }
    }
}

/// Type of the routing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Index {
    /// 32-bit, signed.
    #[default]
    I32,
    /// 64-bit, signed, as PyTorch has it.
    I64,
}

/// The tokens of a rank, in memory of its device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTokens {
    /// How many: a u32. Read when the kernel runs.
    pub count: Address,
    /// Rows of H elements of [`MoeConfig::x_dtype`]. 16-byte alignment of address and stride is fastest.
    pub x: Address,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// `[count, S]` f32; not looked at unless the type of `x` is scaled.
    pub scales: Address,
    /// `[count, K]` expert of each slot; what is no expert, such as −1, is dropped.
    pub topk_idx: Address,
    /// Type of `topk_idx`.
    pub index: Index,
    /// `[count, K]` f32; not looked at unless the operation is weighted.
    pub topk_weights: Address,
}

/// Where the sums go, in memory of this rank's device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOut {
    /// How many tokens the dispatch had: a u32.
    pub count: Address,
    /// Rows of H elements of the combine type.
    pub out: Address,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// `[count, K]` f32: the weight of each slot that was valid, else 0. 0 leaves it out.
    pub out_weights: Address,
}

/// A plane of a set, in this rank's window: `[rank][capacity]` rows of `stride` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePlane {
    /// First byte.
    pub address: Address,
    /// Bytes from one row to the next, a multiple of 16.
    pub stride: usize,
}

/// An MoE operation of one rank, on a GPU.
#[derive(Debug)]
pub struct GpuMoe {
    device: Device,
    plan: Plan,
    options: GpuMoeOptions,
    kernels: Kernels,
    state: State,
    /// If results come back by push.
    push: Option<Push>,
    active: Vec<bool>,
    windows: Windows,
    watch: Option<Watch>,
}

impl GpuMoe {
    /// Makes the operation on every rank of `comm`, each on a device of its own or shared with others, with its window.
    /// Compiles, allocates and maps everything. Collective.
    ///
    /// No wait is longer than the communicator's [`timeout`](Communicator::timeout). `examples/09_moe_device.rs` is a whole
    /// program.
    ///
    /// # Errors
    /// [`GpuMoeError`] on every rank: a config that is none, or not the same everywhere; on one of them too little memory,
    /// no compiler, a transport that does not map device memory.
    pub fn new(
        comm: &Arc<Communicator>,
        device: &Device,
        config: MoeConfig,
        options: &GpuMoeOptions,
        cache: &Cache,
    ) -> Result<Self, GpuMoeError> {
        let by = if config.combine == MoeCombine::Push { MoeCombine::Push } else { MoeCombine::Pull };
        let mut fields = config.fingerprint(by);
        fields.push(("memory", "of devices".to_owned()));
        comm.agree("moe", &fields)?;
        let plan = plan(config, comm.rank(), comm.ranks())?;
        let address = device.pci_address();
        let addresses = together(comm, "moe devices", address.as_ref().map(|address| address.clone().into_bytes()));
        let (address, addresses) = (address?, addresses?);
        let here = comm.local_team();
        let members = comm.team().members().iter().zip(&addresses);
        let on_device = members.filter(|(_, other)| **other == address.as_bytes());
        let sharing = on_device.filter(|(member, _)| here.position(**member).is_some()).count();

        let window = comm.window(plan.bytes(), MemoryKind::Device(device.ordinal()))?;
        let timeout = comm.timeout();
        let deadline = Some(options.deadline.map_or(timeout, |deadline| deadline.min(timeout)));
        let options = GpuMoeOptions { deadline, ..*options };
        let built = Windows::of(window, &plan).and_then(|windows| {
            let watch = Watch::new(comm, device)?;
            Self::build(device, plan, &options, cache, windows, sharing, Some(watch))
        });
        // No rank stores a word before every rank has initialised its own.
        let ready = together(comm, "moe kernels", built.as_ref().map(|_| Vec::new()));
        let built = built?;
        ready?;
        Ok(built)
    }

    /// The operation of as many ranks as there are devices (a device may be several ranks'), for threads of this process
    /// without a communicator. Compiles, allocates and maps everything.
    ///
    /// # Errors
    /// [`GpuMoeError`]: a config that is none, a device without peer access, too little memory, no compiler.
    pub fn in_process(
        devices: &[Device],
        config: &MoeConfig,
        options: &GpuMoeOptions,
        cache: &Cache,
    ) -> Result<Vec<Self>, GpuMoeError> {
        let plans = (0..devices.len()).map(|rank| plan(config.clone(), rank, devices.len()));
        let plans = plans.collect::<Result<Vec<_>, _>>()?;
        let windows = Windows::in_process(devices, &plans)?;
        let ranks = devices.iter().zip(plans).zip(windows).map(|((device, plan), windows)| {
            let sharing = devices.iter().filter(|other| other.ordinal() == device.ordinal()).count();
            Self::build(device, plan, options, cache, windows, sharing, None)
        });
        ranks.collect()
    }

    /// One rank of an operation whose windows are there; `sharing` ranks have this device.
    fn build(
        device: &Device,
        plan: Plan,
        options: &GpuMoeOptions,
        cache: &Cache,
        windows: Windows,
        sharing: usize,
        watch: Option<Watch>,
    ) -> Result<Self, GpuMoeError> {
        let (sets, ranks) = (plan.config().sets as usize, plan.ranks);
        let mut moe = Self {
            device: device.clone(),
            kernels: Kernels::new(device, &plan, [options.dispatch, options.combine], sharing, cache)?,
            state: State::new(device, &plan)?,
            push: match plan.config().combine {
                MoeCombine::Push => Some(Push::new(device, &plan, options, sharing, cache)?),
                _ => None,
            },
            active: vec![true; ranks],
            plan,
            options: *options,
            windows,
            watch,
        };
        moe.begin(&device.stream()?, &vec![options.first; sets], &vec![true; ranks])?;
        Ok(moe)
    }

    /// The plan: sizes, planes, expert maps.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What bounds each wait on the device.
    pub fn deadline(&self) -> Duration {
        self.options.deadline.unwrap_or(DEADLINE)
    }

    /// How results come back: pull or push.
    pub fn combine_by(&self) -> MoeCombine {
        if self.push.is_some() { MoeCombine::Push } else { MoeCombine::Pull }
    }

    /// Whether a config's [`mode`](MoeConfig::mode) can be had for so many ranks: what [`new`](Self::new) would refuse.
    ///
    /// # Errors
    /// [`GpuMoeError::Argument`].
    pub fn check_mode(config: &MoeConfig, ranks: usize) -> Result<(), GpuMoeError> {
        Schedule::of(config, ranks).map(drop)
    }

    /// The schedules of dispatch and combine, which [`MoeMode::Auto`] came to. A combine by push has one, for throughput.
    pub fn schedules(&self) -> [MoeMode; 2] {
        let schedule = self.kernels.schedule;
        [schedule.dispatch, schedule.combine && self.push.is_none()]
            .map(|quick| if quick { MoeMode::LowLatency } else { MoeMode::Throughput })
    }

    /// Geometry of dispatch and combine.
    pub fn grids(&self) -> [Grid; 2] {
        [self.kernels.sending().grid(), self.push.as_ref().map_or(self.kernels.combine.grid(), Push::grid)]
    }

    /// Sends this rank's tokens on `set` and takes in what the others send: one launch. When it is done, the rows stand in
    /// [`rows`](Self::rows), their number by source in [`rows_from`](Self::rows_from), by expert in
    /// [`expert_counts`](Self::expert_counts).
    ///
    /// # Errors
    /// [`GpuMoeError::Argument`] for a row that does not fit its stride, or words that are not aligned; those of the call. What goes wrong on the device
    /// is told by [`check`](Self::check).
    ///
    /// # Safety
    /// The addresses are mapped for this rank's device, with the lengths that [`DeviceTokens`] says, until the stream has
    /// done it; in a graph, at each launch of that. The stream is of this rank's device. Nobody writes the tokens meanwhile.
    pub unsafe fn dispatch(&self, set: Set, stream: &Stream, tokens: &DeviceTokens) -> Result<(), GpuMoeError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_dispatch(set, stream, tokens, SEND | RECEIVE) }
    }

    /// Launches the dispatch, with its send phase.
    ///
    /// # Safety
    /// As [`dispatch`](Self::dispatch).
    unsafe fn launch_dispatch(
        &self,
        set: Set,
        stream: &Stream,
        tokens: &DeviceTokens,
        phases: u32,
    ) -> Result<(), GpuMoeError> {
        let config = self.plan.config();
        self.check_tokens(tokens)?;
        let index_bytes = match tokens.index {
            Index::I32 => 4,
            Index::I64 => 8,
        };
        let vectors = index_bytes == 4 && config.topk.is_multiple_of(4) && tokens.topk_idx.is_multiple_of(16);
        let argument = arguments::Dispatch {
            common: self.common(set)?,
            x: tokens.x,
            x_stride: tokens.stride as u64,
            row_bytes: config.dtype.row_bytes(config.hidden) as u64,
            scales: tokens.scales,
            topk_idx: tokens.topk_idx,
            topk_weights: if config.weighted { tokens.topk_weights } else { 0 },
            tokens: tokens.count,
            expert_rank: self.state.address(&self.state.expert_rank),
            expert_number: self.state.address(&self.state.expert_number),
            expert_counts: self.expert_counts(set),
            scale_count: config.scales as u32,
            experts: config.expert_rank.len() as u32,
            local_experts: self.plan.local_experts() as u32,
            index_bytes,
            index_vectors: u32::from(vectors),
            phases,
            receivers: self.receivers(),
        };
        // SAFETY: own memory, and the caller's promise for the tokens.
        unsafe { self.kernels.sending().launch(stream, &argument)? };
        Ok(())
    }

    /// Gives the results in [`outputs`](Self::outputs) back and sums those for this rank's own tokens, ascending by rank,
    /// in f32, rounded once: one launch. It ends the round.
    ///
    /// # Errors
    /// As [`dispatch`](Self::dispatch).
    ///
    /// # Safety
    /// As [`dispatch`](Self::dispatch), for [`DeviceOut`]. What wrote the results came before it in the stream.
    pub unsafe fn combine(&self, set: Set, stream: &Stream, out: &DeviceOut) -> Result<(), GpuMoeError> {
        // SAFETY: the caller's promise.
        unsafe { self.combine_from(set, stream, DeviceOutputs::InPlace, out) }
    }

    /// Launches the combine by pull, with its receive phase.
    ///
    /// # Safety
    /// As [`combine`](Self::combine).
    unsafe fn launch_combine(
        &self,
        set: Set,
        stream: &Stream,
        out: &DeviceOut,
        phases: u32,
    ) -> Result<(), GpuMoeError> {
        let config = self.plan.config();
        let row_bytes = config.combine_dtype.row_bytes(config.hidden);
        let argument = arguments::Combine {
            common: self.common(set)?,
            out: out.out,
            out_stride: out.stride as u64,
            row_bytes: row_bytes as u64,
            out_weights: out.out_weights,
            tokens: out.count,
            phases,
        };
        // SAFETY: own memory, and the caller's promise for the output.
        unsafe { self.kernels.combine.launch(stream, &argument)? };
        Ok(())
    }

    /// Ends a round without results: one launch. All ranks release it, or all combine.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Safety
    /// The stream is of this rank's device.
    pub unsafe fn release(&self, set: Set, stream: &Stream) -> Result<(), GpuMoeError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_ready(set, stream, Ready::Released) }
    }

    /// Launches the words that give results back, or end a round without.
    ///
    /// # Safety
    /// As [`release`](Self::release).
    unsafe fn launch_ready(&self, set: Set, stream: &Stream, ready: Ready) -> Result<(), GpuMoeError> {
        let argument = arguments::Release { common: self.common(set)?, ready: ready as u32 };
        // SAFETY: own memory.
        unsafe { self.kernels.release.launch(stream, &argument)? };
        Ok(())
    }

    /// Rows that came, `[source][capacity]`.
    pub fn rows(&self, set: Set) -> DevicePlane {
        self.plane(&self.plan.set(set).rows)
    }

    /// Scales of the rows.
    pub fn scales(&self, set: Set) -> DevicePlane {
        self.plane(&self.plan.set(set).scales)
    }

    /// Routing of the rows: source token, K numbers of local experts or −1, K weights, in 4-byte words.
    pub fn meta(&self, set: Set) -> DevicePlane {
        self.plane(&self.plan.set(set).meta)
    }

    /// Where results go.
    pub fn outputs(&self, set: Set) -> DevicePlane {
        self.plane(&self.plan.set(set).outputs)
    }

    /// Rows that came from each source in the open round: `[R]` u32 on the device.
    pub fn rows_from(&self, set: Set) -> Address {
        self.state.address(&self.state.set(set).rows_from)
    }

    /// Rows that came for each local expert, a token counting once for each of its slots: `[local experts]` u32 on the
    /// device.
    pub fn expert_counts(&self, set: Set) -> Address {
        self.state.address(&self.state.set(set).expert_counts)
    }

    fn plane(&self, region: &campanile_core::ArenaRegion) -> DevicePlane {
        let own = self.windows.addresses()[self.plan.rank];
        DevicePlane { address: own + region.offset as Address, stride: region.stride }
    }

    /// Blocks of a dispatch that take in what comes.
    fn receivers(&self) -> u32 {
        let plan = &self.kernels.dispatch;
        self.options.receivers.unwrap_or(kernels::RECEIVERS).min(plan.resident()).min(plan.grid().blocks).max(1)
    }

    /// What every kernel is given, once it may be launched.
    fn common(&self, set: Set) -> Result<arguments::Common, GpuMoeError> {
        self.check_launch()?;
        let config = self.plan.config();
        if set.0 >= config.sets {
            return Err(GpuMoeError::Argument {
                what: "set",
                given: set.0.to_string(),
                allowed: format!("the operation has {}, numbered from 0", config.sets),
            });
        }
        let (planes, regions) = (self.plan.set(set), self.state.set(set));
        let mut near = [0; arguments::NEAR];
        for (near, window) in near.iter_mut().zip(self.windows.addresses()) {
            *near = *window;
        }
        let line = self.plan.word_map.offset(set, 0, Word::Meta);
        Ok(arguments::Common {
            near,
            windows: self.state.address(&self.state.windows),
            words: (self.plan.words.offset + line) as u64,
            rows: planes.rows.offset as u64,
            scales: planes.scales.offset as u64,
            meta: planes.meta.offset as u64,
            outputs: planes.outputs.offset as u64,
            row_stride: planes.rows.stride as u64,
            scale_stride: planes.scales.stride as u64,
            meta_stride: planes.meta.stride as u64,
            output_stride: planes.outputs.stride as u64,
            state: self.state.address(&regions.state),
            sent: self.state.address(&regions.sent),
            came: self.state.address(&regions.came),
            rows_to: self.state.address(&regions.rows_to),
            rows_from: self.state.address(&regions.rows_from),
            routes: self.state.address(&regions.routes),
            active: self.state.address(&self.state.active),
            failed: self.state.address(&self.state.failed),
            abort: self.state.abort_address(),
            record: self.state.record_address(),
            deadline: self.deadline().as_nanos().min(u128::from(u64::MAX / 2)) as u64,
            rank: self.plan.rank as u32,
            ranks: self.plan.ranks as u32,
            capacity: config.capacity as u32,
            topk: config.topk as u32,
            route_slots: config.topk.min(self.plan.ranks) as u32,
            weighted: u32::from(config.weighted),
            set: set.0,
        })
    }
}

/// The plan of an operation on devices, which reach each other by load / store.
fn plan(config: MoeConfig, rank: usize, ranks: usize) -> Result<Plan, PlanError> {
    let push = config.combine == MoeCombine::Push;
    Plan::new(config, rank, ranks, PlanPaths { push, staged: false })
}

/// Tells the others what this rank has, or that it failed; what all have, or the error of one that failed. Collective.
fn together<E: std::fmt::Display>(
    comm: &Communicator,
    what: &'static str,
    mine: Result<Vec<u8>, &E>,
) -> Result<Vec<Vec<u8>>, CommError> {
    let message = match mine {
        Ok(value) => [b"+", value.as_slice()].concat(),
        Err(error) => format!("-{error}").into_bytes(),
    };
    let all = comm.gather(what, &message)?;
    if let Some((position, reason)) =
        all.iter().enumerate().find_map(|(at, message)| Some((at, message.strip_prefix(b"-")?)))
    {
        let (peer, reason) = (comm.team().member(position), String::from_utf8_lossy(reason).into_owned());
        return Err(CommError::Peer { what: what.to_owned(), peer, reason });
    }
    Ok(all.into_iter().map(|message| message[1..].to_vec()).collect())
}
