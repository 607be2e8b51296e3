//! Ranks that were built or configured differently are told apart by field and rank, before anything else goes wrong.

use std::sync::Arc;
use std::time::Duration;

use campanile::bootstrap::ThreadBootstrap;
use campanile::core::{HugePages, OpenError, OpenOptions, Probed, TransportInfo};
use campanile::shm::ShmPlugin;
use campanile::{CommError, CommOptions, Communicator, Path, Transport, TransportPlugin};

/// The transport under another name or version, as a plugin of another build may be.
struct Renamed(TransportInfo);

impl TransportPlugin for Renamed {
    fn info(&self) -> TransportInfo {
        self.0.clone()
    }

    fn probe(&self) -> Vec<Probed> {
        ShmPlugin.probe()
    }

    fn open(&self, device: &str, options: OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        ShmPlugin.open(device, options)
    }
}

/// Three ranks, of which the last has its own plugin and options; what each got.
fn world(plugin: &dyn TransportPlugin, options: CommOptions) -> Vec<Result<Communicator, CommError>> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = ThreadBootstrap::world(3)
            .into_iter()
            .enumerate()
            .map(|(rank, bootstrap)| {
                let options = options.clone();
                scope.spawn(move || match rank {
                    2 => Communicator::new(Arc::new(bootstrap), plugin, options),
                    _ => Communicator::new(Arc::new(bootstrap), &ShmPlugin, CommOptions::default()),
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

#[test]
fn what_must_be_equal_is_named_with_the_rank_that_differs() {
    let shm = ShmPlugin.info();
    let renamed = |name, version| Renamed(TransportInfo { name, version, ..shm.clone() });
    let queue = CommOptions { path: Path::Queue, ..CommOptions::default() };
    let cases = [
        (renamed("tcp", shm.version), CommOptions::default(), "transport", "tcp"),
        (renamed(shm.name, "0.0.0-other"), CommOptions::default(), "version of transport shm", "0.0.0-other"),
        (renamed(shm.name, shm.version), queue, "path", "queue"),
    ];
    for (plugin, options, expected, value) in cases {
        for (rank, result) in world(&plugin, options).into_iter().enumerate() {
            let Err(CommError::Mismatch { field, given, theirs, peer, .. }) = result else {
                panic!("{expected} differs, rank {rank} got {:?}", result.err());
            };
            assert_eq!((field.as_str(), peer.index()), (expected, if rank == 2 { 0 } else { 2 }));
            assert_eq!(if rank == 2 { given } else { theirs }, value);
        }
    }
}

#[test]
fn a_ranks_own_affairs_may_differ() {
    let options = CommOptions {
        timeout: Duration::from_secs(7),
        queue_depth: 8,
        huge_pages: HugePages::Never,
        cores: 1,
        ..CommOptions::default()
    };
    for rank in world(&ShmPlugin, options) {
        rank.expect("they can communicate");
    }
}
