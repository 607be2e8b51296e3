//! What selection would do on this machine, and why.

use campanile_core::selection::{Candidate, Opened, Peer, Policy, Selection, choose};
use campanile_core::{Config, ConfigError, MemoryKind, Node, OpenOptions, Rank};
use campanile_host::process::{ProcessError, node_identity};

use crate::Plugins;

/// No explanation can be given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// This machine has no identity.
    #[error(transparent)]
    Node(#[from] ProcessError),
}

/// The selection of rank 0 of a job that is not there: every transport is opened, asked and closed again.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// What was allowed.
    pub policy: Policy,
    /// The transports and their devices.
    pub candidates: Vec<Candidate>,
    /// The transport that a communicator of the ranks on this node opens, or why there is none.
    pub communicator: Result<String, String>,
    /// The table, for the ranks of this node and one of another node, in host memory and in memory of the first device.
    pub selection: Selection,
}

impl Explanation {
    /// Of `ranks` ranks on this node, at least 1, and one more on another node.
    ///
    /// # Errors
    /// [`ExplainError`] if the configuration names what is not there, or `/proc` is not mounted.
    ///
    /// ```
    /// use campanile::core::{MemoryKind, OpKind, Rank};
    /// use campanile::{Config, Explanation, Plugins};
    ///
    /// let config = Config::default();
    /// let explanation = Explanation::new(&Plugins::of(&config)?, &config, 2)?;
    /// let row = explanation.selection.find(Rank(1), MemoryKind::Host, OpKind::Put, 4096).unwrap();
    /// assert_eq!(explanation.communicator.as_deref(), Ok("shm"));
    /// assert_eq!(row.chosen().unwrap().transport, "shm");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(plugins: &Plugins, config: &Config, ranks: usize) -> Result<Self, ExplainError> {
        let mut policy = config.policy();
        policy.transports = plugins.preference(config)?;
        let ranks = ranks.max(1);
        let node = Node::new(node_identity()?);
        let elsewhere = Node::new("another-node");
        let peers = Peer::seen_from(Rank(0), vec![node.clone(); ranks].into_iter().chain([elsewhere]));
        let options = OpenOptions {
            rank: Rank(0),
            ranks: ranks + 1,
            node,
            ranks_on_node: ranks,
            cores: 0,
            huge_pages: config.huge_pages(),
            timeout: config.timeout(),
        };
        let open = |plugin| Opened::open(plugin, "", options.clone(), &peers);
        let opened: Vec<_> = plugins.transports().into_iter().map(open).collect();
        let communicator = choose(&opened, &peers[..ranks], &policy);
        let candidates: Vec<_> = opened.iter().map(|opened| opened.candidate().clone()).collect();
        let memories = [MemoryKind::Host, MemoryKind::Device(0)];
        let selection = Selection::new(&candidates, &peers, &memories, &policy);
        Ok(Self { policy, candidates, communicator, selection })
    }
}
