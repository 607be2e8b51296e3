//! Nouns, traits and the ordering contract of Campanile: pure, no operating system.
//!
//! *Transports move bytes. Collectives decide which bytes. Neither knows the other's insides.*
//!
//! A [`Transport`] reaches peers; a [`TransportPlugin`] opens one. A [`Communicator`] is a [`Team`] of [`Rank`]s plus a
//! connected transport; it makes [`Window`]s of symmetric memory, carved by an [`Arena`]. Bytes move by load / store
//! through mapped pointers or by [`Op`]s posted to a [`Queue`]; [`Ticket`]s and signals ([`Wait`], [`Condition`]) tell
//! when. What each of these promises is the [`contract`]. Nothing here calls the operating system: memory, clocks that
//! matter, and doorbells come in through the traits.

pub mod contract;
pub mod doorbell;
pub mod selection;
pub mod sync;

mod arena;
mod bootstrap;
mod caps;
mod comm_options;
mod communicator;
mod config;
mod device_code;
mod device_view;
mod emulate;
mod endpoint;
mod error;
mod exchange;
mod fault;
mod fingerprint;
mod memory;
mod node;
mod op;
mod path;
mod queue;
mod rank;
mod region;
mod request;
mod signal;
mod sticky;
mod team;
mod ticket;
mod transport;
mod window;

pub use arena::{Arena, ArenaError, ArenaRegion, REGION_ALIGNMENT};
pub use bootstrap::Bootstrap;
pub use caps::{AtomicityDomain, Caps, Cost, Reach, SignalCaps};
pub use comm_options::CommOptions;
pub use communicator::Communicator;
pub use config::{
    Bind, Config, ConfigError, GpuChoice, HugePages, Launched, LogLevel, MoeCombine, MoeMode, Scope, Setting, Source,
    VARIABLES, Variable, parse_duration, suggest,
};
pub use device_code::{DeviceCode, DeviceCodeError, DeviceForm, DeviceScope};
pub use device_view::{DeviceView, DeviceViewError, DeviceWindow};
pub use endpoint::{Endpoint, PeerClass};
pub use error::{BootstrapError, CommError, ControlError, OpenError, PostError, QueueError, WaitError, WaitState};
pub use fault::{Fault, FaultKind};
pub use memory::{Memory, MemoryKind};
pub use node::Node;
pub use op::{AtomicOp, Inline, LocalAddress, Op, OpKind, RemoteAddress, SignalUpdate};
pub use path::Path;
pub use queue::{Cancelled, Initiator, Queue, QueueOptions, QueueTarget};
pub use rank::Rank;
pub use region::{Region, RegionKey, RemoteKey, RemoteRegion};
pub use request::{Pending, Request};
pub use signal::{Condition, SignalAction, Strength, Wait, WordValue};
pub use team::{Team, TeamError};
pub use ticket::{Agent, Completion, Ticket};
pub use transport::{Event, OpenOptions, Probed, Shutdown, Transport, TransportInfo, TransportPlugin};
pub use window::Window;
