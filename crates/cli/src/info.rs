//! `campanile info`: transports, the launcher, configuration and this machine; with `--explain`, what selection would do and why.

use anyhow::anyhow;
use campanile::host::cache::Caches;
use campanile::host::copy::streaming_isa;
use campanile::host::topology::Topology;
use campanile::moe::arithmetic::Kernels;
use campanile::{Config, Explanation, Plugins};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde::Serialize;

use crate::exit::Error;
use crate::output::{print, printable};
use crate::ranks::Ranks;

mod explain;
mod launch;

/// Arguments of `campanile info`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Show what carries each operation to each peer, what would be next, and why the rest cannot
    #[arg(long)]
    explain: bool,
    /// Ranks on this node that --explain takes the job to have
    #[arg(short = 'n', long, value_name = "N", default_value_t = 2, requires = "explain")]
    ranks: usize,
    /// The peers that --explain shows [default: all]
    #[arg(long, value_name = "CLASS", requires = "explain")]
    peer: Option<explain::Peers>,
}

/// A transport, and where it came from.
#[derive(Serialize)]
struct Transport {
    name: String,
    version: String,
    summary: String,
    origin: String,
    devices: Vec<Device>,
}

/// A device of a transport.
#[derive(Serialize)]
struct Device {
    device: String,
    usable: bool,
    note: String,
}

/// A file that is no transport.
#[derive(Serialize)]
struct Refused {
    path: String,
    reason: String,
}

#[derive(Serialize)]
struct Variable {
    name: &'static str,
    value: String,
    source: String,
    doc: String,
    allowed: String,
}

#[derive(Serialize)]
struct Machine {
    cores: usize,
    cpus: usize,
    l2_bytes: usize,
    last_level_bytes: usize,
    available_memory_bytes: Option<u64>,
    streaming_stores: &'static str,
    arithmetic: String,
}

#[derive(Serialize)]
struct Info {
    version: &'static str,
    transports: Vec<Transport>,
    refused: Vec<Refused>,
    /// `null`: nobody launched this process.
    launch: Option<launch::Launch>,
    variables: Vec<Variable>,
    machine: Machine,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<(), Error> {
    let config = campanile::bootstrap::configuration().map_err(Error::input)?;
    let plugins = Plugins::all(&config).map_err(Error::input)?;
    config.launched().map_err(Error::input)?;
    if args.explain {
        return explain(args, &plugins, &config);
    }
    let variables = config.settings().into_iter().map(|setting| Variable {
        name: setting.variable.name,
        source: setting.source.to_string(),
        doc: setting.variable.doc(),
        allowed: setting.variable.allowed(),
        value: setting.value,
    });
    let topology = Topology::of_machine().map_err(|error| anyhow!("{error}"))?;
    let caches = Caches::of_cpu(std::path::Path::new("/"), 0);
    let info = Info {
        version: env!("CARGO_PKG_VERSION"),
        transports: transports(&plugins),
        refused: refused(&plugins),
        launch: launch::Launch::of(&config),
        variables: variables.collect(),
        machine: Machine {
            cores: topology.cores().len(),
            cpus: topology.cpus(),
            l2_bytes: caches.l2,
            last_level_bytes: caches.last,
            available_memory_bytes: campanile::host::memory::available().ok(),
            streaming_stores: streaming_isa(),
            arithmetic: format!("{:?}", Kernels::get().isa()).to_lowercase(),
        },
    };
    if args.json {
        return crate::bench::print_json(&info);
    }
    print(&text(&info))
}

/// What is printed with `--explain --json`.
#[derive(Serialize)]
struct Explained<'a> {
    transport: String,
    path: &'static str,
    ranks: usize,
    /// The transport of a communicator of these ranks; `null`: there is none.
    communicator: Option<&'a String>,
    rows: Vec<explain::JsonRow<'a>>,
}

fn explain(args: &Args, plugins: &Plugins, config: &Config) -> Result<(), Error> {
    Ranks::check(args.ranks)?;
    let Explanation { policy, communicator, selection, .. } = &Explanation::new(plugins, config, args.ranks)?;
    let rows = explain::rows(selection, args.peer);
    if args.json {
        crate::bench::print_json(&Explained {
            transport: policy.transports.to_string(),
            path: policy.path.name(),
            ranks: args.ranks,
            communicator: communicator.as_ref().ok(),
            rows: rows.into_iter().map(Into::into).collect(),
        })?;
    } else {
        print(&explain::text(policy, communicator, &rows))?;
    }
    match communicator {
        Ok(_) => Ok(()),
        Err(reasons) => Err(Error::Failure(anyhow!("no communicator can be made with {policy}: {reasons}"))),
    }
}

fn transports(plugins: &Plugins) -> Vec<Transport> {
    let transport = |plugin: &campanile::Plugin| {
        let info = plugin.transport.info();
        let device = |probed: campanile::core::Probed| Device {
            device: probed.device,
            usable: probed.usable.is_ok(),
            note: probed.usable.unwrap_or_else(|reason| reason),
        };
        Transport {
            name: info.name.to_owned(),
            version: info.version.to_owned(),
            summary: info.summary.to_owned(),
            origin: plugin.origin.to_string(),
            devices: plugin.transport.probe().into_iter().map(device).collect(),
        }
    };
    plugins.iter().map(transport).collect()
}

fn refused(plugins: &Plugins) -> Vec<Refused> {
    let refused = |refused: &campanile::Refused| Refused {
        path: refused.path.display().to_string(),
        reason: refused.reason.clone(),
    };
    plugins.refused().iter().map(refused).collect()
}

fn text(info: &Info) -> String {
    let mut text = String::new();
    text += &format!("campanile {}\n\n", info.version);
    text += "Transports\n";
    text += &transports_text(&info.transports, &info.refused);
    text += "\nLaunch\n";
    text += &launch::text(info.launch.as_ref());
    let machine = &info.machine;
    let mib = |bytes: usize| bytes as f64 / (1 << 20) as f64;
    text += "\nMachine\n";
    text += &format!("  {} cores, {} CPUs this process may use\n", machine.cores, machine.cpus);
    let size = |bytes: usize| if bytes == 0 { "unknown".to_owned() } else { format!("{:.1} MiB", mib(bytes)) };
    text += &format!("  L2 {}, last level {}\n", size(machine.l2_bytes), size(machine.last_level_bytes));
    if let Some(available) = machine.available_memory_bytes {
        text += &format!("  {:.1} GiB of memory available\n", available as f64 / (1u64 << 30) as f64);
    }
    text += &format!("  streaming stores: {}; row arithmetic: {}\n", machine.streaming_stores, machine.arithmetic);
    text += "\nConfiguration (code > TOML file > environment > default)\n";
    let mut table = comfy_table::Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
    table.set_width(100);
    table.set_header(["variable", "value", "from", "what it is; allowed values"]);
    for variable in &info.variables {
        let doc = format!("{} [{}]", variable.doc, variable.allowed);
        table.add_row([variable.name, &variable.value, &variable.source, &doc]);
    }
    text += &format!("{table}\n");
    text
}

fn transports_text(transports: &[Transport], refused: &[Refused]) -> String {
    let mut text = String::new();
    for Transport { name, version, summary, origin, devices } in transports {
        text += &format!("  {name} {version} ({}): {summary}\n", printable(origin));
        for Device { device, usable, note } in devices {
            let state = if *usable { "usable" } else { "left out" };
            text += &format!("      device {device}: {state}, {}\n", printable(note));
        }
    }
    // A reason names its file or folder.
    for Refused { reason, .. } in refused {
        text += &format!("  refused: {}\n", printable(reason));
    }
    text
}
