//! `campanile info`: transports, configuration and this machine.

use anyhow::anyhow;
use campanile::host::cache::Caches;
use campanile::host::copy::streaming_isa;
use campanile::host::topology::Topology;
use campanile::moe::arithmetic::Kernels;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde::Serialize;

use crate::exit::Error;
use crate::output::print;

/// Arguments of `campanile info`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Device {
    transport: &'static str,
    summary: &'static str,
    device: String,
    usable: bool,
    note: String,
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
    devices: Vec<Device>,
    variables: Vec<Variable>,
    machine: Machine,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<(), Error> {
    let config = campanile::bootstrap::configuration().map_err(Error::input)?;
    campanile::plugin(&config).map_err(Error::input)?;
    config.launched().map_err(Error::input)?;
    let devices = campanile::plugins().iter().flat_map(|plugin| {
        let info = plugin.info();
        plugin.probe().into_iter().map(move |probed| Device {
            transport: info.name,
            summary: info.summary,
            usable: probed.usable.is_ok(),
            note: probed.usable.unwrap_or_else(|reason| reason),
            device: probed.device,
        })
    });
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
        devices: devices.collect(),
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

fn text(info: &Info) -> String {
    let mut text = String::new();
    text += &format!("campanile {}\n\n", info.version);
    text += "Transports\n";
    for device in &info.devices {
        let state = if device.usable { "usable" } else { "left out" };
        text += &format!("  {}  device {}: {state}, {}\n", device.transport, device.device, device.note);
        text += &format!("      {}\n", device.summary);
    }
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
