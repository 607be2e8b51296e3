//! Tries everything that `campanile-gpu` offers on the devices of this machine, and prints what passed.
//!
//! ```console
//! $ cargo run -p campanile-gpu --example selftest -- cuda     # or hip, emulator, emulator32
//! ```
//!
//! The binary carries the kernels; a machine with GPUs needs its driver and its run-time compiler (NVRTC, hipRTC). The
//! tests of the crate run it on the emulator and, through a shim of HIP, on the call table's HIP side.

mod arguments;
mod kernels;
mod memory;
mod processes;
mod streams;

use std::process::ExitCode;
use std::time::Duration;

use campanile_core::Config;
use campanile_gpu::{Backend, Cache, Compile, Device, Emulation, Gpu, Grid, Module, Plan, Residency, Settings, Source};

/// What a check says: what was seen, or why it could not run here.
enum Outcome {
    Passed(String),
    NotRun(String),
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Bounds every wait of the checks.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the checks run on.
struct Bench {
    /// How the backend was named on the command line: children get the same.
    backend: String,
    device: Device,
    /// Another device, if there is one.
    peer: Option<Device>,
    module: Module,
    cache: Cache,
}

impl Bench {
    fn open(backend: &str, ordinal: u32) -> Result<Self> {
        let settings = Settings::from(&Config::load(std::env::vars_os(), None)?);
        let gpu = match backend {
            "cuda" => Gpu::open(Backend::Cuda, &settings)?,
            "hip" => Gpu::open(Backend::Hip, &settings)?,
            "emulator" => Gpu::emulator(Emulation::default(), &settings)?,
            // The order of turns drawn, so that both are tried.
            "emulator32" => Gpu::emulator(Emulation { wave: 32, schedule: 7, ..Emulation::default() }, &settings)?,
            other => return Err(format!("backend {other:?}; allowed are cuda, hip, emulator, emulator32").into()),
        };
        let cache = Cache::new(&settings);
        let device = gpu.device(ordinal)?;
        let peer = gpu.devices()?.into_iter().find(|other| other.ordinal() != ordinal);
        let module = device.compile(&Source::smoke(), &Compile::default(), &cache)?;
        Ok(Self { backend: backend.to_owned(), device, peer, module, cache })
    }

    /// The same on another device.
    fn on(&self, device: &Device) -> Result<Self> {
        let module = device.compile(&Source::smoke(), &Compile::default(), &self.cache)?;
        let (backend, cache) = (self.backend.clone(), self.cache.clone());
        Ok(Self { backend, device: device.clone(), peer: Some(self.device.clone()), module, cache })
    }

    /// A kernel of the smoke tests.
    fn plan<A: Copy>(&self, kernel: &str, blocks: u32, threads: u32, residency: Residency) -> Result<Plan<A>> {
        let grid = Grid { blocks, threads, shared_bytes: 0 };
        Ok(Plan::new(&self.module, kernel, grid, residency)?)
    }
}

/// A check: its name and what it does.
type Check = (&'static str, fn(&Bench) -> Result<Outcome>);

const CHECKS: &[Check] = &[
    ("devices", kernels::devices),
    ("compile", kernels::compile),
    ("lanes", kernels::lanes),
    ("words", kernels::atomics),
    ("copy kernel", kernels::copy),
    ("argument size", kernels::argument_size),
    ("residency", kernels::residency),
    ("grid barrier", kernels::barrier),
    ("put and signal", kernels::put_signal),
    ("pull", kernels::pull),
    ("deadline", kernels::deadline),
    ("abort", kernels::abort),
    ("plain memory", memory::plain),
    ("coherence", memory::coherence),
    ("virtual memory", memory::virtual_memory),
    ("pinned memory", memory::pinned),
    ("peer memory", memory::peer),
    ("events", streams::events),
    ("stream words", streams::words),
    ("graph", streams::graph),
    ("processes", processes::processes),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ran = match arguments[..] {
        ["child", backend, ordinal, address] => processes::child(backend, ordinal, address).map(|()| true),
        [backend] => run(backend),
        _ => Err("one argument is needed: cuda, hip, emulator or emulator32".into()),
    };
    match ran {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("selftest: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all checks; whether none failed.
fn run(backend: &str) -> Result<bool> {
    let bench = Bench::open(backend, 0)?;
    println!("{}", bench.device.gpu().version()?);
    let mut failed = 0;
    for (name, check) in CHECKS {
        match check(&bench) {
            Ok(Outcome::Passed(seen)) => println!("passed   {name}: {seen}"),
            Ok(Outcome::NotRun(reason)) => println!("not run  {name}: {reason}"),
            Err(error) => {
                failed += 1;
                println!("FAILED   {name}: {error}");
            }
        }
    }
    println!("{} checks, {failed} failed", CHECKS.len());
    Ok(failed == 0)
}

/// Fails a check.
fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(what().into()) }
}

/// `bytes` bytes that depend on `seed`.
fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|i| (i.wrapping_mul(167) >> 3) as u8 ^ seed).collect()
}
