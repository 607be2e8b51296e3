//! `campanile bench link`: what the links between GPUs carry, and what a flag and a barrier cost.
//!
//! The measurement is `campanile::gpu::link`; ranks are threads of this process.

use anyhow::{Context, anyhow};
use campanile::core::Config;
use campanile::gpu::link::{Arm, LinkOptions, LinkReport, LinkRow, Pattern, measure};
use campanile::gpu::{Cache, Device, Emulation, Gpu, Settings};
use clap::ValueEnum;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde::Serialize;

use super::device_barrier::{self, DeviceBarrier};
use super::{print_json, size};
use crate::device;
use crate::exit::Error;
use crate::output::print;

/// Arguments of `campanile bench link`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// On which devices
    #[arg(long, value_enum, default_value_t)]
    device: Kind,
    /// Number of ranks, one a GPU, in turn again if there are fewer GPUs [default: as many as GPUs, at least 2]
    #[arg(long, short = 'n')]
    ranks: Option<usize>,
    /// Bytes that a rank moves in an iteration [default: 256M; 256K on the emulator]
    #[arg(long, short = 'b', value_parser = size::parse)]
    bytes: Option<usize>,
    /// Iterations that are timed
    #[arg(long, default_value_t = 20)]
    iters: usize,
    /// Iterations before them
    #[arg(long, default_value_t = 3)]
    warmup: usize,
    /// Round trips of a flag in an iteration [default: 1000; 10 on the emulator]
    #[arg(long)]
    round_trips: Option<u32>,
    /// Blocks of each kernel, one a multiprocessor [default: two on each]
    #[arg(long)]
    sms: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Which devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// The GPUs of this machine
    #[default]
    Gpu,
    /// GPUs that the CPU emulates: that all of it runs; the figures mean nothing
    Emulator,
}

/// Most iterations: each is kept.
const MOST_ITERATIONS: usize = 100_000;
/// Most round trips of a flag: some seconds on a GPU, where a launch has a deadline.
const MOST_ROUND_TRIPS: u32 = 1_000_000;
/// Most ranks.
const MOST_RANKS: usize = 64;

