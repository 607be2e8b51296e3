//! Options: how a communicator is made.

use std::time::Duration;

use crate::selection::Preference;
use crate::{HugePages, Path, QueueOptions};

/// How a communicator is made.
#[derive(Clone, Debug)]
pub struct CommOptions {
    /// Name, different for each communicator of a job, the same on all its ranks.
    pub name: String,
    /// Which transports may be used.
    pub transports: Preference,
    /// Device of the transport; empty for [the rank's own](crate::Probed::of_rank).
    pub device: String,
    /// Upper bound of every wait.
    pub timeout: Duration,
    /// Path of its windows.
    pub path: Path,
    /// Slots of each queue.
    pub queue_depth: usize,
    /// Whether windows are put on huge pages.
    pub huge_pages: HugePages,
    /// CPUs that the ranks on this node may use together, counted before they were bound; 0: as many as this process may
    /// use now.
    pub cores: usize,
}

impl Default for CommOptions {
    fn default() -> Self {
        Self {
            name: "world".to_owned(),
            transports: Preference::AUTO,
            device: String::new(),
            timeout: Duration::from_secs(30),
            path: Path::Auto,
            queue_depth: QueueOptions::default().depth,
            huge_pages: HugePages::default(),
            cores: 0,
        }
    }
}
