//! Handles: what dispatch returns and combine needs.

use crate::protocol::Round;

/// One open round: from a dispatch to its combine or release, which take it.
///
/// Dropping it (or losing it to a call that refused its arguments) leaves the round open: the next dispatch on its set is
/// refused, on this rank, at once, until [`Moe::open_round`](crate::Moe::open_round) has given it back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a round that is neither combined nor released keeps its set"]
pub struct Handle {
    pub(crate) round: Round,
    /// Which operation it is of, so that another's is refused.
    pub(crate) operation: u64,
}

impl Handle {
    /// The round.
    pub fn round(&self) -> Round {
        self.round
    }
}

/// Where an open round is, for a caller that lost its handle: see [`Moe::open_round`](crate::Moe::open_round).
#[derive(Debug, PartialEq, Eq)]
pub enum OpenRound {
    /// Sent, not received.
    Dispatching(Dispatching),
    /// Received.
    Dispatched(Handle),
    /// Results given back, those of the others not summed.
    Combining(Combining),
}

/// A dispatch that has been sent but not received.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a dispatch that is sent must be received"]
pub struct Dispatching(pub(crate) Handle);

/// A combine that has been sent but not received.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a combine that is sent must be received"]
pub struct Combining(pub(crate) Handle);
