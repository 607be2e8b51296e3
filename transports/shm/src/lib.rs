//! The shared-memory transport: ranks of one node, as processes or as threads.
//!
//! Every window is sealed, pre-allocated memory behind a file descriptor that travels to the peers over unix sockets
//! (SCM_RIGHTS) and is mapped by all of them, so data moves by plain loads and stores, or by a command ring whose
//! operations the poster's own `progress` executes. Private memory that a rank registers and exports is reached by puts and
//! gets, which the kernel copies, where it allows that (`cross_memory`). Nothing has a name in the file system: whatever dies, nothing stays.
//!
//! | file | noun |
//! |---|---|
//! | `plugin` | [`ShmPlugin`]: opens transports |
//! | `transport` | one rank's end |
//! | `connect` | the hand-shake of two ranks |
//! | `cross_memory` | copies of private memory by the kernel |
//! | `control` | the control block: one page a rank, mapped by all: sleep, heart-beat, fault |
//! | `registry` | region keys and what they name |
//! | `region` | memory of this rank and mappings of others', to their end |
//! | `export` | how a peer comes to a region: key blobs, and the descriptors that travel beside them |
//! | `registration` | what peers know of private memory |
//! | `queue` | the command ring |
//! | `operations` | what an operation does to host memory |
//! | `pipeline` | operations that a device's engine does, in order with those |
//! | [`device`] | the seam to a transport that adds device memory |
//! | `wait` | waiting for a word: spin, yield, sleep; deadlines, deaths and whom to blame |

mod connect;
mod control;
mod cross_memory;
pub mod device;
mod export;
mod operations;
mod pipeline;
mod plugin;
mod queue;
mod region;
mod registration;
mod registry;
mod transport;
mod wait;

pub use plugin::ShmPlugin;
pub use transport::ShmTransport;
