//! Decorators: transports around a transport.
//!
//! A decorator is a [`TransportPlugin`](campanile_core::TransportPlugin) around another one; what it opens is a transport
//! around that one's transport, with queues around its queues. Any number of them stack on any transport; the
//! transport's name shows the stack, innermost first: `shm+throttle+stats`.
//!
//! | decorator | what it does | load / store |
//! |---|---|---|
//! | [`Plain`] | nothing: what a layer costs | as below |
//! | [`Stats`] | counts operations, bytes, waits, busy returns | as below: force path `queue` to see every byte |
//! | [`Trace`] | remembers calls, when and how long; Chrome trace JSON | as below: force path `queue` to see every byte |
//! | [`Check`] | makes misuse of the contract by callers an error that says what they did | hidden |
//! | [`Throttle`] | a model of latency and bandwidth | hidden |
//! | [`Fault`] | delays, reorders, fails, loses completions, kills | hidden |
//! | [`Lean`] | promises little and keeps no more than that | hidden |
//!
//! A decorator that must see every byte hides load / store: its caps say so and nothing is mapped, so that windows move
//! everything by queues. Decorators are for tests and experiments: unlike transports they lock and allocate.
//!
//! # Example
//!
//! From text, as `CAMPANILE_DECORATE` has it, or from code:
//!
//! ```
//! use std::sync::Arc;
//!
//! use campanile_core::TransportPlugin;
//! use campanile_shm::ShmPlugin;
//! use campanile_testkit::decorate::{Stack, Stats, Throttle};
//!
//! let stack: Stack = "throttle(latency=5us, bandwidth=1GB/s)+stats".parse()?;
//! let plugin = stack.apply(Arc::new(ShmPlugin));
//! assert_eq!(plugin.info().name, "shm+throttle+stats");
//!
//! let throttle = Throttle { bytes_per_ns: Some(1.0), ..Throttle::default() };
//! let stats = Stats::new();
//! let plugin = Stack::new().with(throttle).with(stats.clone()).apply(Arc::new(ShmPlugin));
//! # let _ = plugin;
//! println!("{}", stats.snapshot());
//! # Ok::<(), campanile_testkit::decorate::StackError>(())
//! ```

mod check;
mod error;
mod fault;
mod hold;
mod layer;
mod lean;
mod options;
mod plain;
mod regions;
mod stack;
mod stats;
mod throttle;
mod trace;

pub use check::Check;
pub use error::StackError;
pub use fault::{Fault, Kill};
pub use layer::{Decorator, QueueLayer, TransportLayer, decorated_queue, decorated_transport};
pub use lean::Lean;
pub use plain::Plain;
pub use regions::Regions;
pub use stack::Stack;
pub use stats::{Count, PeerStats, RankStats, Snapshot, Stats};
pub use throttle::Throttle;
pub use trace::{Call, Trace};
