//! What the operating system gives: shared memory, channels that carry file descriptors, waits between processes,
//! copies, clocks, processes, and where cores and caches are.
//!
//! Nothing here knows of ranks' protocols or transports. Everything is Linux, on x86_64 and aarch64; what a machine
//! does not have (huge pages, pidfds of peers, AVX-512) is replaced by the next best thing, and the replacement is
//! visible to the caller.
//!
//! | module | noun |
//! |---|---|
//! | [`memory`] | [`SharedMemory`](memory::SharedMemory): sealed, pre-allocated memory behind a file descriptor |
//! | [`channel`] | [`Listener`](channel::Listener), [`Channel`](channel::Channel): messages with descriptors |
//! | [`wait`] | futex across processes; [`SpinPolicy`](wait::SpinPolicy): how long to spin, yield, sleep |
//! | [`copy`] | [`Copier`](copy::Copier): temporal and non-temporal copies |
//! | [`affinity`] | [`CpuSet`](affinity::CpuSet): which CPUs a thread may use |
//! | [`topology`] | [`Topology`](topology::Topology): cores, NUMA nodes, and which CPUs each rank gets |
//! | [`cache`] | [`Caches`](cache::Caches): sizes and sharing |
//! | [`process`] | [`Pidfd`](process::Pidfd), dying with one's parent, who can share memory |
//! | [`limits`], [`cgroup`], [`filesystem`] | what bounds this process: [`Limits`](limits::Limits), CPU quota, [`Space`](filesystem::Space) |
//! | [`kernel`], [`namespace`], [`huge_pages`] | what the kernel is and gives |
//! | [`library`] | whether a library can be loaded |
//! | [`clock`] | nanoseconds that all processes of a machine agree on |

#[cfg(not(target_os = "linux"))]
compile_error!("campanile-host stands on memfd, futex and pidfd: Linux only");

pub mod affinity;
pub mod cache;
pub mod cgroup;
pub mod channel;
pub mod clock;
pub mod copy;
pub mod filesystem;
pub mod huge_pages;
pub mod kernel;
pub mod library;
pub mod limits;
pub mod memory;
pub mod namespace;
mod poll;
pub mod process;
pub mod topology;
pub mod wait;
