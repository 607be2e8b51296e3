//! The P2P transport: load / store into peers' device memory over XGMI or NVLink, ranks of one node as processes or as
//! threads.
//!
//! **Model.** What belongs to the node is [`campanile_shm`]'s: host memory, the hand-shake, deaths, faults, waits, masks, the
//! command ring. Here is what a device adds: memory that is mapped on the device of each rank
//! ([`MemoryKind::Device`](campanile_core::MemoryKind::Device)), an engine that moves bytes on a stream in order with the
//! ring's host operations, and reads of words that the host cannot load. So a communicator over P2P has windows of both
//! kinds. Over CUDA, HIP and the emulator it is the same code.
//!
//! **Kernels.** Its [device code](campanile_core::DeviceCode) is of the form map: a view of a window is the address of every
//! rank's part on this rank's device, and the device API needs no more. Of host memory there is no view.
//!
//! **Devices.** A rank has one: `cuda:0`, `hip:1`, `emulator:3`. Several ranks may share one. Windows are virtual memory that
//! is shared by file descriptor, so the death of the rank that made one takes nothing from those that have mapped it.
//!
//! **What it does not do.** The host does not load from or store to device memory, and there are no atomics and `Add`
//! signals of the host on it: the caps say so.
//!
//! | file | noun |
//! |---|---|
//! | `plugin` | [`P2pPlugin`]: lists devices, opens transports |
//! | `transport` | one rank's end: what it says of itself, over shared memory's |
//! | `memory` | memory of the device, made and imported |
//! | `engine` | a stream, the marks that it writes, bytes that travel inline |
//! | `reader` | words of device memory, read by the host |

mod engine;
mod memory;
mod plugin;
mod reader;
mod transport;

pub use plugin::P2pPlugin;
