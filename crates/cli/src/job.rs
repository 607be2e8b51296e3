//! Jobs: what all ranks of a command do together, as data, so that it can be given to a process.

use std::io::Write;

use anyhow::Context;
use campanile::core::Config;
use campanile::world;
use serde::{Deserialize, Serialize};

use crate::bench;
use crate::check;
use crate::device::Devices;
use crate::exit::Error;
use crate::moe;

/// A job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Job {
    /// `campanile moe`.
    Moe(moe::Exchange),
    /// `campanile bench moe`.
    BenchMoe(bench::moe::Settings),
    /// `campanile bench barrier`.
    BenchBarrier(bench::barrier::Settings),
    /// `campanile bench broadcast` and `all-gather`.
    BenchCollective(bench::collective::Settings),
    /// `campanile bench put`.
    BenchPut(bench::put::Settings),
    /// A case of `campanile check`, which makes transports of its own.
    Check(check::Part),
}

impl Job {
    /// Joins the job as `config` says, does one rank's part and returns what the command wants of it.
    fn run(&self, config: &Config) -> Result<Vec<u8>, Error> {
        Ok(match self {
            Self::Moe(exchange) => {
                let devices = Devices::open(exchange.device, config)?;
                exchange.run(&world(config)?, &exchange.problem()?, devices.as_ref())
            }
            Self::BenchMoe(settings) => {
                let devices = Devices::open(settings.device, config)?;
                settings.run(&world(config)?, devices.as_ref())
            }
            Self::BenchBarrier(settings) => settings.run(&world(config)?),
            Self::BenchCollective(settings) => settings.run(&world(config)?),
            Self::BenchPut(settings) => settings.run(&world(config)?),
            Self::Check(part) => part.run(config),
        }?)
    }
}

/// The process of a rank: joins the job that started it, does its part, and writes the result to standard output.
pub fn main(job: &str) -> Result<(), Error> {
    let job: Job = serde_json::from_str(job).context("the job of this rank").map_err(Error::Input)?;
    let config = campanile::bootstrap::configuration().map_err(Error::input)?;
    let result = job.run(&config)?;
    std::io::stdout().lock().write_all(&result).context("writing the result of this rank")?;
    Ok(())
}
