//! Nodes: the machines that ranks sit on.

use std::fmt;

/// The identity of a machine, equal for ranks that can share its memory.
///
/// Opaque: whoever starts a rank fills it (boot id and namespaces on Linux), the core only compares it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node(String);

impl Node {
    /// A node of that identity.
    pub fn new(identity: impl Into<String>) -> Self {
        Self(identity.into())
    }

    /// The identity.
    pub fn identity(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
