//! Who started this process, as which rank, and where the ranks of its job meet.

use campanile::Config;
use campanile::bootstrap::{Address, Place, Rendezvous, place};
use serde::Serialize;

/// What the launcher's variables tell.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Launch {
    /// A place in a job.
    Launched {
        launcher: &'static str,
        rank: u32,
        ranks: usize,
        local_rank: Option<usize>,
        local_ranks: Option<usize>,
        /// Where the ranks meet.
        store: String,
        /// Whether rank 0 hosts the store, unless one is there.
        rank_0_hosts: bool,
    },
    /// Variables that make no sense; every other command refuses them.
    Refused { reason: String },
}

impl Launch {
    /// `None`: nobody launched this process.
    pub fn of(config: &Config) -> Option<Self> {
        match place(config) {
            Ok(place) => place.map(Self::launched),
            Err(error) => Some(Self::Refused { reason: error.to_string() }),
        }
    }

    fn launched(place: Place) -> Self {
        let Place { launcher, rank, ranks, local_rank, local_ranks, rendezvous, .. } = place;
        let (address, rank_0_hosts) = match rendezvous {
            Rendezvous::Launcher(address) => (address, false),
            Rendezvous::Rank0(address) => (address, true),
        };
        // The name of a socket may be all that keeps others out: it is not for logs.
        let store = match address {
            Address::Abstract(_) => "a Unix socket of this machine".to_owned(),
            address => address.to_string(),
        };
        Self::Launched { launcher, rank: rank.0, ranks, local_rank, local_ranks, store, rank_0_hosts }
    }
}

/// The paragraph of `campanile info`.
pub fn text(launch: Option<&Launch>) -> String {
    match launch {
        None => "  nobody launched this process: it is a job of one rank\n".to_owned(),
        Some(Launch::Refused { reason }) => format!("  refused: {reason}\n"),
        Some(Launch::Launched { launcher, rank, ranks, local_rank, local_ranks, store, rank_0_hosts }) => {
            let here = match (local_rank, local_ranks) {
                (Some(rank), Some(ranks)) => format!(", number {rank} of {ranks} on this machine"),
                (Some(rank), None) => format!(", number {rank} on this machine"),
                _ => String::new(),
            };
            let host = if *rank_0_hosts { "the store that rank 0 hosts" } else { "the launcher's store" };
            format!("  {launcher}: rank {rank} of {ranks}{here}; the ranks meet at {host}, {store}\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Launch {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Launch::launched(Place::of(&Config::default(), variables).expect("they make sense").expect("a place"))
    }

    #[test]
    fn torchruns_variables_are_told() {
        let variables = [
            ("RANK", "3"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "node-0"),
            ("MASTER_PORT", "29500"),
        ];
        assert_eq!(
            text(Some(&of(&variables))),
            "  torchrun: rank 3 of 8, number 1 of 2 on this machine; the ranks meet at the store that rank 0 hosts, \
             tcp://node-0:29500\n"
        );
    }
}
