//! A plugin in Rust that panics as soon as it is asked who it is.

use std::sync::Arc;

use campanile::core::{OpenError, OpenOptions, Probed, TransportInfo};
use campanile::{Transport, TransportPlugin};

struct Panicking;

impl TransportPlugin for Panicking {
    fn info(&self) -> TransportInfo {
        panic!("who am I?")
    }

    fn probe(&self) -> Vec<Probed> {
        Vec::new()
    }

    fn open(&self, _: &str, _: OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        unreachable!("it cannot be loaded")
    }
}

campanile_plugin::export!(Panicking, vendor = "a test");
