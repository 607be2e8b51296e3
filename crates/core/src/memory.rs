//! Memory: what can be registered with a transport.

use std::fmt;

/// Where memory lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Memory of the host, coherent for its CPUs.
    Host,
    /// Memory of the device of that ordinal.
    Device(u32),
}

impl MemoryKind {
    /// Whether it is memory of a device, which the host does not load from or store to.
    pub const fn is_device(self) -> bool {
        matches!(self, Self::Device(_))
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Device(ordinal) => write!(f, "device {ordinal}"),
        }
    }
}

/// A span of the caller's memory, to be registered.
///
/// Plain data: it does not keep the memory alive. Whoever registers it promises that the memory outlives the
/// registration, see [`Transport::register`](crate::Transport::register).
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// First byte.
    pub address: *mut u8,
    /// Length in bytes.
    pub bytes: usize,
    /// Where it lives.
    pub kind: MemoryKind,
}
