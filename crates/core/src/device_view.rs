//! Views for kernels: [`DeviceView`], what a transport gives for one window, and [`DeviceWindow`], the same, checked.
//!
//! **Layout.** A view of a window of *n* members is *n* addresses, 8 bytes each in the machine's order: the first byte of
//! each member's part as load and store of the device reach it, 0 for one that only a queue reaches; then *n* structs
//! `Peer` of the header, [`peer_bytes`](DeviceCode::peer_bytes) each. Both are in the order of the team.

use crate::{DeviceCode, DeviceForm};

/// Bytes of an address.
const ADDRESS: usize = size_of::<u64>();

/// What kernels need to use a window by a transport, in the layout of [`device code`](DeviceCode).
///
/// ```
/// use campanile_core::{DeviceCode, DeviceView};
///
/// let code: &'static DeviceCode = const { &DeviceCode::map("p2p") };
/// let view = DeviceView::new(code, &[0x1000, 0x2000], &[]);
/// assert_eq!(view.bytes.len(), 16);
/// assert_eq!(view.check(code, 2, 0)?.windows, [0x1000, 0x2000]);
/// assert!(view.check(code, 3, 0).unwrap_err().to_string().contains("16 bytes"));
/// # Ok::<(), campanile_core::DeviceViewError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceView {
    /// Which device code reads it.
    pub kind: &'static str,
    /// Version of the device API that this is written against.
    pub abi: u32,
    /// The view.
    pub bytes: Vec<u8>,
}

impl DeviceView {
    /// A view of `windows`, with what the header knows of each member. For transports.
    pub fn new(code: &DeviceCode, windows: &[u64], peers: &[u8]) -> Self {
        let bytes = windows.iter().flat_map(|window| window.to_ne_bytes()).chain(peers.iter().copied()).collect();
        Self { kind: code.kind, abi: code.abi, bytes }
    }

    /// The window as kernels see it, for the member at `position` of `members`.
    ///
    /// # Errors
    /// [`DeviceViewError`] if it is not one that this code reads.
    pub fn check(
        &self,
        code: &'static DeviceCode,
        members: usize,
        position: usize,
    ) -> Result<DeviceWindow, DeviceViewError> {
        if (self.kind, self.abi) != (code.kind, code.abi) {
            let (kind, abi) = (self.kind, self.abi);
            return Err(DeviceViewError::Kind { kind, abi, expected: code.kind, expected_abi: code.abi });
        }
        let (given, peer_bytes) = (self.bytes.len(), code.peer_bytes);
        if Some(given) != members.checked_mul(ADDRESS + peer_bytes as usize) {
            return Err(DeviceViewError::Size { given, members, peer_bytes });
        }
        let (windows, peers) = self.bytes.split_at(members * ADDRESS);
        let windows = windows.as_chunks().0.iter().map(|address| u64::from_ne_bytes(*address)).collect();
        let window = DeviceWindow { code, windows, peers: peers.to_vec() };
        let all = 0..members;
        let must_be = |member: &usize| *member == position || code.form == DeviceForm::Map;
        match all.filter(must_be).find(|&member| window.windows[member] == 0) {
            Some(member) => Err(DeviceViewError::Unmapped { member, form: code.form }),
            None => Ok(window),
        }
    }
}

/// A window as the kernels of one rank's device see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceWindow {
    /// The code that reaches it.
    pub code: &'static DeviceCode,
    /// First byte of each member's part for load and store, by position; 0: only a queue reaches it.
    pub windows: Vec<u64>,
    /// What the code's header knows, a `Peer` for each member.
    pub peers: Vec<u8>,
}

/// A view that a transport's device code does not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceViewError {
    /// It is of other code.
    #[error(
        "it is of kind {kind:?}, version {abi}; the transport's device code is {expected:?}, version {expected_abi}"
    )]
    Kind {
        /// What it says.
        kind: &'static str,
        /// Version that it says.
        abi: u32,
        /// The code's kind.
        expected: &'static str,
        /// The code's version.
        expected_abi: u32,
    },
    /// It is not as long as the header says.
    #[error(
        "it has {given} bytes; {members} members have {members} × (8 of address + {peer_bytes} of the header's Peer)"
    )]
    Size {
        /// Its bytes.
        given: usize,
        /// Members of the window.
        members: usize,
        /// Bytes that the code declares for each.
        peer_bytes: u32,
    },
    /// A part has no address that must have one.
    #[error(
        "the part of member {member} has no address; {}",
        if *form == DeviceForm::Map { "the form map reaches all of them" } else { "a rank's own part always has one" }
    )]
    Unmapped {
        /// The member.
        member: usize,
        /// Form of the code.
        form: DeviceForm,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    static QUEUE: DeviceCode =
        DeviceCode { form: DeviceForm::Queue, header: "//", peer_bytes: 8, ..DeviceCode::map("q") };
    static MAP: DeviceCode = DeviceCode::map("m");

    #[test]
    fn a_view_has_the_size_of_its_header() {
        let view = DeviceView::new(&QUEUE, &[0, 7], &[1; 16]);
        let window = view.check(&QUEUE, 2, 1).unwrap();
        assert_eq!((window.windows, window.peers), (vec![0, 7], vec![1; 16]));
        for bytes in [0, 15, 31, 33, 40] {
            let view = DeviceView { bytes: vec![1; bytes], ..view.clone() };
            let error = view.check(&QUEUE, 2, 1).unwrap_err();
            assert_eq!(error, DeviceViewError::Size { given: bytes, members: 2, peer_bytes: 8 });
        }
        assert!(view.check(&QUEUE, usize::MAX, 1).is_err());
    }

    #[test]
    fn a_view_is_of_its_code() {
        let view = DeviceView::new(&MAP, &[1, 2], &[]);
        assert!(view.check(&MAP, 2, 0).is_ok());
        assert!(matches!(view.check(&QUEUE, 2, 0), Err(DeviceViewError::Kind { kind: "m", expected: "q", .. })));
        let newer = DeviceView { abi: 2, ..view };
        assert!(matches!(newer.check(&MAP, 2, 0), Err(DeviceViewError::Kind { abi: 2, expected_abi: 1, .. })));
    }

    #[test]
    fn what_must_be_mapped_is() {
        let unmapped = |code: &'static DeviceCode, windows: &[u64], position| {
            let peers = vec![0; windows.len() * code.peer_bytes as usize];
            DeviceView::new(code, windows, &peers).check(code, windows.len(), position).err()
        };
        let form = DeviceForm::Map;
        assert_eq!(unmapped(&MAP, &[1, 0], 0), Some(DeviceViewError::Unmapped { member: 1, form }));
        assert_eq!(unmapped(&QUEUE, &[1, 0], 0), None);
        let form = DeviceForm::Queue;
        assert_eq!(unmapped(&QUEUE, &[1, 0], 1), Some(DeviceViewError::Unmapped { member: 1, form }));
    }
}
