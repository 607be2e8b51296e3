//! The communicator of a launched process.

use std::sync::Arc;

use campanile_bootstrap::{JoinError, Place, join, place};
use campanile_core::{Bind, CommError, CommOptions, Communicator, Config, ConfigError, Source, TransportPlugin};
use campanile_host::affinity::{AffinityError, bind_current_thread};
use campanile_host::topology::Topology;
use campanile_shm::ShmPlugin;

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

/// The transports that are linked in.
pub fn plugins() -> &'static [&'static dyn TransportPlugin] {
    static PLUGINS: [&dyn TransportPlugin; 1] = [&ShmPlugin];
    &PLUGINS
}

/// The transport that `config` names.
///
/// # Errors
/// [`ConfigError`] lists the names there are.
pub fn plugin(config: &Config) -> Result<&'static dyn TransportPlugin, ConfigError> {
    let names: Vec<_> = plugins().iter().map(|plugin| plugin.info().name).collect();
    config.check_transport(&names)?;
    let plugin = plugins().iter().find(|plugin| plugin.info().name == config.transport());
    Ok(*plugin.expect("check_transport found the name"))
}

/// The communicator over all ranks of the job that this process was launched in, as `config` and the launcher's
/// variables say; a job of one rank if it was not launched. A launched rank is bound to its own physical cores, unless
/// told not to be. Collective.
///
/// # Errors
/// [`WorldError`] if the job cannot be joined or its ranks cannot be connected.
pub fn world(config: &Config) -> Result<Arc<Communicator>, WorldError> {
    let bootstrap = join(config)?;
    let topology = Topology::of_machine()?;
    if let Some((local_rank, local_ranks)) = place(config)?.and_then(|place| to_bind(config, &place)) {
        let placement = topology.placement(local_ranks);
        if let Some(cpus) = placement.get(local_rank) {
            bind_current_thread(cpus)?;
        }
    }
    Ok(Arc::new(Communicator::new(
        bootstrap,
        plugin(config)?,
        CommOptions { cores: topology.cpus(), ..options(config) },
    )?))
}

/// The number of this rank among those on its machine, and how many these are, if it is to be bound. A launcher that
/// binds by itself has done so already, or was told not to; then only an explicit setting counts.
fn to_bind(config: &Config, place: &Place) -> Option<(usize, usize)> {
    let asked = config.source("CAMPANILE_BIND") != Some(Source::Default);
    let wanted = config.bind() == Bind::Cores && (asked || !place.binds);
    wanted.then_some(place.local_rank.zip(place.local_ranks)).flatten()
}

/// What a config says of communicators.
pub fn options(config: &Config) -> CommOptions {
    CommOptions {
        timeout: config.timeout(),
        path: config.path(),
        queue_depth: config.queue_depth(),
        huge_pages: config.huge_pages(),
        ..CommOptions::default()
    }
}
