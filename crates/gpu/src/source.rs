//! Sources: [`Source`], a kernel and the headers that it may include.

use campanile_core::{DeviceCode, DeviceForm};

/// The header in whose stead device code of a transport comes.
const TRANSPORT: &str = "device/transport.h";

/// The device API, carried in the binary: kernels are compiled where it runs.
const HEADERS: &[(&str, &str)] = &[
    ("portable.h", include_str!("../../../kernels/portable.h")),
    ("portable/cuda.h", include_str!("../../../kernels/portable/cuda.h")),
    ("portable/hip.h", include_str!("../../../kernels/portable/hip.h")),
    ("portable/cpu.h", include_str!("../../../kernels/portable/cpu.h")),
    ("wait.h", include_str!("../../../kernels/wait.h")),
    ("grid.h", include_str!("../../../kernels/grid.h")),
    ("campanile.h", include_str!("../../../kernels/campanile.h")),
    ("device/arena.h", include_str!("../../../kernels/device/arena.h")),
    ("device/barrier.h", include_str!("../../../kernels/device/barrier.h")),
    ("device/communicator.h", include_str!("../../../kernels/device/communicator.h")),
    ("device/failure.h", include_str!("../../../kernels/device/failure.h")),
    ("device/group.h", include_str!("../../../kernels/device/group.h")),
    ("device/put.h", include_str!("../../../kernels/device/put.h")),
    ("device/queue.h", include_str!("../../../kernels/device/queue.h")),
    ("device/signal.h", include_str!("../../../kernels/device/signal.h")),
    ("device/team.h", include_str!("../../../kernels/device/team.h")),
    (TRANSPORT, include_str!("../../../kernels/device/transport.h")),
    ("emulator/runtime.h", include_str!("../../../kernels/emulator/runtime.h")),
    ("emulator/runtime.cpp", include_str!("../../../kernels/emulator/runtime.cpp")),
    ("emulator/context.h", include_str!("../../../kernels/emulator/context.h")),
    ("emulator/sanitizer.h", include_str!("../../../kernels/emulator/sanitizer.h")),
];

/// A C++ source: a name, its text, and headers by the names under which it includes them. The device API is always
/// there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    name: String,
    text: String,
    headers: Vec<(String, String)>,
}

impl Source {
    /// A source.
    #[must_use]
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        let headers = HEADERS.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Self { name: name.into(), text: text.into(), headers }
    }

    /// The kernels that try what every target must do: copy, put with signal, wait with deadline and abort, barrier
    /// over blocks, lanes. See `kernels/smoke.cpp`.
    #[must_use]
    pub fn smoke() -> Self {
        Self::new("smoke.cpp", include_str!("../../../kernels/smoke.cpp"))
    }

    /// The kernels that try what `kernels/campanile.h` offers. See `kernels/device/smoke.cpp`.
    #[must_use]
    pub fn device_smoke() -> Self {
        Self::new("device/smoke.cpp", include_str!("../../../kernels/device/smoke.cpp"))
    }

    /// With the device code of a transport, so that put and signal reach peers that are not mapped. Nothing changes for one of
    /// the form map. [`DeviceCommunicator::compile`](crate::DeviceCommunicator::compile) does this for the transport that was
    /// chosen.
    ///
    /// The kernel includes it by `device/queue.h`, as part of the device API. Its text is part of what a
    /// [`Cache`](crate::Cache) knows an entry by.
    #[must_use]
    pub fn with_device_code(self, code: &DeviceCode) -> Self {
        if code.form == DeviceForm::Map {
            return self;
        }
        let header = format!("device/transport/{}.h", code.kind);
        self.with_header(TRANSPORT, declarations(code, &header)).with_header(header, code.header)
    }

    /// With one more header. One of the same name is replaced.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        let (name, text) = (name.into(), text.into());
        self.headers.retain(|(other, _)| *other != name);
        self.headers.push((name, text));
        self
    }

    /// Its name, a relative path.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// (name, text) of each header.
    #[must_use]
    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }
}

/// What `kernels/device/queue.h` knows of a transport with queues.
fn declarations(code: &DeviceCode, header: &str) -> String {
    format!(
        "// The device code of a transport, as it declares it.
#ifndef CAMPANILE_DEVICE_TRANSPORT_H
#define CAMPANILE_DEVICE_TRANSPORT_H

#include \"device/communicator.h\"
#include \"device/failure.h\"
#include \"device/group.h\"

#define CAMPANILE_QUEUE {kind}

namespace campanile {{

constexpr u32 QUEUE_API = {api};
constexpr u32 QUEUE_PEER_BYTES = {peer_bytes};
constexpr u32 QUEUE_SMALLEST_SCOPE = {scope};
constexpr bool QUEUE_CONVERGENCE = {convergence};
constexpr u32 QUEUE_SLOTS_PER_OP = {slots};
constexpr u64 QUEUE_LARGEST_OP = {largest}ull;
constexpr u32 QUEUE_ALIGNMENT = {alignment};
constexpr u32 QUEUE_PRODUCERS = {producers};  // that may share a queue; 0: any number
constexpr bool QUEUE_NATIVE_STRONG = {strong};

}}  // namespace campanile

#include \"{header}\"

#endif
",
        kind = code.kind,
        api = code.abi,
        peer_bytes = code.peer_bytes,
        scope = code.smallest_scope as u32,
        convergence = code.convergence,
        slots = code.slots_per_op,
        largest = code.largest_op,
        alignment = code.alignment,
        producers = code.producers_per_queue.map_or(0, std::num::NonZeroU32::get),
        strong = code.native_strong,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number that headers are compiled against is the one that hosts check.
    #[test]
    fn the_device_api_has_one_version() {
        let queue = Source::smoke();
        let (_, text) = queue.headers().iter().find(|(name, _)| name == "device/queue.h").unwrap();
        assert!(text.contains(&format!("constexpr u32 DEVICE_API = {};", DeviceCode::API)));
    }

    #[test]
    fn device_code_of_queues_takes_the_place_of_none() {
        let plain = Source::device_smoke();
        assert_eq!(plain.clone().with_device_code(&DeviceCode::map("m")), plain);
        let code = DeviceCode {
            form: DeviceForm::Queue,
            header: "// mine",
            peer_bytes: 8,
            largest_op: u64::MAX,
            ..DeviceCode::map("mine")
        };
        let source = plain.clone().with_device_code(&code);
        let text = |name: &str| source.headers().iter().find(|(other, _)| other == name).map(|(_, text)| text.as_str());
        assert_eq!(text("device/transport/mine.h"), Some("// mine"));
        let declared = text(TRANSPORT).unwrap();
        assert!(declared.contains("#define CAMPANILE_QUEUE mine") && declared.contains("18446744073709551615ull"));
        assert_eq!(source.headers().len(), plain.headers().len() + 1);
    }
}
