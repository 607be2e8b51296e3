//! Lean: a transport that promises little, and keeps no more than that.
//!
//! What callers, and the core's emulation, get away with on a transport that gives more than it says is wrong here: puts
//! are delivered late and in any order, a strong signal comes as early as a weak one unless strong signals are claimed,
//! and what is beyond the caps is refused. A signal without the drain that the caps ask for is seen before its data.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use campanile_core::{
    Caps, Op, OpKind, OpenError, OpenOptions, QueueOptions, Rank, SignalAction, SignalCaps, SignalUpdate, Strength,
    Transport,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::hold::{Policy, Schedule, hold, may_overtake};
use super::options::{Options, Written};
use super::{Decorator, StackError};

pub(super) const NAME: &str = "lean";

/// Small caps, and nothing beyond them. As text: `lean(max_bytes=4096, alignment=8, strong=yes)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lean {
    /// Longest time that a put is late.
    pub delay: Duration,
    /// Of the delays.
    pub seed: u64,
    /// Most bytes of a put that travels inline.
    pub inline_bytes: u32,
    /// Most bytes of an operation.
    pub max_bytes: u64,
    /// Of addresses and lengths.
    pub alignment: u32,
    /// Whether signals can add.
    pub add: bool,
    /// Whether strong signals are native.
    pub strong: bool,
}

impl Default for Lean {
    fn default() -> Self {
        Self {
            delay: Duration::from_micros(50),
            seed: 1,
            inline_bytes: 0,
            max_bytes: 4096,
            alignment: 1,
            add: false,
            strong: false,
        }
    }
}

impl Lean {
    pub(super) const OPTIONS: &[&str] = &["delay", "seed", "inline_bytes", "max_bytes", "alignment", "add", "strong"];

    pub(super) fn from_options(options: &Options<'_>) -> Result<Self, StackError> {
        let default = Self::default();
        let alignment = options.get("alignment", "a power of two up to 4096", |text| {
            text.parse().ok().filter(|alignment: &u32| alignment.is_power_of_two() && *alignment <= 4096)
        });
        Ok(Self {
            delay: options.duration("delay")?.unwrap_or(default.delay),
            seed: options.number("seed")?.unwrap_or(default.seed),
            inline_bytes: options.get("inline_bytes", "a number from 0", |text| text.parse().ok())?.unwrap_or(0),
            max_bytes: options.ordinal("max_bytes")?.unwrap_or(default.max_bytes),
            alignment: alignment?.unwrap_or(default.alignment),
            add: options.switch("add")?.unwrap_or(default.add),
            strong: options.switch("strong")?.unwrap_or(default.strong),
        })
    }
}

impl fmt::Display for Lean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        Written::new(NAME)
            .duration("delay", self.delay)
            .option("seed", Some(self.seed).filter(|seed| *seed != default.seed))
            .option("inline_bytes", Some(self.inline_bytes).filter(|bytes| *bytes != default.inline_bytes))
            .option("max_bytes", Some(self.max_bytes))
            .option("alignment", Some(self.alignment).filter(|alignment| *alignment != default.alignment))
            .option("add", self.add.then_some("yes"))
            .option("strong", self.strong.then_some("yes"))
            .fmt(f)
    }
}

impl Decorator for Lean {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decorate(&self, inner: Arc<dyn Transport>, options: &OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        hold(NAME, inner, options, OfRank { lean: *self, rank: options.rank })
    }
}

struct OfRank {
    lean: Lean,
    rank: Rank,
}

impl Policy for OfRank {
    fn caps(&self, caps: Caps) -> Caps {
        let lean = self.lean;
        Caps {
            ordered_puts: false,
            inline_bytes: caps.inline_bytes.min(lean.inline_bytes),
            max_bytes: caps.max_bytes.min(lean.max_bytes),
            alignment: caps.alignment.max(lean.alignment),
            signal: SignalCaps {
                add: caps.signal.add && lean.add,
                native_strong: caps.signal.native_strong && lean.strong,
                ..caps.signal
            },
            ..caps
        }
    }

    fn schedule(&self, number: u64, options: QueueOptions) -> Box<dyn Schedule> {
        let random = generator(self.lean.seed, self.rank, number);
        Box::new(Late { lean: self.lean, ordered: options.ordered, random })
    }
}

/// The random numbers of the `number`th queue of a rank.
pub(super) fn generator(seed: u64, rank: Rank, number: u64) -> Xoshiro256PlusPlus {
    // Distinct for each (rank, queue); the generator's own seeding spreads the bits.
    Xoshiro256PlusPlus::seed_from_u64(seed ^ (u64::from(rank.0) << 40) ^ (number << 20))
}

struct Late {
    lean: Lean,
    ordered: bool,
    random: Xoshiro256PlusPlus,
}

impl Late {
    fn weakened(&self, op: Op) -> Op {
        let weak = |signal| SignalUpdate { strength: Strength::Weak, ..signal };
        match op {
            Op::Signal(signal) if !self.lean.strong => Op::Signal(weak(signal)),
            Op::PutSignal { source, target, bytes, signal } if !self.lean.strong => {
                Op::PutSignal { source, target, bytes, signal: weak(signal) }
            }
            op => op,
        }
    }

    fn admit_range(&self, offsets: &[u64], bytes: u64) -> Result<(), String> {
        let Lean { max_bytes, alignment, .. } = self.lean;
        if bytes > max_bytes {
            return Err(format!("{bytes} bytes; the caps say {max_bytes} an operation"));
        }
        match offsets.iter().chain([&bytes]).find(|value| !value.is_multiple_of(u64::from(alignment))) {
            Some(value) => Err(format!("an offset or length of {value}; the caps say multiples of {alignment}")),
            None => Ok(()),
        }
    }
}

impl Schedule for Late {
    fn admit(&self, op: &Op) -> Result<(), String> {
        if op.signal().is_some_and(|signal| signal.action == SignalAction::Add) && !self.lean.add {
            return Err("an Add signal; the caps say that signals cannot add".to_owned());
        }
        match *op {
            Op::PutInline { data, target } => {
                let (bytes, most) = (data.as_slice().len(), self.lean.inline_bytes);
                if bytes > most as usize {
                    return Err(format!("an inline put of {bytes} bytes; the caps say {most}"));
                }
                self.admit_range(&[target.offset], bytes as u64)
            }
            Op::Put { source, target, bytes } | Op::PutSignal { source, target, bytes, .. } => {
                self.admit_range(&[source.offset, target.offset], bytes)
            }
            Op::Get { source, target, bytes } => self.admit_range(&[source.offset, target.offset], bytes),
            _ => Ok(()),
        }
    }

    fn due(&mut self, op: &Op, _: Option<Rank>, now: u64) -> u64 {
        match op.kind() {
            OpKind::Put | OpKind::PutInline | OpKind::Get => {
                now + self.random.next_u64() % (self.lean.delay.as_nanos() as u64 + 1)
            }
            _ => now,
        }
    }

    fn overtakes(&self, later: &Op, earlier: &Op) -> bool {
        let both_puts = later.signal().is_none() && earlier.signal().is_none();
        !(self.ordered && both_puts) && may_overtake(&self.weakened(*later), earlier)
    }

    fn deliver(&self, op: Op) -> Op {
        self.weakened(op)
    }
}
