//! The MoE operation on the GPUs of this machine: held against the model bit for bit, then timed.
//!
//! ```console
//! $ cargo run --release -p campanile-moe --example moe_gpu -- cuda     # or hip, emulator; then check, bench or nothing
//! ```
//!
//! Ranks are threads, one a GPU. The binary carries the kernels; the machine needs its driver and run-time compiler. The
//! last line is JSON.

mod bench;
mod case;

use std::process::ExitCode;

use campanile_core::Config;
use campanile_gpu::{Backend, Cache, Device, Emulation, Gpu, Pins, Settings};
use campanile_moe::gpu::GpuMoeOptions;

use case::{Case, Result};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ran = match arguments[..] {
        [backend] => run(backend, true, true),
        [backend, "check"] => run(backend, true, false),
        [backend, "bench"] => run(backend, false, true),
        _ => Err("a backend is needed: cuda, hip or emulator; then check, bench or nothing".into()),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("moe_gpu: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(backend: &str, check: bool, bench: bool) -> Result<()> {
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
    if check {
        check_grid(&devices, &cache)?;
    }
    if bench {
        bench::run(&devices, &cache, backend == "emulator")?;
    }
    Ok(())
}

/// Every case with every number of ranks that there are GPUs for, and twice as many with a few blocks each.
fn check_grid(devices: &[Device], cache: &Cache) -> Result<()> {
    for ranks in 1..=devices.len() {
        let cases = [Case::all(ranks), Case::types(ranks)].concat();
        for case in &cases {
            case.check(&devices[..ranks], &GpuMoeOptions::default(), cache, 3)?;
        }
        println!("{ranks} ranks: {} cases of 3 rounds, every bit as the model", cases.len());
    }
    let twice: Vec<Device> = devices.iter().chain(devices).cloned().collect();
    let pins = Pins { blocks: Some(8), threads: Some(256), shared_bytes: None };
    let options = GpuMoeOptions { dispatch: pins, combine: pins, ..GpuMoeOptions::default() };
    for case in Case::all(twice.len()) {
        case.check(&twice, &options, cache, 3)?;
    }
    println!("{} ranks, two a GPU: every bit as the model", twice.len());
    Ok(())
}
