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

impl Memory {
    /// The whole address space of this process, as host memory: an offset is an address.
    ///
    /// Registering it once makes any private memory a source or target of gets and puts, without a registration a
    /// buffer: what verbs call an implicit on-demand registration, and XPMEM a segment of the whole space. What is not
    /// mapped when an operation runs is an error of that operation where the transport claims
    /// [`reaches_registered`](crate::Transport::reaches_registered); other transports need not take it.
    pub const ADDRESS_SPACE: Self =
        Self { address: std::ptr::null_mut(), bytes: isize::MAX as usize, kind: MemoryKind::Host };

    /// Whether it is [`ADDRESS_SPACE`](Self::ADDRESS_SPACE).
    pub fn is_address_space(&self) -> bool {
        self.address.is_null() && self.bytes == Self::ADDRESS_SPACE.bytes && self.kind == MemoryKind::Host
    }
}
