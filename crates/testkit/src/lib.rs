//! Conformance suite and decorators for transports.
