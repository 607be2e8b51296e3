//! Errors of the MoE engine.

use campanile_core::{CommError, Fault};

use crate::plan::PlanError;
use crate::protocol::{Misuse, ProtocolError};

/// An MoE operation could not be made or done.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoeError {
    /// The config is not one.
    #[error("moe: {0}")]
    Plan(#[from] PlanError),
    /// A call that is not allowed now.
    #[error("moe: {0}")]
    Misuse(#[from] Misuse),
    /// An argument does not fit the config.
    #[error("moe {operation}: {argument} {given}; {allowed}")]
    Argument {
        /// Which call.
        operation: &'static str,
        /// Which argument.
        argument: &'static str,
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// A peer broke the protocol.
    #[error("moe: {0}")]
    Protocol(#[from] Box<ProtocolError>),
    /// The communicator failed: somebody died, stalled or aborted.
    #[error(transparent)]
    Comm(#[from] CommError),
}

impl MoeError {
    /// The culprit, if there is one.
    pub fn fault(&self) -> Option<Fault> {
        match self {
            Self::Comm(error) => error.fault(),
            _ => None,
        }
    }
}
