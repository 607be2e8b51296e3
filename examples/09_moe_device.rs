//! Mixture of experts on GPUs: dispatch, experts that are a kernel of one's own, combine, all on one stream.
//!
//! Each of two ranks has a GPU and a few tokens in its memory. Dispatch stores every token into the windows of the ranks
//! that own its experts; the experts, a kernel that is compiled here for whatever device there is, read the rows where they
//! arrived and leave their results beside them; combine pulls those and sums them. The host launches, and waits once, at the
//! end: how many rows came, and which, is read on the device.
//!
//! Without a GPU the CPU emulates two. Its kernels are built by the C++ compiler of the machine.
//!
//! `cargo run -p campanile-examples --example 09_moe_device`

use std::error::Error;

use campanile::core::selection::Preference;
use campanile::gpu::{
    Address, Cache, Coherence, Compile, Device, DeviceMemory, Gpu, Grid, Plan, Residency, Settings, Source,
    has_compiler,
};
use campanile::moe::gpu::{DeviceOut, DeviceTokens, Index};
use campanile::{
    Barrier, Communicator, DType, GpuChoice, GpuMoe, GpuMoeOptions, MoeConfig, Plugins, Problem, Set, configuration,
    threads_over,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const RANKS: usize = 2;
const EXPERTS: usize = 4;
const TOKENS: usize = 6;
const HIDDEN: usize = 16;
const TOPK: usize = 2;
const ROUNDS: usize = 3;

/// Expert e multiplies by e + 1. A row stands for all slots of its token that live on this rank, and its result is their
/// sum; the weights are applied here.
const EXPERT_SOURCE: &str = r#"
#include "portable.h"
using namespace campanile;

struct Arguments {
  const u8* rows;   // [source][capacity] rows of f32
  const u8* meta;   // of each row: source token, K numbers of local experts or -1, K weights
  u8* outputs;      // where results go, as the rows
  const u32* came;  // [source] rows that came from each rank
  u64 row_stride, meta_stride, output_stride;
  u32 ranks, capacity, hidden, topk, first_expert;
};

CAMPANILE_KERNEL(experts, 256, Arguments, a) {
  for (u32 source = 0; source < a.ranks; source++)
    for (u64 i = grid_thread_index(); i < u64{a.came[source]} * a.hidden; i += grid_threads()) {
      const u64 row = u64{source} * a.capacity + i / a.hidden, element = i % a.hidden;
      const int* numbers = reinterpret_cast<const int*>(a.meta + row * a.meta_stride) + 1;
      const float* weights = reinterpret_cast<const float*>(numbers + a.topk);
      float factor = 0;
      for (u32 slot = 0; slot < a.topk; slot++)
        if (numbers[slot] >= 0) factor += weights[slot] * (a.first_expert + numbers[slot] + 1);
      const float x = reinterpret_cast<const float*>(a.rows + row * a.row_stride)[element];
      reinterpret_cast<float*>(a.outputs + row * a.output_stride)[element] = factor * x;
    }
}
"#;

/// The argument of the kernel, as it stands in its source.
#[derive(Clone, Copy)]
#[repr(C)]
struct Experts {
    rows: Address,
    meta: Address,
    outputs: Address,
    came: Address,
    row_stride: u64,
    meta_stride: u64,
    output_stride: u64,
    ranks: u32,
    capacity: u32,
    hidden: u32,
    topk: u32,
    first_expert: u32,
}

fn main() -> Result<()> {
    // The GPUs that CAMPANILE_GPU allows, else emulated ones; ranks meet over the transport that maps their memory.
    let config = configuration()?.with_transport(Preference::of(["p2p"]).expect("one name"))?;
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
        run(&comm, &device, &cache)
    });
    let rows: Vec<_> = ranks.into_iter().collect::<Result<_>>()?;
    println!("rows that came to each rank: {rows:?}; {} tokens with {TOPK} experts each went out", RANKS * TOKENS);
    println!("every result is the weighted sum of what the token's experts made of it");
    Ok(())
}

