//! The operation on GPUs, in the emulator at waves 32 and 64: the same bits as the model, and every wait that ends.
//!
//! Cases are those of the example `moe_gpu`, which runs them on real GPUs.

#[allow(dead_code, reason = "its benchmark is not run here")]
#[path = "../../examples/moe_gpu/case.rs"]
mod case;
mod disorder;
mod emulated;
mod graph;
mod grid;
mod layouts;
mod masks;
mod phases;
mod push;
#[path = "../../examples/moe_gpu/soak.rs"]
mod soak;
mod types;
mod waits;
