//! Collectives written only against the transport traits.
//!
//! A collective is made once for a communicator, collectively, and then run any number of times; its words are never
//! reset. None of them knows a transport: they signal through windows and wait through the communicator.

mod barrier;

pub use barrier::Barrier;
