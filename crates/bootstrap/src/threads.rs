//! Ranks that are threads of one process.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use campanile_core::{Bootstrap, BootstrapError, Node, Rank};

/// The bootstrap of one rank of a job whose ranks are threads of this process: a shared map.
///
/// ```
/// use campanile_bootstrap::ThreadBootstrap;
/// use campanile_core::{Bootstrap, Team};
/// use std::time::Duration;
///
/// std::thread::scope(|scope| {
///     for bootstrap in ThreadBootstrap::world(3) {
///         scope.spawn(move || {
///             let (rank, bootstrap): (_, &dyn Bootstrap) = (bootstrap.rank(), &bootstrap);
///             let all = bootstrap.all_gather(&Team::world(3), "hello", &[rank.0 as u8], Duration::from_secs(10));
///             assert_eq!(all.unwrap(), [[0], [1], [2]]);
///         });
///     }
/// });
/// ```
#[derive(Debug)]
pub struct ThreadBootstrap {
    rank: Rank,
    ranks: usize,
    node: Node,
    store: Arc<Store>,
}

#[derive(Debug, Default)]
struct Store {
    values: Mutex<HashMap<String, Vec<u8>>>,
    changed: Condvar,
}

impl Store {
    fn values(&self) -> MutexGuard<'_, HashMap<String, Vec<u8>>> {
        // No code that can panic runs under the lock.
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ThreadBootstrap {
    /// The bootstraps of all ranks of a new job, in order of rank.
    ///
    /// # Panics
    /// If `ranks` is 2^32 or more.
    #[must_use]
    pub fn world(ranks: usize) -> Vec<Self> {
        // Threads share memory whatever /proc tells, so a process is the least that is the same node.
        let identity = campanile_host::process::node_identity();
        let node = Node::new(identity.unwrap_or_else(|_| format!("process-{}", std::process::id())));
        let store = Arc::new(Store::default());
        let member = |rank| Self { rank: Rank::new(rank), ranks, node: node.clone(), store: Arc::clone(&store) };
        (0..ranks).map(member).collect()
    }
}

impl Bootstrap for ThreadBootstrap {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn node(&self) -> Node {
        self.node.clone()
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), BootstrapError> {
        self.store.values().insert(key.to_owned(), value.to_owned());
        self.store.changed.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>, BootstrapError> {
        let start = Instant::now();
        let mut values = self.store.values();
        loop {
            if let Some(value) = values.get(key) {
                return Ok(Some(value.clone()));
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            values = self.store.changed.wait_timeout(values, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
