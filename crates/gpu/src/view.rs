//! The views of `kernels/campanile.h`: plain structs that the host fills and a kernel is given by value, field by field as
//! in `kernels/device/`. A [`Plan`](crate::Plan) refuses an argument of another size.

use campanile_core::ArenaRegion;

use crate::Address;

/// Ranks whose windows travel in a [`CommunicatorView`]; beyond, kernels load them from the table.
pub const NEAR_RANKS: usize = 8;

/// `CommunicatorView`: what [`DeviceCommunicator::view`](crate::DeviceCommunicator::view) fills.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CommunicatorView {
    /// Windows of the first ranks, as mapped for this device; 0 for one that only a queue reaches.
    pub near: [Address; NEAR_RANKS],
    /// Table of all windows, in device memory.
    pub windows: Address,
    /// What the header of a transport with queues knows, a `Peer` for each rank in device memory; 0 where there is none.
    pub queues: Address,
    /// Offset of signal word 0 in each window.
    pub signals: u64,
    /// The abort word, a u32 in host memory.
    pub abort: Address,
    /// The word that says that this rank has failed, a u32 in device memory.
    pub failed: Address,
    /// The record of the first failure, in host memory.
    pub record: Address,
    /// Bound of each wait, nanoseconds.
    pub deadline: u64,
    /// This rank.
    pub rank: u32,
    /// Ranks.
    pub ranks: u32,
}

/// `RegionView`: a region of the window's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RegionView {
    /// Offset of the first byte in each window.
    pub offset: u64,
    /// Bytes from one element to the next.
    pub stride: u64,
    /// Number of elements.
    pub count: u64,
}

impl From<&ArenaRegion> for RegionView {
    fn from(region: &ArenaRegion) -> Self {
        Self { offset: region.offset as u64, stride: region.stride as u64, count: region.count as u64 }
    }
}

/// `TeamView`: some of the ranks, in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TeamView {
    /// `[size]` u32 in device memory; 0: all ranks in order.
    pub members: Address,
    /// This rank's position.
    pub position: u32,
    /// Number of members.
    pub size: u32,
}
