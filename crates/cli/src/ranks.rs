//! The ranks that a command runs its job on: processes or threads of this machine.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use campanile::bootstrap::{Launch, Output};
use campanile::core::{Bind, Config};
use campanile::{Communicator, MoeCombine, Path, Plugins, threads_over};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use crate::device;
use crate::exit::Error;
use crate::job::Job;

/// What ranks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RanksAs {
    /// Processes of this machine, bound to cores.
    Processes,
    /// Threads of this process, not bound.
    Threads,
}

impl RanksAs {
    /// The name that the command line accepts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Processes => "processes",
            Self::Threads => "threads",
        }
    }
}

/// Options of every command that runs ranks.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What ranks are
    #[arg(long = "as", value_name = "KIND", default_value = "processes")]
    pub ranks_as: RanksAs,
    /// Upper bound of every wait: seconds, or with a unit (500ms) [default: what CAMPANILE_TIMEOUT says, else 30s]
    #[arg(long, value_parser = duration)]
    pub timeout: Option<Duration>,
    /// How windows reach peers: auto, load-store or queue [default: what CAMPANILE_PATH says, else auto]
    #[arg(long, value_parser = path)]
    pub path: Option<Path>,
    /// Bind ranks that are processes to cores [default: what CAMPANILE_BIND says, else cores]
    #[arg(long, value_parser = named::<Bind>(&["cores", "none"]))]
    pub bind: Option<Bind>,
}

/// A time above 0.
pub fn duration(text: &str) -> Result<Duration, String> {
    let parsed = campanile::core::parse_duration(text);
    parsed.map_err(|_| "a time of more than 0: seconds, or with a unit (30s, 500ms, 2min)".to_owned())
}

/// One of the named values of a type.
pub fn named<T: std::str::FromStr + Clone + Send + Sync + 'static>(
    names: &'static [&'static str],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names).map(|name| match name.parse() {
        Ok(value) => value,
        Err(_) => unreachable!("the names are those of the type"),
    })
}

fn path(name: &str) -> Result<Path, String> {
    let all = [Path::Auto, Path::LoadStore, Path::Queue];
    all.into_iter().find(|path| path.name() == name).ok_or_else(|| "auto, load-store or queue".to_owned())
}

/// The ranks of one job.
pub struct Ranks {
    count: usize,
    ranks_as: RanksAs,
    config: Config,
    plugins: Plugins,
}

impl Ranks {
    /// `count` ranks on the host, configured by the environment and the options, which win; `combine` if results are to be
    /// combined so.
    pub fn new(count: usize, options: &Options, combine: Option<MoeCombine>) -> Result<Self, Error> {
        Self::on(device::Kind::Host, count, options, combine)
    }

    /// As [`new`](Self::new), on devices.
    pub fn on(
        device: device::Kind,
        count: usize,
        options: &Options,
        combine: Option<MoeCombine>,
    ) -> Result<Self, Error> {
        let mut config = campanile::bootstrap::configuration().map_err(Error::input)?;
        if let Some(timeout) = options.timeout {
            config = config.with_timeout(timeout).map_err(Error::input)?;
        }
        if let Some(path) = options.path {
            config = config.with_path(path).map_err(Error::input)?;
        }
        if let Some(bind) = options.bind {
            config = config.with_bind(bind).map_err(Error::input)?;
        }
        let config = device.configure(config)?;
        let plugins = Plugins::of(&config).map_err(Error::input)?;
        config.launched().map_err(Error::input)?;
        if config.path() == Path::Queue && combine == Some(MoeCombine::Pull) {
            return Err(Error::input(anyhow!("combine pull reads peers' memory, which path queue forbids; use push")));
        }
        Self::check(count)?;
        Ok(Self { count, ranks_as: options.ranks_as, config, plugins })
    }

    /// Refuses a number of ranks that no machine is made for, before anything of that size is made.
    pub fn check(count: usize) -> Result<(), Error> {
        if (1..=Launch::MAX_RANKS).contains(&count) {
            return Ok(());
        }
        let most = Launch::MAX_RANKS;
        Err(Error::input(anyhow!("--ranks is {count}; a job on one machine has 1 to {most} ranks")))
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What they are.
    pub fn ranks_as(&self) -> RanksAs {
        self.ranks_as
    }

    /// Runs a job and returns each rank's result. `body` is the job in this process, for ranks that are threads.
    pub fn run(
        &self,
        job: &Job,
        body: impl Fn(&Arc<Communicator>) -> anyhow::Result<Vec<u8>> + Sync,
    ) -> Result<Vec<Vec<u8>>, Error> {
        match self.ranks_as {
            RanksAs::Threads => self.run_threads(body),
            RanksAs::Processes => self.run_processes(job),
        }
    }

    fn run_threads(
        &self,
        body: impl Fn(&Arc<Communicator>) -> anyhow::Result<Vec<u8>> + Sync,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let options = self.plugins.options(&self.config)?;
        let ended = threads_over::<_, anyhow::Error>(&self.plugins, self.count, &options, |comm| body(&comm));
        let ranks = ended.into_iter().enumerate().map(|(rank, ended)| ended.with_context(|| format!("rank {rank}")));
        Ok(ranks.collect::<anyhow::Result<_>>()?)
    }

    fn run_processes(&self, job: &Job) -> Result<Vec<Vec<u8>>, Error> {
        let job = serde_json::to_string(job)?;
        let outcome = Launch::current_exe(["rank", &job], self.count)?
            .config(&self.config)
            .output(Output::Captured)
            .forward_signals(true)
            .run()?;
        match outcome.failure {
            None => Ok(outcome.ranks.into_iter().map(|rank| rank.stdout).collect()),
            Some(_) => Err(Error::Failure(anyhow!("{outcome}"))),
        }
    }
}
