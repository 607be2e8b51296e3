//! How ranks are started and find each other.
//!
//! A rank reaches its job through a [`Bootstrap`](campanile_core::Bootstrap): a key-value store and who it is in it.
//! There are two: [`ThreadBootstrap`], for ranks that are threads of one process, and [`StoreClient`], for processes,
//! which talk to the [`StoreServer`] in their launcher. [`Launch`] starts such processes on this machine and sees to it
//! that none outlives the job; [`from_env`] is what a process asks to learn whether it was launched, and as what.
//!
//! | module | noun |
//! |---|---|
//! | `threads` | [`ThreadBootstrap`] |
//! | `store` | [`StoreServer`], [`StoreClient`]: torch's store protocol over a Unix socket |
//! | `environment` | [`configuration`], [`join`], [`from_env`] |
//! | `launch` | [`Launch`], [`Outcome`]: ranks as processes |

mod environment;
mod launch;
mod poll;
mod store;
mod threads;

pub use environment::{JoinError, configuration, from_env, join};
pub use launch::{Exit, Failure, Launch, LaunchError, Outcome, Output, RankOutcome};
pub use store::{Address, MAX_KEY, MAX_VALUE, StoreClient, StoreServer};
pub use threads::ThreadBootstrap;
