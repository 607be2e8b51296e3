//! Ways: how a transport gets at a peer's memory.

use std::fmt;

/// By a pointer or by posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Loads and stores through a mapped pointer.
    LoadStore,
    /// Operations that are posted to a queue.
    Queue,
}

impl Way {
    /// Both.
    pub const ALL: [Self; 2] = [Self::LoadStore, Self::Queue];

    /// The name, the same as that of the [`Path`](crate::Path) that forces it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LoadStore => "load-store",
            Self::Queue => "queue",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
