//! How ranks are started and find each other.
//!
//! A rank reaches its job through a [`Bootstrap`](campanile_core::Bootstrap): a key-value store and who it is in it.
//! There are two: [`ThreadBootstrap`], for ranks that are threads of one process, and [`StoreClient`], for processes,
//! which talk to a [`StoreServer`] in their launcher or on rank 0, or to a store of torch. [`Launch`] starts such
//! processes on this machine and sees to it that none outlives the job; [`from_env`] is what a process asks to learn
//! whether it was launched, and as what, by whichever launcher.
//!
//! | module | noun |
//! |---|---|
//! | `threads` | [`ThreadBootstrap`] |
//! | `store` | [`StoreServer`], [`StoreClient`], [`Address`]: torch's store protocol over Unix sockets and TCP |
//! | `launcher` | [`Place`], [`Rendezvous`]: what torchrun, Open MPI, Slurm and PMI launchers tell |
//! | `ancestor` | the process that started the ranks, where the launcher has no name for the job |
//! | `rendezvous` | joining a job: hosting its store on rank 0, waiting for it elsewhere |
//! | `environment` | [`configuration`], [`place`], [`join`], [`from_env`] |
//! | `launch` | [`Launch`], [`Outcome`]: ranks as processes |

mod ancestor;
mod environment;
mod launch;
mod launcher;
mod poll;
mod rendezvous;
mod store;
mod threads;

pub use environment::{JoinError, configuration, from_env, join, place};
pub use launch::{Exit, Failure, Launch, LaunchError, Outcome, Output, RankOutcome};
pub use launcher::{Place, PlaceError, Rendezvous};
pub use store::{Address, MAX_ANSWER, MAX_KEY, MAX_VALUE, StoreClient, StoreServer};
pub use threads::ThreadBootstrap;
