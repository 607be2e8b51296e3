//! Cross-device collectives: what a dependent imports.
//!
//! *Transports move bytes. Collectives decide which bytes. Neither knows the other's insides.*
//!
//! A [`Communicator`] connects the ranks of a job; [`world`] makes it in a process that a launcher started
//! (`campanile run -n 4 -- ./my-program`), [`threads`] runs a closure on ranks that are threads of this process. On a
//! communicator there are
//!
//! * [`Moe`]: expert-parallel dispatch and combine ([`moe`]);
//! * [`Barrier`], [`Broadcast`] and [`AllGather`] ([`collectives`]);
//! * [`Window`]s of symmetric memory and the [`Queue`]s and signals below them ([`core`]), for collectives of one's own.
//!
//! ```
//! use campanile::{Barrier, CommError, CommOptions, threads};
//!
//! let ranks = threads::<_, CommError>(4, &CommOptions::default(), |comm| {
//!     let mut barrier = Barrier::new(&comm)?;
//!     barrier.wait()?;
//!     Ok(comm.rank())
//! });
//! let ranks: Result<Vec<_>, _> = ranks.into_iter().collect();
//! assert_eq!(ranks.unwrap(), [0, 1, 2, 3]);
//! ```

mod explanation;
mod plugins;
mod threads;
mod world;

pub use campanile_bootstrap as bootstrap;
pub use campanile_collectives as collectives;
pub use campanile_core as core;
pub use campanile_gpu as gpu;
pub use campanile_host as host;
pub use campanile_moe as moe;
pub use campanile_p2p as p2p;
pub use campanile_shm as shm;
pub use campanile_testkit as testkit;

pub use campanile_bootstrap::configuration;
pub use campanile_collectives::{AllGather, Barrier, Broadcast};
pub use campanile_core::{
    Agent, Arena, AtomicOp, CommError, CommOptions, Communicator, Completion, Condition, Config, Fault, FaultKind,
    GpuChoice, LocalAddress, MemoryKind, MoeCombine, MoeMode, Op, Path, Queue, QueueOptions, QueueTarget, Rank,
    RemoteAddress, SignalAction, SignalUpdate, Strength, Team, Ticket, Transport, TransportPlugin, Wait, Window,
};
pub use campanile_moe::protocol::Set;
pub use campanile_moe::{
    DType, ExpertLayout, Handle, Moe, MoeConfig, MoeError, OpenRound, Outputs, Plan, PlanPaths, Problem, ReceivedRows,
    RowMeta, Tokens,
};
pub use explanation::{ExplainError, Explanation};
pub use plugins::{Origin, Plugin, Plugins, Refused};
pub use threads::{threads, threads_over};
pub use world::{WorldError, options, world};
