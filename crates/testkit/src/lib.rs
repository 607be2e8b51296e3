//! Conformance suite and decorators for transports.

pub mod decorate;
