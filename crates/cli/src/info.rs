//! `campanile info`: transports, configuration and this machine.

use anyhow::anyhow;
use campanile::host::cache::Caches;
use campanile::host::copy::streaming_isa;
use campanile::host::topology::Topology;
use campanile::moe::arithmetic::Kernels;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde::Serialize;

use crate::exit::Error;

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
    print(&info);
    Ok(())
}

fn print(info: &Info) {
    println!("campanile {}\n", info.version);
    println!("Transports");
    for device in &info.devices {
        let state = if device.usable { "usable" } else { "left out" };
        println!("  {}  device {}: {state}, {}", device.transport, device.device, device.note);
        println!("      {}", device.summary);
    }
    let machine = &info.machine;
    let mib = |bytes: usize| bytes as f64 / (1 << 20) as f64;
    println!("\nMachine");
    println!("  {} cores, {} CPUs this process may use", machine.cores, machine.cpus);
    let size = |bytes: usize| if bytes == 0 { "unknown".to_owned() } else { format!("{:.1} MiB", mib(bytes)) };
    println!("  L2 {}, last level {}", size(machine.l2_bytes), size(machine.last_level_bytes));
    if let Some(available) = machine.available_memory_bytes {
        println!("  {:.1} GiB of memory available", available as f64 / (1u64 << 30) as f64);
    }
    println!("  streaming stores: {}; row arithmetic: {}", machine.streaming_stores, machine.arithmetic);
    println!("\nConfiguration (code > TOML file > environment > default)");
    let mut table = comfy_table::Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
    table.set_width(100);
    table.set_header(["variable", "value", "from", "what it is; allowed values"]);
    for variable in &info.variables {
        let doc = format!("{} [{}]", variable.doc, variable.allowed);
        table.add_row([variable.name, &variable.value, &variable.source, &doc]);
    }
    println!("{table}");
}
