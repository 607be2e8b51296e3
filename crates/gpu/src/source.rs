//! Sources: [`Source`], a kernel and the headers that it may include.

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

    /// With one more header, such as the device code of a transport. One of the same name is replaced.
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
