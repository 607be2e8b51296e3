//! A transport with device queues, for tests: kernels reach peers by its header only, and windows are not mapped.
//!
//! Host memory, connections and faults are those of P2P over emulated devices. What differs is what kernels see: a ring to
//! each peer in memory of the host (`ring.h`), executed by a proxy thread for each window, which ends with the window. It
//! can be made to break one promise: [`Wrong`].

mod proxy;
mod transport;

use std::sync::Arc;

use campanile_core::{
    DeviceCode, DeviceForm, DeviceScope, GpuChoice, OpenError, OpenOptions, Probed, Transport, TransportInfo,
    TransportPlugin,
};
use campanile_gpu::Settings;
use campanile_p2p::P2pPlugin;

use transport::RingTransport;

/// Name of the transport.
const NAME: &str = "ring";

static CODE: DeviceCode = DeviceCode {
    form: DeviceForm::Queue,
    header: include_str!("ring.h"),
    peer_bytes: size_of::<proxy::Peer>() as u32,
    largest_op: proxy::LARGEST,
    native_strong: true,
    ..DeviceCode::map(NAME)
};
static BROKEN: DeviceCode =
    DeviceCode { header: "namespace ring {\nstruct Peer { void* ring; };\nstruct Queue : Nothing {};\n}\n", ..CODE };
static SHORT: DeviceCode = DeviceCode { peer_bytes: 16, ..CODE };
static NEWER: DeviceCode = DeviceCode { abi: DeviceCode::API + 1, ..CODE };
static WAVES: DeviceCode = DeviceCode { smallest_scope: DeviceScope::Wave, convergence: true, ..CODE };

/// What is wrong with it.
#[allow(dead_code, reason = "the plugin's library is what nothing is wrong with; the tests make the others")]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    Nothing,
    /// Nothing: it wants whole waves to post.
    Waves,
    /// Its header does not compile.
    Header,
    /// Its header's `Peer` is not as long as it declares.
    Peer,
    /// It is written against a device API that nobody has.
    Api,
    /// Its view has 8 bytes too many.
    View,
    /// Its view is of another kind.
    Kind,
    /// Its view does not map this rank's part.
    Own,
    /// Its proxies execute nothing.
    Silent,
}

/// The transport, before it is opened.
pub struct Ring {
    inner: P2pPlugin,
    wrong: Wrong,
}

impl Ring {
    pub fn new(wrong: Wrong) -> Self {
        Self { inner: P2pPlugin::new(GpuChoice::Emulator, Settings::default()), wrong }
    }
}

fn info(wrong: Wrong) -> TransportInfo {
    TransportInfo {
        name: NAME,
        version: "1",
        summary: "a test: kernels post to rings that a proxy thread executes",
        device_code: Some(match wrong {
            Wrong::Header => &BROKEN,
            Wrong::Peer => &SHORT,
            Wrong::Api => &NEWER,
            Wrong::Waves => &WAVES,
            _ => &CODE,
        }),
    }
}

impl TransportPlugin for Ring {
    fn info(&self) -> TransportInfo {
        info(self.wrong)
    }

    fn probe(&self) -> Vec<Probed> {
        self.inner.probe()
    }

    fn open(&self, device: &str, options: OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        let rank = options.rank;
        Ok(Arc::new(RingTransport::new(self.inner.open(device, options)?, rank, self.wrong)))
    }
}
