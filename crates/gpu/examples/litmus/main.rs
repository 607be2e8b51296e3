//! Does memory keep the order that the kernels rely on? A litmus program for the machine it runs on.
//!
//! ```console
//! $ cargo run --release -p campanile-gpu --example litmus -- hip          # or cuda, emulator, emulator32
//! $ target/release/examples/litmus hip --rounds 100000 --devices two
//! ```
//!
//! A writer and a reader pass rows back and forth, on one device (two streams) and on two. *Must hold* are the rules as the
//! kernels use them: one wrong row, and the exit status is 1. *May fail* are the same with one rule left out, or in memory
//! of another kind: how often they fail says what the rule is worth here, and nothing else depends on it. A rule may be
//! left out without harm on one machine and not on another; the emulator shows nothing of caches. The last line is JSON.
//!
//! `--devices one|two|all` and `--case TEXT` (a part of a case's name) choose; `--rounds N`, `--blocks N`, `--rows N` say
//! how much.

mod case;

use std::process::ExitCode;

use campanile_core::Config;
use campanile_gpu::{Backend, Cache, Device, Emulation, Gpu, Settings};
use serde_json::json;

use case::{Case, Kernels, Size};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The command line.
struct Options {
    backend: String,
    devices: String,
    case: String,
    rounds: Option<u32>,
    blocks: Option<u32>,
    rows: Option<u64>,
}

const USAGE: &str = "litmus cuda|hip|emulator|emulator32 [--devices one|two|all] [--case TEXT] [--rounds N] [--blocks N] \
                     [--rows N]";

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let backend = arguments.next().ok_or(USAGE)?;
        let (devices, case) = ("all".to_owned(), String::new());
        let mut options = Self { backend, devices, case, rounds: None, blocks: None, rows: None };
        while let Some(option) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{option} needs a value; {USAGE}"))?;
            match &*option {
                "--devices" if ["one", "two", "all"].contains(&&*value) => options.devices = value,
                "--case" => options.case = value,
                "--rounds" => options.rounds = Some(value.parse()?),
                "--blocks" => options.blocks = Some(value.parse()?),
                "--rows" => options.rows = Some(value.parse()?),
                _ => return Err(format!("{option} {value}: {USAGE}").into()),
            }
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)).and_then(|options| run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("litmus: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs the cases; whether those that must hold did.
fn run(options: &Options) -> Result<bool> {
    let settings = Settings::from(&Config::load(std::env::vars_os(), None)?);
    let gpu = match &*options.backend {
        "cuda" => Gpu::open(Backend::Cuda, &settings)?,
        "hip" => Gpu::open(Backend::Hip, &settings)?,
        "emulator" => Gpu::emulator(Emulation { devices: 2, ..Emulation::default() }, &settings)?,
        "emulator32" => {
            Gpu::emulator(Emulation { devices: 2, wave: 32, schedule: 7, ..Emulation::default() }, &settings)?
        }
        other => return Err(format!("backend {other:?}: {USAGE}").into()),
    };
    let emulated = gpu.backend() == Backend::Emulator;
    let devices = gpu.devices()?;
    let first = devices.first().ok_or("there is no device")?;
    println!("{}, {} × {}", gpu.version()?, devices.len(), first.name()?);
    let cache = Cache::new(&settings);
    let mut pairs: Vec<(&str, Vec<&Device>)> = Vec::new();
    if options.devices != "two" {
        pairs.push(("one", vec![first, first]));
    }
    match devices.get(1) {
        Some(second) if options.devices != "one" => pairs.push(("two", vec![first, second])),
        None if options.devices == "two" => return Err("--devices two: there is one device".into()),
        _ => {}
    }
    // Both sides are resident at once, also on one device.
    let half = if emulated { 2 } else { first.multiprocessors().div_ceil(2).min(64) };
    let size = Size {
        rounds: options.rounds.unwrap_or(if emulated { 10 } else { 10_000 }).max(1),
        blocks: options.blocks.unwrap_or(half).clamp(1, half.max(1)),
        rows: options.rows.unwrap_or(if emulated { 512 } else { 65_536 }).max(1),
    };
    println!(
        "{} rounds of {} rows by {} blocks\n{:<9} {:<8} {:<52} {:>10} {:>12}",
        size.rounds, size.rows, size.blocks, "", "devices", "case", "rounds", "wrong rows"
    );
    let (mut held, mut results) = (true, Vec::new());
    for (name, pair) in pairs {
        let kernels = [Kernels::new(pair[0], size, &cache)?, Kernels::new(pair[1], size, &cache)?];
        for case in Case::all().into_iter().filter(|case| case.name().contains(&*options.case)) {
            let result = case.run(&kernels, size)?;
            let must = if case.must_hold() { "must hold" } else { "may fail" };
            let ended = if result.ended { String::new() } else { ", and a wait ended early".to_owned() };
            println!("{must:<9} {name:<8} {:<52} {:>10} {:>12}{ended}", case.name(), result.rounds, result.wrong);
            held &= !case.must_hold() || (result.wrong == 0 && result.ended);
            results.push(json!({
                "case": case.name(), "devices": name, "must_hold": case.must_hold(), "rounds": result.rounds,
                "wrong_rows": result.wrong, "ended": result.ended,
            }));
        }
    }
    if results.is_empty() {
        return Err(format!("no case has {:?} in its name", options.case).into());
    }
    println!("{}", if held { "the rules hold" } else { "THE RULES DO NOT HOLD on this machine" });
    println!("{}", json!({ "held": held, "rows": size.rows, "blocks": size.blocks, "results": results }));
    Ok(held)
}
