//! The project's one gate: `cargo xtask validate`.
//!
//! It runs what `cargo test --workspace` does not: format, lints, documentation, the dependency policy, links, and the
//! models. Each check can be run alone; all of them are run even if one fails, and the summary says which did.

use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};

mod cargo;
mod dependencies;
mod headers;
mod kernels;
mod links;

#[derive(Parser)]
#[command(name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every check
    Validate,
    /// rustfmt, without changing anything
    Format,
    /// clippy on all targets, warnings denied
    Lint,
    /// rustdoc, warnings denied
    Doc,
    /// Licences and build requirements of all dependencies
    Dependencies,
    /// Write the C header of the plugin boundary; `validate` checks that it is fresh
    Headers,
    /// Relative links of all Markdown files
    Links,
    /// The kernels: instructions on each target, the emulator under ThreadSanitizer
    Kernels {
        /// Write the counts of instructions, instead of comparing them
        #[arg(long)]
        bless: bool,
    },
    /// The whole grid of cases of the MoE kernels, in the emulator at both waves
    Grid,
    /// The loom models of the doorbell queue and of the MoE protocol
    Loom,
}

/// A check: its name and what it runs.
type Check = (&'static str, fn() -> anyhow::Result<()>);

const CHECKS: [Check; 9] = [
    ("format", cargo::format),
    ("links", links::check),
    ("dependencies", dependencies::check),
    ("headers", headers::check),
    ("lint", cargo::lint),
    ("doc", cargo::doc),
    ("kernels", kernels::check),
    ("grid", cargo::grid),
    ("loom", cargo::loom),
];

fn main() -> ExitCode {
    let name = match Cli::parse().command {
        Command::Validate => None,
        Command::Format => Some("format"),
        Command::Lint => Some("lint"),
        Command::Doc => Some("doc"),
        Command::Dependencies => Some("dependencies"),
        Command::Headers => return done("headers", headers::write()),
        Command::Links => Some("links"),
        Command::Kernels { bless: false } => Some("kernels"),
        Command::Kernels { bless: true } => return done("kernels --bless", kernels::bless()),
        Command::Grid => Some("grid"),
        Command::Loom => Some("loom"),
    };
    run(name)
}

/// What one command says at its end.
fn done(command: &str, result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{command}: FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the check of that name, or all.
fn run(name: Option<&str>) -> ExitCode {
    let mut failed = Vec::new();
    for (check, run) in CHECKS.into_iter().filter(|(check, _)| name.is_none_or(|name| name == *check)) {
        println!("== {check}");
        let start = Instant::now();
        match run() {
            Ok(()) => println!("== {check}: good, {:.0?}", start.elapsed()),
            Err(error) => {
                eprintln!("== {check}: FAILED: {error:#}");
                failed.push(check);
            }
        }
    }
    if failed.is_empty() {
        println!("validate: good");
        return ExitCode::SUCCESS;
    }
    eprintln!("validate: FAILED: {}", failed.join(", "));
    ExitCode::FAILURE
}
