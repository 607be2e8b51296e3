//! Collectives as kernels: launched on a stream, joined by the kernels of others.
//!
//! **Model.** They run on a [`DeviceCommunicator`](campanile_gpu::DeviceCommunicator), with the device API of
//! `kernels/campanile.h`. A launch allocates nothing and waits for nothing on the host; words and epochs live on the
//! device, so that a captured graph can be launched any number of times.
//!
//! **Invariants.** Every wait on the device ends: by its deadline, or by an abort. The first failure of a rank is recorded
//! and is final for its communicator. All ranks launch the collectives of a communicator in one order.

mod barrier;

pub use barrier::{BarrierView, GpuBarrier, GpuBarrierError};
