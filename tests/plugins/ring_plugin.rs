//! The transport with device queues, as a file.

#[path = "ring/mod.rs"]
mod ring;

campanile_plugin::export!(ring::Ring::new(ring::Wrong::Nothing), vendor = "a test");
