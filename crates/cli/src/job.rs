//! Jobs: what all ranks of a command do together, as data, so that it can be given to a process.

use std::io::Write;
use std::sync::Arc;

use anyhow::Context;
use campanile::Communicator;
use serde::{Deserialize, Serialize};

use crate::bench;
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
}

impl Job {
    /// Does one rank's part and returns what the command wants of it.
    pub fn run(&self, comm: &Arc<Communicator>) -> anyhow::Result<Vec<u8>> {
        match self {
            Self::Moe(exchange) => exchange.run(comm, &exchange.problem()?),
            Self::BenchMoe(settings) => settings.run(comm),
            Self::BenchBarrier(settings) => settings.run(comm),
            Self::BenchCollective(settings) => settings.run(comm),
            Self::BenchPut(settings) => settings.run(comm),
        }
    }
}

/// The process of a rank: joins the job that started it, does its part, and writes the result to standard output.
pub fn main(job: &str) -> Result<(), Error> {
    let job: Job = serde_json::from_str(job).context("the job of this rank").map_err(Error::Input)?;
    let config = campanile::bootstrap::configuration().map_err(Error::input)?;
    let comm = campanile::world(&config)?;
    let result = job.run(&comm)?;
    std::io::stdout().lock().write_all(&result).context("writing the result of this rank")?;
    Ok(())
}
