//! The MoE operation on the GPUs of this machine: held against the model bit for bit, then timed.
//!
//! ```console
//! $ cargo run --release -p campanile-moe --example moe_gpu -- cuda          # or hip, emulator: check, then bench
//! $ target/release/examples/moe_gpu cuda check
//! $ target/release/examples/moe_gpu cuda bench --ranks 2 --receivers 8
//! $ target/release/examples/moe_gpu cuda push                          # combine by push, and by how many blocks
//! $ target/release/examples/moe_gpu cuda layouts
//! $ target/release/examples/moe_gpu cuda soak --rounds 100000 --ranks 4
//! ```
//!
//! Ranks are threads, one a GPU unless `--ranks` says otherwise: then they take the GPUs in turn, with fewer blocks each.
//! The binary carries the kernels; the machine needs its driver and run-time compiler. The last line of a benchmark is
//! JSON.

mod bench;
mod case;
mod layouts;
mod soak;

use std::process::ExitCode;
use std::time::Instant;

use campanile_core::{Config, MoeCombine, MoeMode};
use campanile_gpu::{Backend, Cache, Device, Emulation, Gpu, Pins, Settings};
use campanile_moe::exchange::Layout;
use campanile_moe::gpu::GpuMoeOptions;

use case::{Case, Result};

const USAGE: &str = "a backend is needed: cuda, hip or emulator; then check, bench, push, layouts, soak or nothing; \
                     then --ranks, --rounds, --receivers, --tokens, or --wave of the emulator, with a number each";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match Job::parse(&arguments).and_then(|job| job.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("moe_gpu: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What the command line asks for.
#[derive(Default)]
struct Job {
    backend: String,
    arm: Option<String>,
    ranks: Option<usize>,
    rounds: Option<usize>,
    receivers: Option<u32>,
    tokens: Option<usize>,
    wave: Option<u32>,
}

impl Job {
    fn parse(arguments: &[&str]) -> Result<Self> {
        let mut job = Self::default();
        let mut rest = arguments.iter();
        job.backend = (*rest.next().ok_or(USAGE)?).to_owned();
        while let Some(&argument) = rest.next() {
            if ["check", "bench", "push", "layouts", "soak"].contains(&argument) && job.arm.is_none() {
                job.arm = Some(argument.to_owned());
                continue;
            }
            let number = rest.next().and_then(|number| number.parse().ok()).filter(|&number: &usize| number > 0);
            match argument {
                "--ranks" => job.ranks = Some(number.ok_or(USAGE)?),
                "--rounds" => job.rounds = Some(number.ok_or(USAGE)?),
                "--tokens" => job.tokens = Some(number.ok_or(USAGE)?),
                "--receivers" => job.receivers = Some(number.ok_or(USAGE)? as u32),
                "--wave" => job.wave = Some(number.ok_or(USAGE)? as u32),
                _ => return Err(USAGE.into()),
            }
        }
        Ok(job)
    }

    fn run(&self) -> Result<()> {
        let settings = Settings::from(&Config::load(std::env::vars_os(), None)?);
        let gpu = match self.backend.as_str() {
            "cuda" => Gpu::open(Backend::Cuda, &settings)?,
            "hip" => Gpu::open(Backend::Hip, &settings)?,
            "emulator" => {
                let wave = self.wave.unwrap_or(32);
                Gpu::emulator(Emulation { devices: 2, wave, ..Emulation::default() }, &settings)?
            }
            other => return Err(format!("backend {other:?}; allowed are cuda, hip and emulator").into()),
        };
        let devices = gpu.devices()?;
        let cache = Cache::new(&settings);
        println!("{}, {} devices of {}", gpu.version()?, devices.len(), devices[0].name()?);
        let count = self.ranks.unwrap_or(devices.len());
        let ranks: Vec<Device> = devices.iter().cycle().take(count).cloned().collect();
        let sharing = count.div_ceil(devices.len()) as u32;
        let options = GpuMoeOptions { receivers: self.receivers, ..GpuMoeOptions::default() };
        let small = self.backend == "emulator";
        // Blocks of all ranks together fit on a device: those of a combine wait for the others' first blocks.
        let blocks = (devices[0].multiprocessors() / sharing).clamp(1, 16);
        let pins = Pins { blocks: Some(blocks), threads: Some(256), shared_bytes: None };
        let few = GpuMoeOptions { dispatch: pins, combine: pins, ..options };
        let counts = match self.tokens {
            Some(tokens) => vec![tokens],
            None if small => vec![16, 1],
            None => vec![4096, 128, 16, 1],
        };
        match self.arm.as_deref() {
            Some("check") => check_grid(&devices, &cache, small),
            Some("bench") => bench::run(&ranks, sharing, &options, &cache, &counts, small, MoeCombine::Pull),
            Some("push") => bench::run(&ranks, sharing, &options, &cache, &counts, small, MoeCombine::Push),
            Some("layouts") => layouts::run(&ranks, if sharing > 1 { &few } else { &options }, &cache, small),
            Some("soak") => {
                let rounds = self.rounds.unwrap_or(if small { 20 } else { 100_000 });
                [MoeMode::Throughput, MoeMode::LowLatency].into_iter().try_for_each(|mode| {
                    let start = Instant::now();
                    soak::run(&ranks, mode, &few, &cache, rounds)?;
                    let seconds = start.elapsed().as_secs_f64();
                    println!(
                        "{count} ranks, {mode}: {rounds} rounds by graph replay, every element right, {seconds:.1} s"
                    );
                    Ok(())
                })
            }
            _ => {
                check_grid(&devices, &cache, small)?;
                bench::run(&ranks, sharing, &options, &cache, &counts, small, MoeCombine::Pull)
            }
        }
    }
}

/// Every case with every number of ranks that there are GPUs for, and twice as many with a few blocks each; by pull and by
/// push, in every layout. GPUs run each in both schedules; the emulator, where that would take long, every other case in one
/// and the rest in the other.
fn check_grid(devices: &[Device], cache: &Cache, small: bool) -> Result<()> {
    for ranks in 1..=devices.len() {
        check_cases(&devices[..ranks], &GpuMoeOptions::default(), cache, small)?;
    }
    let twice: Vec<Device> = devices.iter().chain(devices).cloned().collect();
    let pins = Pins { blocks: Some(8), threads: Some(256), shared_bytes: None };
    check_cases(&twice, &GpuMoeOptions { dispatch: pins, combine: pins, ..GpuMoeOptions::default() }, cache, small)
}

fn check_cases(devices: &[Device], options: &GpuMoeOptions, cache: &Cache, small: bool) -> Result<()> {
    let ranks = devices.len();
    let schedules = [MoeMode::Throughput, MoeMode::Auto];
    for combine in [MoeCombine::Pull, MoeCombine::Push] {
        for (turn, layout) in Layout::ALL.into_iter().enumerate() {
            let cases = [Case::all(ranks), Case::types(ranks)].concat();
            for (number, case) in cases.iter().enumerate() {
                for again in 0..if small { 1 } else { schedules.len() } {
                    let (mode, copied) = (schedules[(number + turn + again) % 2], number % 3 != 2);
                    Case { mode, combine, layout, copied, ..case.clone() }.check(devices, options, cache, 3)?;
                }
            }
            println!(
                "{ranks} ranks, {combine}, {}: {} cases of 3 rounds{}, every bit as the model",
                layout.name(),
                cases.len(),
                if small { "" } else { " in both schedules" },
            );
        }
    }
    Ok(())
}
