//! The communicator of a launched process.

use std::sync::Arc;
use std::time::Duration;

use campanile_bootstrap::{JoinError, Place, join, place};
use campanile_core::{Bind, Bootstrap, CommError, CommOptions, Communicator, Config, ConfigError, Source, Team};
use campanile_host::affinity::{AffinityError, CpuSet, allowed, bind_current_thread};
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

/// The communicator over all ranks of the job that this process was launched in, as `config` and the launcher's
/// variables say; a job of one rank if it was not launched. A launched rank is bound to its own physical cores, unless
/// told not to be. Collective.
///
/// # Errors
/// [`WorldError`] if the job cannot be joined or its ranks cannot be connected.
pub fn world(config: &Config) -> Result<Arc<Communicator>, WorldError> {
    let plugins = Plugins::of(config)?;
    let options = plugins.options(config)?;
    let bootstrap = join(config)?;
    let topology = Topology::of_machine()?;
    let cores = cores(&*bootstrap, config.timeout())?;
    if let Some((local_rank, local_ranks)) = place(config)?.and_then(|place| to_bind(config, &place)) {
        let placement = topology.placement(local_ranks);
        if let Some(cpus) = placement.get(local_rank) {
            bind_current_thread(cpus)?;
        }
    }
    Ok(Arc::new(Communicator::select(bootstrap, &plugins.transports(), CommOptions { cores, ..options })?))
}

/// How many CPUs the ranks on this machine may use together: a launcher may have bound each to its own already.
fn cores(bootstrap: &dyn Bootstrap, timeout: Duration) -> Result<usize, WorldError> {
    let node = bootstrap.node();
    let ours = format!("{}\n{}", node.identity(), allowed()?);
    let team = Team::world(bootstrap.ranks());
    let all = bootstrap.all_gather(&team, "cpus", ours.as_bytes(), timeout).map_err(CommError::from)?;
    let here = all.iter().filter_map(|theirs| {
        let (theirs, cpus) = std::str::from_utf8(theirs).ok()?.split_once('\n')?;
        if theirs == node.identity() { cpus.parse::<CpuSet>().ok() } else { None }
    });
    Ok(here.fold(CpuSet::default(), |together, cpus| together.iter().chain(cpus.iter()).collect()).len())
}

/// The number of this rank among those on its machine, and how many these are, if it is to be bound. A launcher that
/// binds by itself has done so already, or was told not to; then only an explicit setting counts.
fn to_bind(config: &Config, place: &Place) -> Option<(usize, usize)> {
    let asked = config.source("CAMPANILE_BIND") != Some(Source::Default);
    let wanted = config.bind() == Bind::Cores && (asked || !place.binds);
    wanted.then_some(place.local_rank.zip(place.local_ranks)).flatten()
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

#[cfg(test)]
mod tests {
    use campanile_bootstrap::ThreadBootstrap;

    use super::*;

    #[test]
    fn ranks_that_were_bound_apart_have_their_cores_together() {
        let cpus = allowed().expect("the machine tells");
        let one_each = &|rank: usize| cpus.iter().nth(rank % cpus.len()).into_iter().collect::<CpuSet>();
        std::thread::scope(|scope| {
            let ranks = ThreadBootstrap::world(2).into_iter().enumerate().map(|(rank, bootstrap)| {
                scope.spawn(move || {
                    bind_current_thread(&one_each(rank)).expect("an allowed CPU");
                    cores(&bootstrap, Duration::from_secs(60)).expect("both come")
                })
            });
            let ranks: Vec<_> = ranks.collect();
            for rank in ranks {
                assert_eq!(rank.join().expect("no panic"), cpus.len().min(2));
            }
        });
    }
}
