//! The cost model: latency and bandwidth, LogGP without its gaps (Alexandrov et al., 1995).

use super::Way;
use crate::{Caps, Cost};

/// What a queue costs on top of the operation that it carries, where load / store would reach too: post, ring, progress.
/// Nanoseconds; the difference of the medians of 8-byte puts by the two ways in `campanile bench put` (181 and 404 on two
/// cores of a virtual machine, not an optimised build), rounded.
pub const QUEUE_NS: f64 = 200.0;

impl Cost {
    /// Modelled time of an operation of that many bytes, in nanoseconds.
    pub fn time_ns(&self, bytes: u64) -> f64 {
        self.latency_ns + bytes as f64 / self.bytes_per_ns
    }

    /// Both in a row: the longer latency, the narrower bandwidth.
    fn and(self, other: Self) -> Self {
        Self {
            latency_ns: self.latency_ns.max(other.latency_ns),
            bytes_per_ns: self.bytes_per_ns.min(other.bytes_per_ns),
        }
    }

    /// A plugin may say anything.
    fn checked(self) -> Result<Self, String> {
        let Self { latency_ns, bytes_per_ns } = self;
        if latency_ns.is_finite() && latency_ns >= 0.0 && bytes_per_ns > 0.0 {
            return Ok(self);
        }
        Err(format!("it says that it costs {latency_ns} ns and {bytes_per_ns} bytes a ns, which cannot be compared"))
    }
}

/// What a way costs, by what the transport says of the operation and of the way to the peer; or why there is no such way.
pub(super) fn of(way: Way, caps: &Caps, reach: Cost) -> Result<Cost, String> {
    let cost = caps.cost.checked()?.and(reach.checked()?);
    match way {
        Way::LoadStore if !caps.load_store => Err("it gives no pointers to that memory".to_owned()),
        Way::LoadStore => Ok(cost),
        Way::Queue if caps.load_store => Ok(Cost { latency_ns: cost.latency_ns + QUEUE_NS, ..cost }),
        Way::Queue => Ok(cost),
    }
}
