//! Device code: [`DeviceCode`], what a transport brings for kernels.
//!
//! **Model.** Kernels are written once against the device API (`kernels/campanile.h`) and name no transport. They are
//! compiled at run time with the device code of the transport that the communicator chose. Its [`DeviceForm`] says what
//! that is: *map*, where load and store reach the window of every peer, needs no header, for the device API itself is the
//! code; *queue* brings a header with put, signal and put with signal for its queues, and declares what they need. What
//! the code reads at run time is a [`DeviceView`](crate::DeviceView) of one window.
//!
//! **Invariant.** Device code that is used has passed [`check`](DeviceCode::check), whether it is linked in or came
//! through a C table.

use std::fmt;
use std::num::NonZeroU32;

/// How kernels reach peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceForm {
    /// By load and store: every window is mapped for the device.
    Map,
    /// By posting to queues from registered memory; a peer may be mapped all the same, and this rank always is.
    Queue,
}

impl fmt::Display for DeviceForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Map => "map",
            Self::Queue => "queue",
        })
    }
}

/// Threads that post to a queue together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DeviceScope {
    /// Each one for itself.
    Thread,
    /// A wave (a warp).
    Wave,
    /// A block.
    Block,
}

/// What a transport brings for kernels. Experimental until two transports bring queues.
///
/// ```
/// use campanile_core::{DeviceCode, DeviceForm};
///
/// static QUEUES: DeviceCode = DeviceCode {
///     form: DeviceForm::Queue,
///     header: "namespace ring { struct Peer { campanile::u64* slots; }; struct Queue { /* put, signal, ... */ }; }",
///     peer_bytes: 8,
///     largest_op: 1 << 30,
///     ..DeviceCode::map("ring")
/// };
/// assert!(QUEUES.check().is_ok());
/// let newer = DeviceCode { abi: 9, ..QUEUES };
/// assert!(newer.check().unwrap_err().to_string().contains("version 9 of the device API"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCode {
    /// Name of the kind: the header's namespace, a C++ identifier.
    pub kind: &'static str,
    /// How kernels reach peers.
    pub form: DeviceForm,
    /// Text of the header, which `kernels/device/queue.h` describes; empty for [`DeviceForm::Map`].
    pub header: &'static str,
    /// Version of the device API that it is written against: [`API`](Self::API).
    pub abi: u32,
    /// Bytes of the header's struct `Peer`, of which a view has one for each member; 0 for [`DeviceForm::Map`].
    pub peer_bytes: u32,
    /// Smallest group that may post.
    pub smallest_scope: DeviceScope,
    /// Whether the threads of that group must be converged.
    pub convergence: bool,
    /// Slots of an operation, at most.
    pub slots_per_op: u32,
    /// Most bytes of an operation: the device API posts more in pieces of a multiple of 16 bytes.
    pub largest_op: u64,
    /// Required alignment of addresses and lengths in bytes: 1, 2 or 4.
    pub alignment: u32,
    /// Producers that may share a queue; `None`: any number.
    pub producers_per_queue: Option<NonZeroU32>,
    /// Whether a strong signal costs no drain.
    pub native_strong: bool,
    /// Bits of a signal word that arrive together.
    pub signal_bits: u32,
}

impl DeviceCode {
    /// Version of the device API that this host compiles: its only one.
    pub const API: u32 = 1;
    /// Most bytes of a header: more is no header.
    pub const MAX_HEADER: usize = 1 << 20;
    /// Most bytes of a kind.
    pub const MAX_KIND: usize = 64;

    /// That of a transport which maps all windows for the device. What it declares of queues is what load and store keep.
    pub const fn map(kind: &'static str) -> Self {
        Self {
            kind,
            form: DeviceForm::Map,
            header: "",
            abi: Self::API,
            peer_bytes: 0,
            smallest_scope: DeviceScope::Thread,
            convergence: false,
            slots_per_op: 1,
            largest_op: u64::MAX,
            alignment: 1,
            producers_per_queue: None,
            native_strong: true,
            signal_bits: 64,
        }
    }

