//! The `campanile` program: MoE exchanges on files, benchmarks, a launcher, the conformance suite, and what there is on
//! this machine and is wrong with it.
//!
//! Exit code 0 is good, 2 is bad input or usage, 1 is a failure. With `--json` standard output is exactly one JSON
//! object; everything else goes to standard error.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod buffer;
mod check;
mod device;
mod device_limit;
mod doctor;
mod exit;
mod info;
mod job;
mod limit;
mod log;
mod moe;
mod moe_file;
mod moe_report;
mod output;
mod progress;
mod ranks;
mod run;
mod traffic;

/// Cross-device collectives: MoE dispatch and combine, barriers, puts, on transports that are chosen per job.
#[derive(Parser)]
#[command(name = "campanile", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Exchange the tokens of all ranks with their experts and check the result bit for bit
    Moe(moe::Args),
    /// Measure, beside the limit of the same machine in the same run
    #[command(subcommand)]
    Bench(bench::Command),
    /// Start N ranks of a program on this machine
    Run(run::Args),
    /// Prove that a transport keeps the contract, on this machine
    Check(check::Args),
    /// Show transports, configuration and this machine
    Info(info::Args),
    /// Find out what this machine gives, whether it matters, and what to do
    Doctor(doctor::Args),
    /// Load one library, in a process that may die of it
    #[command(hide = true)]
    Library {
        /// Files that it may be in.
        files: Vec<String>,
    },
    /// One rank of a job that another `campanile` started
    #[command(hide = true)]
    Rank {
        /// The job as JSON.
        job: String,
    },
}

fn main() -> ExitCode {
    log::start();
    let ended = match Cli::parse().command {
        Command::Moe(args) => moe::main(&args),
        Command::Bench(command) => bench::main(&command),
        Command::Run(args) => run::main(&args),
        Command::Check(args) => check::main(&args),
        Command::Info(args) => info::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::Library { files } => doctor::library(&files),
        Command::Rank { job } => job::main(&job),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}
