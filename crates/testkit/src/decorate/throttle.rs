//! Throttle: a slow network on a fast machine.
//!
//! The model of LogGP without its overheads (Alexandrov, Ionescu, Schauser, Scheiman 1995): what a rank sends to one
//! peer takes turns on a link; an operation of b bytes occupies it for b / bandwidth, and is delivered, and complete, one
//! latency later. Links to different peers do not disturb each other. A signal or an atomic counts as 8 bytes.
//!
//! Modelled times are lower bounds: an operation is never delivered early, but the thread that delivers it may be late.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use campanile_core::{Caps, Cost, Op, OpKind, OpenError, OpenOptions, QueueOptions, Rank, Transport};

use super::hold::{Policy, Schedule, hold};
use super::options::{Options, Written};
use super::{Decorator, StackError};

pub(super) const NAME: &str = "throttle";

/// A bandwidth and latency model. As text: `throttle(latency=5us, bandwidth=1GB/s)`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Throttle {
    /// From the end of an operation's turn on the link to its delivery.
    pub latency: Duration,
    /// Bytes a nanosecond (GB/s) of the link to each peer; without one, operations take no turns.
    pub bytes_per_ns: Option<f64>,
}

impl Throttle {
    pub(super) const OPTIONS: &[&str] = &["latency", "bandwidth"];

    pub(super) fn from_options(options: &Options<'_>) -> Result<Self, StackError> {
        let latency = options.duration("latency")?.unwrap_or_default();
        Ok(Self { latency, bytes_per_ns: options.rate("bandwidth")? })
    }
}

impl fmt::Display for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bandwidth = self.bytes_per_ns.map(|rate| {
            let units = [(1e0, "GB/s"), (1e3, "MB/s"), (1e6, "KB/s"), (1e9, "B/s")];
            let whole = units.iter().find(|(scale, _)| (rate * scale).fract() == 0.0).unwrap_or(&units[0]);
            format!("{}{}", rate * whole.0, whole.1)
        });
        Written::new(NAME).duration("latency", self.latency).option("bandwidth", bandwidth).fmt(f)
    }
}

impl Decorator for Throttle {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decorate(&self, inner: Arc<dyn Transport>, options: &OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        hold(NAME, inner, options, Links { throttle: *self, free: Arc::default() })
    }
}

/// When the link to each peer is free again, in nanoseconds.
type Free = Arc<Mutex<HashMap<Rank, u64>>>;

struct Links {
    throttle: Throttle,
    free: Free,
}

impl Policy for Links {
    fn caps(&self, caps: Caps) -> Caps {
        let latency_ns = caps.cost.latency_ns + self.throttle.latency.as_nanos() as f64;
        let bytes_per_ns =
            self.throttle.bytes_per_ns.map_or(caps.cost.bytes_per_ns, |rate| rate.min(caps.cost.bytes_per_ns));
        Caps { cost: Cost { latency_ns, bytes_per_ns }, ..caps }
    }

    fn schedule(&self, _: u64, _: QueueOptions) -> Box<dyn Schedule> {
        Box::new(Turns { throttle: self.throttle, free: Arc::clone(&self.free) })
    }
}

struct Turns {
    throttle: Throttle,
    free: Free,
}

impl Schedule for Turns {
    fn due(&mut self, op: &Op, peer: Option<Rank>, now: u64) -> u64 {
        let latency = self.throttle.latency.as_nanos() as u64;
        // A fence reaches no peer.
        let Some(peer) = peer.filter(|_| *op != Op::Fence) else { return now };
        let word = op.signal().is_some() || op.kind() == OpKind::Atomic;
        let bytes = op.bytes() + if word { 8 } else { 0 };
        let turn = self.throttle.bytes_per_ns.map_or(0.0, |rate| bytes as f64 / rate) as u64;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let free = free.entry(peer).or_default();
        *free = now.max(*free).saturating_add(turn);
        free.saturating_add(latency)
    }
}

#[cfg(test)]
mod tests {
    use campanile_core::{LocalAddress, RegionKey, RemoteAddress, RemoteKey};

    use super::*;

    #[test]
    fn a_link_serialves_and_two_do_not() {
        let throttle = Throttle { latency: Duration::from_nanos(100), bytes_per_ns: Some(2.0) };
        let mut turns = Turns { throttle, free: Arc::default() };
        let put = |bytes| Op::Put {
            source: LocalAddress { region: RegionKey(1), offset: 0 },
            target: RemoteAddress { region: RemoteKey(1), offset: 0 },
            bytes,
        };
        let (a, b) = (Some(Rank(1)), Some(Rank(2)));
        assert_eq!(turns.due(&put(1000), a, 10_000), 10_600);
        assert_eq!(turns.due(&put(1000), a, 10_000), 11_100, "the link is taken until 10500");
        assert_eq!(turns.due(&put(200), b, 10_000), 10_200, "the other link is free");
        assert_eq!(turns.due(&put(200), a, 20_000), 20_200, "idle time is not saved up");
        assert_eq!(turns.due(&Op::Fence, a, 20_000), 20_000);
    }
}