#[derive(Serialize)]
struct Report {
    device: String,
    driver: String,
    emulated: bool,
    devices: usize,
    iters: usize,
    sms: Option<u32>,
    #[serde(flatten)]
    link: LinkReport,
    /// Half of the median round trip.
    flag_one_way_us: Option<f64>,
    barrier: DeviceBarrier,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<(), Error> {
    if !(1..=MOST_ITERATIONS).contains(&args.iters) || args.warmup > MOST_ITERATIONS {
        let (iters, warmup) = (args.iters, args.warmup);
        return Err(Error::input(anyhow!(
            "--iters {iters}, --warmup {warmup}: 1 to {MOST_ITERATIONS} are timed, up to as many come before"
        )));
    }
    if let Some(ranks) = args.ranks.filter(|ranks| !(2..=MOST_RANKS).contains(ranks)) {
        return Err(Error::input(anyhow!("--ranks {ranks}: a link has two ends; 2 to {MOST_RANKS} ranks")));
    }
    if let Some(trips) = args.round_trips.filter(|trips| !(1..=MOST_ROUND_TRIPS).contains(trips)) {
        return Err(Error::input(anyhow!("--round-trips {trips}: 1 to {MOST_ROUND_TRIPS} make an iteration")));
    }
    let config = campanile::configuration().map_err(Error::input)?;
    let settings = Settings::from(&config);
    let emulated = args.device == Kind::Emulator;
    let gpu = open(args.device, &config)?;
    // What cannot be compiled fails here, with the reason.
    gpu.calls().compiler().map_err(Error::input)?;
    let found = gpu.devices().map_err(Error::input)?;
    if found.is_empty() {
        return Err(Error::input(anyhow!("{} sees no device", gpu.backend())));
    }
    let has = found[0].multiprocessors();
    if let Some(sms) = args.sms.filter(|sms| !(1..=has).contains(sms)) {
        return Err(Error::input(anyhow!(
            "--sms is {sms}; the device has {has} multiprocessors, of which 1 is the least"
        )));
    }
    let ranks = args.ranks.unwrap_or(found.len().max(2));
    let devices: Vec<Device> = found.iter().cycle().take(ranks).cloned().collect();
    let options = LinkOptions {
        bytes: args.bytes.unwrap_or(if emulated { 256 << 10 } else { 256 << 20 }),
        iterations: args.iters,
        warmup: args.warmup,
        round_trips: args.round_trips.unwrap_or(if emulated { 10 } else { 1000 }),
        sms: args.sms,
    };
    let cache = Cache::new(&settings);
    let link = measure(&devices, &options, &cache).context("measuring the links")?;
    let flag = link.flag_us();
    let report = Report {
        device: found[0].name().context("the name of a device")?,
        driver: gpu.version().context("the version of the driver")?,
        emulated,
        devices: found.len().min(ranks),
        iters: args.iters,
        sms: args.sms,
        barrier: device_barrier::measure(&devices, args.iters, emulated, flag, &cache)?,
        flag_one_way_us: flag,
        link,
    };
    if args.json {
        return print_json(&report);
    }
    print(&text(&report))
}

/// The GPUs of this machine, as CAMPANILE_GPU says; or emulated ones, four of them.
fn open(kind: Kind, config: &Config) -> Result<Gpu, Error> {
    match kind {
        Kind::Gpu => {
            let kind = device::Kind::Gpu;
            kind.open(&kind.choose(config.clone())?)
        }
        Kind::Emulator => {
            let emulation = Emulation { multiprocessors: 1, ..Emulation::default() };
            Gpu::emulator(emulation, &Settings::from(config)).map_err(Error::input)
        }
    }
}

fn text(report: &Report) -> String {
    let Report { link, barrier, .. } = report;
    let mut text = format!(
        "links of {} ranks on {} × {}, {}, {} iterations, arms interleaved\n",
        link.ranks, report.devices, report.device, report.driver, report.iters
    );
    if report.emulated {
        text += &format!("{}\n", device::EMULATED);
    }
    if link.shared {
        text += "ranks share a device: a peer's window is other memory of the same device, no link is crossed\n";
    }
    let mut table = comfy_table::Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY);
    table.set_header(["", "who", "median µs", "p99 µs", "GB/s of a GPU"]);
    for row in &link.rows {
        table.add_row(cells(row));
    }
    let [launch, graph] = [
        ("barrier, of many in a launch", barrier.in_launch_us, barrier.in_launch_p99_us),
        ("barrier, of many launches in a graph", barrier.in_graph_us, barrier.in_graph_p99_us),
    ]
    .map(|(name, median, p99)| {
        let who = Pattern::AllToAll.name().to_owned();
        [name.to_owned(), who, format!("{median:.2}"), format!("{p99:.2}"), String::new()]
    });
    table.add_row(launch);
    table.add_row(graph);
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(comfy_table::CellAlignment::Right);
    }
    text += &format!("{table}\n");
    if let Some(flag) = report.flag_one_way_us {
        text += &format!("flag one way {flag:.2} µs");
        text += &barrier.of_flag.map_or(String::new(), |of| format!("; the barrier in a launch is {of:.1} of it"));
        text += "\n";
    }
    for left_out in &link.left_out {
        text += &format!("not measured: {}: {}\n", left_out.arm.name(), left_out.reason);
    }
    text
}

fn cells(row: &LinkRow) -> [String; 5] {
    [
        row.arm.name().to_owned(),
        // The flag with the host has one end on a device.
        if row.arm == Arm::HostFlag { "rank 0" } else { row.pattern.name() }.to_owned(),
        format!("{:.2}", row.median_us),
        format!("{:.2}", row.p99_us),
        row.gbps.map_or(String::new(), |rate| format!("{rate:.1}")),
    ]
}
