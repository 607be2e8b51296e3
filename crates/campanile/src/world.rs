//! The communicator of a launched process.

use std::sync::Arc;

use campanile_bootstrap::{JoinError, join};
use campanile_core::{Bind, CommError, CommOptions, Communicator, Config, ConfigError};
use campanile_host::affinity::{AffinityError, bind_current_thread};
use campanile_host::topology::Topology;

use crate::Plugins;

/// The world cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    /// The job cannot be joined.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The process cannot be bound to its cores.
    #[error("binding to cores: {0}; set CAMPANILE_BIND=none to do without")]
    Bind(#[from] AffinityError),
    /// The ranks cannot be connected.
    #[error(transparent)]
    Comm(#[from] CommError),
}

/// The communicator over all ranks of the job that this process was launched in, as `config` says; a job of one rank if it
/// was not launched. A launched rank is bound to its own physical cores, unless told not to be. Collective.
///
/// # Errors
/// [`WorldError`] if the job cannot be joined or its ranks cannot be connected.
pub fn world(config: &Config) -> Result<Arc<Communicator>, WorldError> {
    let plugins = Plugins::of(config)?;
    let options = plugins.options(config)?;
    let bootstrap = join(config)?;
    let topology = Topology::of_machine()?;
    if let Some(launched) = config.launched()?.filter(|_| config.bind() == Bind::Cores) {
        // A launcher starts all ranks of a job on one machine.
        let placement = topology.placement(launched.ranks);
        if let Some(cpus) = placement.get(launched.local_rank) {
            bind_current_thread(cpus)?;
        }
    }
    let options = CommOptions { cores: topology.cpus(), ..options };
    Ok(Arc::new(Communicator::select(bootstrap, &plugins.transports(), options)?))
}

/// What a config says of communicators. A transport that it names by a path stays a path: see [`Plugins::options`].
pub fn options(config: &Config) -> CommOptions {
    CommOptions {
        transports: config.transport(),
        timeout: config.timeout(),
        path: config.path(),
        queue_depth: config.queue_depth(),
        huge_pages: config.huge_pages(),
        ..CommOptions::default()
    }
}
