//! The shared-memory transport: ranks of one node, as processes or as threads.
//!
//! Every window is sealed, pre-allocated memory behind a file descriptor that travels to the peers over unix sockets
//! (SCM_RIGHTS) and is mapped by all of them, so data moves by plain loads and stores, or by a command ring whose
//! operations the poster's own `progress` executes. Nothing has a name in the file system: whatever dies, nothing stays.
//!
//! | file | noun |
//! |---|---|
//! | `plugin` | [`ShmPlugin`]: opens transports |
//! | `transport` | one rank's end |
//! | `connect` | the hand-shake of two ranks |
//! | `control` | the control block: one page a rank, mapped by all: sleep, heart-beat, fault |
//! | `registry` | region keys and what they name |
//! | `region` | memory of this rank and mappings of others', to their end |
//! | `export` | key blobs, and the descriptors that travel beside them |
//! | `queue` | the command ring |
//! | `operations` | what an operation does to host memory |
//! | `pipeline` | operations that a device's engine does, in order with those |
//! | [`device`] | the seam to a transport that adds device memory |
//! | `wait` | waiting for a word: spin, yield, sleep; deadlines, deaths and whom to blame |

mod connect;
mod control;
pub mod device;
mod export;
mod operations;
mod pipeline;
mod plugin;
mod queue;
mod region;
mod registry;
mod transport;
mod wait;

pub use plugin::ShmPlugin;
pub use transport::ShmTransport;
