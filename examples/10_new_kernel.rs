//! A kernel that communicates, written once: an all-gather in 30 lines, on whatever way the transport has to its peers.
//!
//! The kernel (`10_new_kernel.cpp`) knows put, signal and wait, and names no transport. It is compiled here with the device
//! code of the one that was chosen: P2P, which maps windows, unless `CAMPANILE_TRANSPORT` says another, such as a file whose
//! header brings queues. The window, the words and the deadline come with a `DeviceCommunicator`.
//!
//! Without a GPU the CPU emulates some. Its kernels are built by the C++ compiler of the machine.
//!
//! `cargo run -p campanile-examples --example 10_new_kernel`

use std::error::Error;
use std::sync::Arc;

use campanile::collectives::gpu::GpuBarrier;
use campanile::core::selection::Preference;
use campanile::core::{Arena, Source as Origin};
use campanile::gpu::view::{CommunicatorView, RegionView};
use campanile::gpu::{
    Cache, Compile, Device, DeviceCommunicator, Gpu, Grid, Plan, Residency, Settings, Source, has_compiler,
};
use campanile::{Barrier, Communicator, GpuChoice, Plugins, configuration, threads_over};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const RANKS: usize = 3;
/// Bytes of a rank's block.
const BLOCK: usize = 4100;
const ROUNDS: u64 = 5;

/// The argument of the kernel, as it stands in its source.
#[derive(Clone, Copy)]
#[repr(C)]
struct AllGather {
    comm: CommunicatorView,
    blocks: RegionView,
    bytes: u64,
    round: u64,
}

fn main() -> Result<()> {
    let config = configuration()?;
    let config = match config.source("CAMPANILE_TRANSPORT") {
        Some(Origin::Default) => config.with_transport(Preference::of(["p2p"]).expect("one name"))?,
        _ => config,
    };
    let settings = Settings::from(&config);
    let config = match Gpu::choose(config.gpu(), &settings) {
        Ok(_) => config,
        Err(_) => config.with_gpu(GpuChoice::Emulator)?,
    };
    let gpu = Gpu::choose(config.gpu(), &settings)?;
    if !has_compiler(&gpu) {
        println!("skipped: {} has no compiler for kernels on this machine", gpu.backend());
        return Ok(());
    }
    let cache = Cache::new(&settings);
    let plugins = Plugins::of(&config)?;
    let ranks = threads_over(&plugins, RANKS, &plugins.options(&config)?, |comm| {
        let device = gpu.device(comm.device().ok_or("this transport has no devices")?)?;
        Ok::<_, Box<dyn Error + Send + Sync>>((comm.transport().info(), run(&comm, &device, &cache)?))
    });
    for (rank, ended) in ranks.into_iter().enumerate() {
        let (transport, gathered) = ended?;
        let form = transport.device_code.map_or("none".to_owned(), |code| code.form.to_string());
        println!("rank {rank}, {}, form {form}: {gathered:?}", transport.name);
    }
    Ok(())
}

/// One rank: what each block begins with at the end.
fn run(job: &Arc<Communicator>, device: &Device, cache: &Cache) -> Result<Vec<u8>> {
    let rank = job.rank();
    let mut arena = Arena::new();
    let blocks = arena.carve("blocks", "bytes", BLOCK.next_multiple_of(16), RANKS)?;
    // A word for the signals of each peer, and as many for the barrier.
    let comm = Arc::new(DeviceCommunicator::new(job, device, &arena, 2 * RANKS)?);
    let barrier = GpuBarrier::new(&comm, job.team(), RANKS as u32, cache)?;
    let source = Source::new("10_new_kernel.cpp", include_str!("10_new_kernel.cpp"));
    let module = comm.compile(&source, &Compile::default(), cache)?;
    let grid = Grid { blocks: 2, threads: 128, shared_bytes: 0 };
    let plan = Plan::<AllGather>::new(&module, "all_gather", grid, Residency::Any)?;

    let (stream, window) = (device.stream()?, comm.part(&blocks)?);
    let mut all = vec![0; blocks.bytes()];
    // Ranks may share a device, and what loads or allocates there waits for a kernel that waits for this rank.
    Barrier::new(job)?.wait()?;
    for round in 1..=ROUNDS {
        stream.upload(&window, blocks.stride * rank, &block(rank, round))?;
        let argument = AllGather { comm: comm.view(), blocks: RegionView::from(&blocks), bytes: BLOCK as u64, round };
        // SAFETY: the window lives until the stream has been waited for.
        unsafe { plan.launch(&stream, &argument)? };
        stream.synchronize(job.timeout())?;
        if let Some(failure) = comm.failure() {
            return Err(failure.to_string().into());
        }
        stream.download(&window, 0, &mut all)?;
        for (peer, came) in all.chunks(blocks.stride).enumerate() {
            assert_eq!(came[..BLOCK], block(peer, round), "round {round}: the block of rank {peer} at rank {rank}");
        }
        // Nobody puts the next round over what somebody still reads.
        // SAFETY: the barrier lives until the stream has been waited for.
        unsafe { barrier.enter(&stream)? };
    }
    stream.synchronize(job.timeout())?;
    barrier.check()?;
    Ok(all.chunks(blocks.stride).map(|block| block[0]).collect())
}

/// What a rank gives.
fn block(rank: usize, round: u64) -> Vec<u8> {
    (0..BLOCK).map(|at| (at / 256 + at * 7 + rank * 50 + round as usize) as u8).collect()
}
