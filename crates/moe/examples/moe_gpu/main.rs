//! The MoE operation on the GPUs of this machine: held against the model bit for bit, then timed.
//!
//! ```console
//! $ cargo run --release -p campanile-moe --example moe_gpu -- cuda     # or hip, emulator; then check, bench, push, layouts or nothing
//! ```
//!
//! Ranks are threads, one a GPU. The binary carries the kernels; the machine needs its driver and run-time compiler. The
//! last line is JSON.

mod bench;
mod case;
mod layouts;

use std::process::ExitCode;

use campanile_core::{Config, MoeCombine};
use campanile_gpu::{Backend, Cache, Device, Emulation, Gpu, Pins, Settings};
use campanile_moe::exchange::Layout;
use campanile_moe::gpu::GpuMoeOptions;

use case::{Case, Result};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ran = match arguments[..] {
        [backend] => run(backend, &PARTS),
        [backend, part] if PARTS.contains(&part) => run(backend, &[part]),
        _ => Err(format!("a backend is needed: cuda, hip or emulator; then one of {PARTS:?}, or nothing").into()),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("moe_gpu: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What can be asked for: `check` holds all against the model, `bench` times dispatch and combine by pull, `push` the same by
/// push, `layouts` what else a receiver may want.
const PARTS: [&str; 4] = ["check", "bench", "push", "layouts"];

fn run(backend: &str, parts: &[&str]) -> Result<()> {
    let settings = Settings::from(&Config::load(std::env::vars_os(), None)?);
    let gpu = match backend {
        "cuda" => Gpu::open(Backend::Cuda, &settings)?,
        "hip" => Gpu::open(Backend::Hip, &settings)?,
        "emulator" => Gpu::emulator(Emulation { devices: 2, wave: 32, ..Emulation::default() }, &settings)?,
        other => return Err(format!("backend {other:?}; allowed are cuda, hip and emulator").into()),
    };
    let devices = gpu.devices()?;
    let cache = Cache::new(&settings);
    println!("{}, {} devices of {}", gpu.version()?, devices.len(), devices[0].name()?);
    let small = backend == "emulator";
    for part in parts {
        match *part {
            "check" => check_grid(&devices, &cache)?,
            "bench" => bench::run(&devices, &cache, small, MoeCombine::Pull)?,
            "push" => bench::run(&devices, &cache, small, MoeCombine::Push)?,
            _ => layouts::run(&devices, &cache, small)?,
        }
    }
    Ok(())
}

/// Every case with every number of ranks that there are GPUs for, and twice as many with a few blocks each; by pull and by
/// push, in every layout.
fn check_grid(devices: &[Device], cache: &Cache) -> Result<()> {
    for ranks in 1..=devices.len() {
        check_cases(&devices[..ranks], &GpuMoeOptions::default(), cache)?;
    }
    let twice: Vec<Device> = devices.iter().chain(devices).cloned().collect();
    let pins = Pins { blocks: Some(8), threads: Some(256), shared_bytes: None };
    check_cases(&twice, &GpuMoeOptions { dispatch: pins, combine: pins, ..GpuMoeOptions::default() }, cache)
}

fn check_cases(devices: &[Device], options: &GpuMoeOptions, cache: &Cache) -> Result<()> {
    let ranks = devices.len();
    for combine in [MoeCombine::Pull, MoeCombine::Push] {
        for layout in Layout::ALL {
            for (number, case) in Case::all(ranks).into_iter().enumerate() {
                Case { combine, layout, copied: number % 3 != 2, ..case }.check(devices, options, cache, 3)?;
            }
            let cases = Case::all(ranks).len();
            println!("{ranks} ranks, {combine}, {}: {cases} cases of 3 rounds, every bit as the model", layout.name());
        }
    }
    Ok(())
}
