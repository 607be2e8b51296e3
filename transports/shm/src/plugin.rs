//! The plugin: opens the transport on this node.

use std::sync::Arc;

use campanile_core::{OpenError, OpenOptions, Probed, Transport, TransportInfo, TransportPlugin};

use crate::cross_memory;
use crate::transport::ShmTransport;

/// Name of the transport, as selection prints and accepts it.
pub(crate) const NAME: &str = "shm";
/// Its only device.
const DEVICE: &str = "node";

/// The shared-memory transport, before it is opened.
///
/// ```
/// use campanile_core::TransportPlugin;
/// assert_eq!(campanile_shm::ShmPlugin.info().name, "shm");
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ShmPlugin;

pub(crate) fn info() -> TransportInfo {
    TransportInfo {
        name: NAME,
        version: env!("CARGO_PKG_VERSION"),
        summary: "shared memory between processes or threads of one node: load / store and a command ring",
        device_code: None,
    }
}

impl TransportPlugin for ShmPlugin {
    fn info(&self) -> TransportInfo {
        info()
    }

    fn probe(&self) -> Vec<Probed> {
        let private = match cross_memory::expected() {
            Ok(()) => "private memory of peers by copies of the kernel".to_owned(),
            Err(reason) => format!("no private memory of peers: {reason}"),
        };
        vec![Probed { device: DEVICE.to_owned(), usable: Ok(format!("memory of this node; {private}")) }]
    }

    fn open(&self, device: &str, options: OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        if device != DEVICE {
            return Err(OpenError::NoDevice {
                transport: NAME,
                device: device.to_owned(),
                available: DEVICE.to_owned(),
            });
        }
        Ok(Arc::new(ShmTransport::open(options)?))
    }
}
