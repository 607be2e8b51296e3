//! Needs: what must be there for a case to be run.

use std::fmt;

use campanile_core::{Caps, MemoryKind, OpKind, PeerClass, Transport};

use super::runner::{RanksAre, Suite};

/// What a case needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// That many ranks.
    Ranks(usize),
    /// Ranks that are processes.
    Processes,
    /// That operation, on the memory that is examined, of this rank and of its peers.
    Op(OpKind),
    /// Windows in device memory.
    DeviceMemory,
    /// Pointers to peers' memory.
    LoadStore,
    /// Puts that are delivered in order.
    OrderedPuts,
    /// Signals that set.
    SignalSet,
    /// Signals that add.
    SignalAdd,
    /// Signals that set or add.
    Signals,
    /// Strong signals that cost no drain.
    StrongSignals,
    /// Signal words of 64 bits that arrive together.
    WholeWords,
    /// Time-outs that blame the end of a chain of waits.
    FollowsWaits,
    /// That many bytes of memory on a rank.
    Memory(u64),
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ranks(ranks) => write!(f, "{ranks} ranks"),
            Self::Processes => f.write_str("ranks that are processes"),
            Self::Op(op) => write!(f, "{op:?}"),
            Self::DeviceMemory => f.write_str("windows in device memory"),
            Self::LoadStore => f.write_str("load / store"),
            Self::OrderedPuts => f.write_str("ordered puts"),
            Self::SignalSet => f.write_str("signals that set"),
            Self::SignalAdd => f.write_str("signals that add"),
            Self::Signals => f.write_str("signals that set or add"),
            Self::StrongSignals => f.write_str("strong signals without a drain"),
            Self::WholeWords => f.write_str("signal words of 64 bits"),
            Self::FollowsWaits => f.write_str("time-outs that follow chains of waits"),
            Self::Memory(bytes) => write!(f, "{} MiB of memory a rank", bytes.div_ceil(1 << 20)),
        }
    }
}

/// What a suite is run on.
pub(super) struct Ground<'a> {
    pub(super) suite: &'a Suite,
    pub(super) ranks: usize,
    pub(super) transport: &'a dyn Transport,
    /// How far away the other ranks are.
    pub(super) others: PeerClass,
    /// What windows are in.
    pub(super) memory: MemoryKind,
}

impl Ground<'_> {
    /// Why a need is not met, if it is not.
    pub(super) fn lacks(&self, need: Need) -> Option<String> {
        let name = self.transport.info().name;
        match need {
            Need::Ranks(ranks) => (self.ranks < ranks).then(|| format!("needs {need}, there are {}", self.ranks)),
            Need::Processes => (self.suite.ranks_are != RanksAre::Processes).then(|| format!("needs {need}")),
            Need::Memory(bytes) => {
                let most = self.suite.memory;
                (most < bytes).then(|| format!("needs {need}, it may take {} MiB", most >> 20))
            }
            Need::Op(op) => {
                let has = self.each(op, |_| true);
                (!has).then(|| format!("transport {name} has no {op:?} on {} memory of every peer", self.memory))
            }
            Need::FollowsWaits => self.unclaimed(need, self.transport.follows_waits()),
            Need::DeviceMemory => {
                (!self.memory.is_device()).then(|| format!("needs {need}, they are in {}", self.memory))
            }
            Need::LoadStore if self.memory.is_device() => Some(format!("the host does not load from {}", self.memory)),
            Need::LoadStore => self.without(need, OpKind::Put, |caps| caps.load_store),
            Need::OrderedPuts => self.without(need, OpKind::Put, |caps| caps.ordered_puts),
            Need::SignalSet => self.without(need, OpKind::PutSignal, |caps| caps.signal.set),
            Need::SignalAdd => self.without(need, OpKind::PutSignal, |caps| caps.signal.add),
            Need::Signals => self.without(need, OpKind::PutSignal, |caps| caps.signal.set || caps.signal.add),
            Need::StrongSignals => self.without(need, OpKind::PutSignal, |caps| caps.signal.native_strong),
            Need::WholeWords => self.without(need, OpKind::PutSignal, |caps| caps.signal.bits >= 64),
        }
    }

    fn without(&self, need: Need, op: OpKind, has: impl Fn(&Caps) -> bool) -> Option<String> {
        self.unclaimed(need, self.each(op, has))
    }

    fn unclaimed(&self, need: Need, claimed: bool) -> Option<String> {
        (!claimed).then(|| format!("transport {} does not claim {need}", self.transport.info().name))
    }

    /// Whether it holds of an operation on memory of this rank and of the others.
    fn each(&self, op: OpKind, has: impl Fn(&Caps) -> bool) -> bool {
        let others = (self.ranks > 1).then_some(self.others);
        let classes = [Some(PeerClass::Own), others].into_iter().flatten();
        classes.map(|class| self.transport.caps(class, self.memory, op)).all(|caps| caps.is_some_and(|c| has(&c)))
    }
}
