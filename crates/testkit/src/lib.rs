//! Conformance suite and decorators for transports.

pub mod conformance;
pub mod lies;
