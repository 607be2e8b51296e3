//! Paths: by which way windows reach peers.

/// By which path windows reach peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Path {
    /// Load / store where it reaches, queues elsewhere.
    #[default]
    Auto,
    /// Load / store only; a peer that it does not reach is an error.
    LoadStore,
    /// Queues only.
    Queue,
}

impl Path {
    /// The name that is printed and accepted.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::LoadStore => "load-store",
            Self::Queue => "queue",
        }
    }
}