    /// Whether this host can compile it.
    ///
    /// # Errors
    /// [`DeviceCodeError`] says what was given and what is allowed.
    pub fn check(&self) -> Result<(), DeviceCodeError> {
        Self::check_api(self.abi)?;
        let invalid = |field, given: String, allowed| Err(DeviceCodeError::Invalid { field, given, allowed });
        if !is_identifier(self.kind) {
            return invalid("kind", format!("{:?}", self.kind), "a C++ identifier of at most 64 letters, digits and _");
        }
        if self.header.len() > Self::MAX_HEADER {
            return invalid("header", format!("of {} bytes", self.header.len()), "at most 1 MiB");
        }
        if let Some(at) = self.header.find('\0') {
            return invalid("header", format!("with a NUL at byte {at}"), "text without NULs");
        }
        let is_queue = self.form == DeviceForm::Queue;
        if self.header.is_empty() == is_queue {
            let given = format!("of {} bytes", self.header.len());
            return invalid("header", given, "one for the form queue, and none for the form map");
        }
        if (self.peer_bytes == 0) == is_queue || !self.peer_bytes.is_multiple_of(8) {
            let allowed = "a multiple of 8, from 8 on for the form queue, and 0 for the form map";
            return invalid("peer_bytes", self.peer_bytes.to_string(), allowed);
        }
        if self.slots_per_op == 0 {
            return invalid("slots_per_op", "0".to_owned(), "at least 1");
        }
        if self.largest_op < 16 {
            return invalid("largest_op", self.largest_op.to_string(), "at least 16 bytes");
        }
        if !matches!(self.alignment, 1 | 2 | 4) {
            return invalid("alignment", self.alignment.to_string(), "1, 2 or 4, of which lengths are multiples");
        }
        if self.signal_bits != 64 {
            return invalid("signal_bits", self.signal_bits.to_string(), "64, which words of windows have");
        }
        Ok(())
    }

    /// Whether this host compiles code that is written against that version of the device API.
    ///
    /// # Errors
    /// [`DeviceCodeError::Api`].
    pub fn check_api(given: u32) -> Result<(), DeviceCodeError> {
        if given == Self::API { Ok(()) } else { Err(DeviceCodeError::Api { given }) }
    }
}

fn is_identifier(text: &str) -> bool {
    let starts = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    starts
        && text.len() <= DeviceCode::MAX_KIND
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

/// Device code that this host cannot use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceCodeError {
    /// It is written against a device API that this host does not have.
    #[error(
        "it is written against version {given} of the device API, this host has version {}; use one that was built for \
         this version's kernels/campanile.h",
        DeviceCode::API
    )]
    Api {
        /// The version.
        given: u32,
    },
    /// A field has a value that it cannot have.
    #[error("{field} {given}; {allowed}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What it says.
        given: String,
        /// What it may be.
        allowed: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: DeviceCode = DeviceCode {
        form: DeviceForm::Queue,
        header: "namespace q {}",
        peer_bytes: 24,
        largest_op: 16,
        ..DeviceCode::map("q")
    };

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!((QUEUE.check(), DeviceCode::map("_p2p").check()), (Ok(()), Ok(())));
        let wrong = [
            ("kind", DeviceCode { kind: "", ..QUEUE }),
            ("kind", DeviceCode { kind: "9a", ..QUEUE }),
            ("kind", DeviceCode { kind: "a\"\n#error", ..QUEUE }),
            (
                "kind",
                DeviceCode { kind: "a12345678901234567890123456789012345678901234567890123456789012345", ..QUEUE },
            ),
            ("header", DeviceCode { header: "", ..QUEUE }),
            ("header", DeviceCode { header: "a\0b", ..QUEUE }),
            ("header", DeviceCode { header: "// of nobody", ..DeviceCode::map("m") }),
            ("peer_bytes", DeviceCode { peer_bytes: 0, ..QUEUE }),
            ("peer_bytes", DeviceCode { peer_bytes: 12, ..QUEUE }),
            ("peer_bytes", DeviceCode { peer_bytes: 8, ..DeviceCode::map("m") }),
            ("slots_per_op", DeviceCode { slots_per_op: 0, ..QUEUE }),
            ("largest_op", DeviceCode { largest_op: 15, ..QUEUE }),
            ("alignment", DeviceCode { alignment: 8, ..QUEUE }),
            ("signal_bits", DeviceCode { signal_bits: 32, ..QUEUE }),
        ];
        for (named, code) in wrong {
            let error = code.check().unwrap_err();
            assert!(matches!(error, DeviceCodeError::Invalid { field, .. } if field == named), "{named}: {error}");
        }
        assert_eq!(DeviceCode { abi: 0, ..QUEUE }.check(), Err(DeviceCodeError::Api { given: 0 }));
    }
}
