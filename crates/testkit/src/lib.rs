//! What proves a transport: the conformance suite, the lies that it must find, and decorators around any transport.

pub mod conformance;
pub mod decorate;
pub mod lies;
