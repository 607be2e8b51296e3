//! Collectives written only against the transport traits.
//!
//! A collective is made once for a communicator, collectively, and then run any number of times; its words are never
//! reset. None of them knows a transport: they signal through windows and wait through the communicator.
//!
//! | | what it does | built on |
//! |---|---|---|
//! | [`Barrier`] | nobody leaves before everybody has entered | words |
//! | [`Broadcast`] | one rank's bytes to all | a stream of slots from each rank |
//! | [`AllGather`] | every rank's bytes to all | the same |
//! | [`gpu::GpuBarrier`] | the barrier as a kernel, in stream order | words of the devices' windows |
//!
//! The stream is described in the source, in `stream.rs`, and in the manual's page on collectives.

mod all_gather;
mod barrier;
mod broadcast;
pub mod gpu;
mod stream;

pub use all_gather::AllGather;
pub use barrier::Barrier;
pub use broadcast::Broadcast;