/// One rank: three rounds, and what came in the last of them.
fn run(comm: &std::sync::Arc<Communicator>, device: &Device, cache: &Cache) -> Result<usize> {
    let rank = comm.rank();
    let config = MoeConfig {
        dtype: DType::F32,
        combine_dtype: DType::F32,
        ..MoeConfig::new(TOKENS, HIDDEN, TOPK, Problem::block_map(EXPERTS, RANKS))
    };
    // Made once, by all ranks together: it compiles, allocates and maps. Nothing below does but the caller's own.
    let moe = GpuMoe::new(comm, device, config, &GpuMoeOptions::default(), cache)?;
    let source = Source::new("experts.cpp", EXPERT_SOURCE);
    let module = device.compile(&source, &Compile::default(), cache)?;
    let grid = Grid { blocks: 2, threads: 256, shared_bytes: 0 };
    let experts = Plan::<Experts>::new(&module, "experts", grid, Residency::Any)?;

    let stream = device.stream()?;
    let upload = |bytes: Vec<u8>| -> Result<DeviceMemory> {
        let memory = device.allocate(bytes.len(), Coherence::Coarse)?;
        stream.upload(&memory, 0, &bytes)?;
        Ok(memory)
    };
    let (x, topk_idx, topk_weights) = tokens(rank);
    let count = upload((TOKENS as u32).to_ne_bytes().to_vec())?;
    let x = upload(x.iter().flat_map(|x| x.to_ne_bytes()).collect())?;
    let topk_idx = upload(topk_idx.iter().flat_map(|expert| expert.to_ne_bytes()).collect())?;
    let topk_weights = upload(topk_weights.iter().flat_map(|weight| weight.to_ne_bytes()).collect())?;
    let out = upload(vec![0; TOKENS * HIDDEN * 4])?;
    let tokens = DeviceTokens {
        count: count.address(),
        x: x.address(),
        stride: HIDDEN * 4,
        scales: 0,
        topk_idx: topk_idx.address(),
        index: Index::I32,
        topk_weights: topk_weights.address(),
    };
    let results = DeviceOut { count: count.address(), out: out.address(), stride: HIDDEN * 4, out_weights: 0 };

    // Ranks may share a device, and what loads or allocates there waits for a kernel that waits for this rank.
    Barrier::new(comm)?.wait()?;
    for round in 0..ROUNDS {
        // Two sets in turn: no round waits for the last one's results to be read.
        let set = Set(round as u32 % 2);
        let (rows, meta, outputs) = (moe.rows(set), moe.meta(set), moe.outputs(set));
        let argument = Experts {
            rows: rows.address,
            meta: meta.address,
            outputs: outputs.address,
            came: moe.rows_from(set),
            row_stride: rows.stride as u64,
            meta_stride: meta.stride as u64,
            output_stride: outputs.stride as u64,
            ranks: RANKS as u32,
            capacity: TOKENS as u32,
            hidden: HIDDEN as u32,
            topk: TOPK as u32,
            first_expert: (rank * EXPERTS / RANKS) as u32,
        };
        // SAFETY: the memories have the lengths of the config, and live until `finish` has waited for the stream.
        unsafe {
            moe.dispatch(set, &stream, &tokens)?;
            experts.launch(&stream, &argument)?;
            moe.combine(set, &stream, &results)?;
        }
    }
    // The only wait. A rank that died meanwhile would be named here, on every other.
    moe.finish(&stream, comm.timeout())?;

    let mut bytes = vec![0; TOKENS * HIDDEN * 4];
    stream.download(&out, 0, &mut bytes)?;
    let out: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|y| f32::from_ne_bytes(*y)).collect();
    assert_eq!(out, expected(rank));
    Ok(moe.read_rows_from(Set((ROUNDS as u32 - 1) % 2), &stream)?.iter().sum())
}

/// Tokens of a rank with their experts and weights; small numbers, so that every sum is exact.
fn tokens(rank: usize) -> (Vec<f32>, Vec<i32>, Vec<f32>) {
    let x = (0..TOKENS * HIDDEN).map(|element| element as f32 + 1000.0 * rank as f32).collect();
    // Two neighbours, which often live on one rank. The last token uses one expert only.
    let expert = |token: usize| {
        let second = if token == TOKENS - 1 { -1 } else { ((rank + token + 1) % EXPERTS) as i32 };
        [((rank + token) % EXPERTS) as i32, second]
    };
    (x, (0..TOKENS).flat_map(expert).collect(), [0.5, 0.25].repeat(TOKENS))
}

/// What must come out, without any exchange.
fn expected(rank: usize) -> Vec<f32> {
    let (x, topk_idx, topk_weights) = tokens(rank);
    let sum = |token: usize| -> f32 {
        let slots = token * TOPK..(token + 1) * TOPK;
        let valid = slots.filter(|slot| topk_idx[*slot] >= 0);
        valid.map(|slot| topk_weights[slot] * (topk_idx[slot] + 1) as f32).sum()
    };
    x.iter().enumerate().map(|(element, x)| sum(element / HIDDEN) * x).collect()
}
