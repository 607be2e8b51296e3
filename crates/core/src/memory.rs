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
