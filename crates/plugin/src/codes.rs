//! The numbers by which enums and records of the core cross, in both directions.
//!
//! What comes from the other side may be any number: an unknown one is `None`, never undefined.

use std::time::Duration;

use campanile_abi as abi;
use campanile_core::{
    Agent, AtomicityDomain, Caps, Completion, Condition, Cost, DeviceForm, DeviceScope, FaultKind, HugePages,
    Initiator, MemoryKind, OpKind, PeerClass, QueueTarget, Rank, SignalCaps,
};

pub(crate) fn memory_code(kind: MemoryKind) -> u32 {
    match kind {
        MemoryKind::Device(ordinal) => abi::MEMORY_DEVICE_0.saturating_add(ordinal),
        _ => abi::MEMORY_HOST,
    }
}

pub(crate) fn memory_kind(code: u32) -> MemoryKind {
    match code.checked_sub(abi::MEMORY_DEVICE_0) {
        Some(ordinal) => MemoryKind::Device(ordinal),
        None => MemoryKind::Host,
    }
}

pub(crate) fn class_code(class: PeerClass) -> u32 {
    match class {
        PeerClass::Own => abi::CLASS_OWN,
        PeerClass::Node => abi::CLASS_NODE,
        // A class that this boundary does not know is at least as far away.
        _ => abi::CLASS_REMOTE,
    }
}

pub(crate) fn peer_class(code: u32) -> Option<PeerClass> {
    match code {
        abi::CLASS_OWN => Some(PeerClass::Own),
        abi::CLASS_NODE => Some(PeerClass::Node),
        abi::CLASS_REMOTE => Some(PeerClass::Remote),
        _ => None,
    }
}

/// `None`: the boundary does not know the operation, so no plugin does it.
pub(crate) fn op_code(kind: OpKind) -> Option<u32> {
    match kind {
        OpKind::Put => Some(abi::OP_PUT),
        OpKind::PutSignal => Some(abi::OP_PUT_SIGNAL),
        OpKind::PutInline => Some(abi::OP_PUT_INLINE),
        OpKind::Get => Some(abi::OP_GET),
        OpKind::Atomic => Some(abi::OP_ATOMIC),
        OpKind::Fence => Some(abi::OP_FENCE),
        _ => None,
    }
}

pub(crate) fn op_kind(code: u32) -> Option<OpKind> {
    match code {
        abi::OP_PUT => Some(OpKind::Put),
        abi::OP_PUT_SIGNAL | abi::OP_SIGNAL => Some(OpKind::PutSignal),
        abi::OP_PUT_INLINE => Some(OpKind::PutInline),
        abi::OP_GET => Some(OpKind::Get),
        abi::OP_ATOMIC => Some(OpKind::Atomic),
        abi::OP_FENCE => Some(OpKind::Fence),
        _ => None,
    }
}

#[inline]
pub(crate) fn level_code(completion: Completion) -> u32 {
    match completion {
        Completion::Local => abi::LEVEL_LOCAL,
        Completion::Remote(Agent::Cpu) => abi::LEVEL_REMOTE_CPU,
        Completion::Remote(Agent::Gpu) => abi::LEVEL_REMOTE_GPU,
        Completion::Remote(Agent::Nic) => abi::LEVEL_REMOTE_NIC,
    }
}

#[inline]
pub(crate) fn completion(code: u32) -> Option<Completion> {
    match code {
        abi::LEVEL_LOCAL => Some(Completion::Local),
        abi::LEVEL_REMOTE_CPU => Some(Completion::Remote(Agent::Cpu)),
        abi::LEVEL_REMOTE_GPU => Some(Completion::Remote(Agent::Gpu)),
        abi::LEVEL_REMOTE_NIC => Some(Completion::Remote(Agent::Nic)),
        _ => None,
    }
}

/// The code and its number; `None`: the boundary does not know the target.
pub(crate) fn target_code(target: QueueTarget) -> Option<(u32, u32)> {
    match target {
        QueueTarget::Peer(peer) => Some((abi::TARGET_PEER, peer.0)),
        QueueTarget::Engine(engine) => Some((abi::TARGET_ENGINE, engine)),
        _ => None,
    }
}

pub(crate) fn queue_target(code: u32, number: u32) -> Option<QueueTarget> {
    match code {
        abi::TARGET_PEER => Some(QueueTarget::Peer(Rank(number))),
        abi::TARGET_ENGINE => Some(QueueTarget::Engine(number)),
        _ => None,
    }
}

pub(crate) fn initiator_code(initiator: Initiator) -> u32 {
    match initiator {
        Initiator::Host => abi::INITIATOR_HOST,
        Initiator::Device => abi::INITIATOR_DEVICE,
    }
}

pub(crate) fn initiator(code: u32) -> Option<Initiator> {
    match code {
        abi::INITIATOR_HOST => Some(Initiator::Host),
        abi::INITIATOR_DEVICE => Some(Initiator::Device),
        _ => None,
    }
}

pub(crate) fn huge_pages_code(huge_pages: HugePages) -> u32 {
    match huge_pages {
        HugePages::Auto => abi::HUGE_PAGES_AUTO,
        HugePages::Never => abi::HUGE_PAGES_NEVER,
    }
}

/// What a newer host says that this plugin does not know is `Auto`.
pub(crate) fn huge_pages(code: u32) -> HugePages {
    if code == abi::HUGE_PAGES_NEVER { HugePages::Never } else { HugePages::Auto }
}

pub(crate) fn fault_code(kind: FaultKind) -> u32 {
    match kind {
        FaultKind::Died => abi::FAULT_DIED,
        FaultKind::Left => abi::FAULT_LEFT,
        FaultKind::Stalled => abi::FAULT_STALLED,
        FaultKind::Aborted => abi::FAULT_ABORTED,
        _ => abi::FAULT_FAILED,
    }
}

/// `None` for 0, no fault. An unknown kind is a failure, as in a fault word.
pub(crate) fn fault_kind(code: u32) -> Option<FaultKind> {
    match code {
        0 => None,
        abi::FAULT_DIED => Some(FaultKind::Died),
        abi::FAULT_LEFT => Some(FaultKind::Left),
        abi::FAULT_STALLED => Some(FaultKind::Stalled),
        abi::FAULT_ABORTED => Some(FaultKind::Aborted),
        _ => Some(FaultKind::Failed),
    }
}

/// The code, mask and value.
#[inline]
pub(crate) fn condition_code(condition: Condition) -> (u32, u64, u64) {
    match condition {
        Condition::AtLeast(value) => (abi::CONDITION_AT_LEAST, 0, value),
        Condition::Tag { mask, value } => (abi::CONDITION_TAG, mask, value),
    }
}

#[inline]
pub(crate) fn condition(wait: &abi::Wait) -> Option<Condition> {
    match wait.condition {
        abi::CONDITION_AT_LEAST => Some(Condition::AtLeast(wait.value)),
        abi::CONDITION_TAG => Some(Condition::Tag { mask: wait.mask, value: wait.value }),
        _ => None,
    }
}

pub(crate) fn form_code(form: DeviceForm) -> u32 {
    if form == DeviceForm::Map { abi::FORM_MAP } else { abi::FORM_QUEUE }
}

pub(crate) fn device_form(code: u32) -> Option<DeviceForm> {
    match code {
        abi::FORM_MAP => Some(DeviceForm::Map),
        abi::FORM_QUEUE => Some(DeviceForm::Queue),
        _ => None,
    }
}

pub(crate) fn scope_code(scope: DeviceScope) -> u32 {
    match scope {
        DeviceScope::Thread => abi::SCOPE_THREAD,
        DeviceScope::Wave => abi::SCOPE_WARP,
        // A scope that this boundary does not know is at least as large.
        _ => abi::SCOPE_BLOCK,
    }
}

pub(crate) fn device_scope(code: u32) -> Option<DeviceScope> {
    match code {
        abi::SCOPE_THREAD => Some(DeviceScope::Thread),
        abi::SCOPE_WARP => Some(DeviceScope::Wave),
        abi::SCOPE_BLOCK => Some(DeviceScope::Block),
        _ => None,
    }
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn cost_record(cost: Cost) -> abi::Cost {
    // Casts of floats saturate: nonsense becomes 0 or the largest number.
    abi::Cost { latency_ps: (cost.latency_ns * 1e3) as u64, bytes_per_s: (cost.bytes_per_ns * 1e9) as u64 }
}

pub(crate) fn cost(record: abi::Cost) -> Cost {
    Cost { latency_ns: record.latency_ps as f64 / 1e3, bytes_per_ns: record.bytes_per_s as f64 / 1e9 }
}

pub(crate) fn caps_record(caps: &Caps) -> abi::Caps {
    let signal = caps.signal;
    let flags = [
        (signal.set, abi::SIGNAL_SET_NATIVE),
        (signal.add, abi::SIGNAL_ADD_NATIVE),
        (signal.native_strong, abi::SIGNAL_STRONG_NATIVE),
        (signal.target_progress, abi::SIGNAL_TARGET_PROGRESS),
    ];
    abi::Caps {
        struct_size: size_of::<abi::Caps>() as u64,
        max_bytes: caps.max_bytes,
        load_store: caps.load_store.into(),
        ordered_puts: caps.ordered_puts.into(),
        inline_bytes: caps.inline_bytes,
        alignment: caps.alignment,
        signal_bits: signal.bits,
        signal_flags: flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum(),
        atomicity: match signal.domain {
            AtomicityDomain::Gpu => abi::ATOMICITY_GPU,
            AtomicityDomain::Nic => abi::ATOMICITY_NIC,
            _ => abi::ATOMICITY_CPU,
        },
        reserved: 0,
        cost: cost_record(caps.cost),
    }
}

/// `None` if the domain is one that this host does not know: what cannot be understood cannot be relied on.
pub(crate) fn caps(record: &abi::Caps) -> Option<Caps> {
    let flag = |flag| record.signal_flags & flag != 0;
    Some(Caps {
        load_store: record.load_store != 0,
        ordered_puts: record.ordered_puts != 0,
        inline_bytes: record.inline_bytes,
        max_bytes: record.max_bytes,
        alignment: record.alignment.max(1),
        signal: SignalCaps {
            bits: record.signal_bits,
            set: flag(abi::SIGNAL_SET_NATIVE),
            add: flag(abi::SIGNAL_ADD_NATIVE),
            native_strong: flag(abi::SIGNAL_STRONG_NATIVE),
            domain: match record.atomicity {
                abi::ATOMICITY_CPU => AtomicityDomain::Cpu,
                abi::ATOMICITY_GPU => AtomicityDomain::Gpu,
                abi::ATOMICITY_NIC => AtomicityDomain::Nic,
                _ => return None,
            },
            target_progress: flag(abi::SIGNAL_TARGET_PROGRESS),
        },
        cost: cost(record.cost),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip() {
        for kind in [MemoryKind::Host, MemoryKind::Device(0), MemoryKind::Device(7)] {
            assert_eq!(memory_kind(memory_code(kind)), kind);
        }
        for class in [PeerClass::Own, PeerClass::Node, PeerClass::Remote] {
            assert_eq!(peer_class(class_code(class)), Some(class));
        }
        for kind in [OpKind::Put, OpKind::PutSignal, OpKind::PutInline, OpKind::Get, OpKind::Atomic, OpKind::Fence] {
            assert_eq!(op_code(kind).and_then(op_kind), Some(kind));
        }
        let remote = [Agent::Cpu, Agent::Gpu, Agent::Nic].map(Completion::Remote);
        for level in remote.into_iter().chain([Completion::Local]) {
            assert_eq!(completion(level_code(level)), Some(level));
        }
        for target in [QueueTarget::Peer(Rank(3)), QueueTarget::Engine(4)] {
            assert_eq!(target_code(target).and_then(|(code, number)| queue_target(code, number)), Some(target));
        }
        for form in [DeviceForm::Map, DeviceForm::Queue] {
            assert_eq!(device_form(form_code(form)), Some(form));
        }
        for scope in [DeviceScope::Thread, DeviceScope::Wave, DeviceScope::Block] {
            assert_eq!(device_scope(scope_code(scope)), Some(scope));
        }
        for kind in [FaultKind::Died, FaultKind::Left, FaultKind::Stalled, FaultKind::Aborted, FaultKind::Failed] {
            assert_eq!(fault_kind(fault_code(kind)), Some(kind));
        }
    }

    #[test]
    fn the_kinds_of_a_fault_word_are_the_fault_codes() {
        for kind in [FaultKind::Died, FaultKind::Left, FaultKind::Stalled, FaultKind::Aborted, FaultKind::Failed] {
            let word = campanile_core::Fault { culprit: Rank(1), kind, reporter: Rank(2) }.to_word();
            assert_eq!(word, u64::from(fault_code(kind)) << 48 | 2 << 24 | 1);
        }
    }

    #[test]
    fn unknown_codes_are_none() {
        assert_eq!(peer_class(3), None);
        assert_eq!(op_kind(0), None);
        assert_eq!(completion(4), None);
        assert_eq!(queue_target(2, 0), None);
        assert_eq!(initiator(2), None);
        assert_eq!((device_form(2), device_scope(3)), (None, None));
        assert_eq!(fault_kind(0), None);
        assert_eq!(fault_kind(99), Some(FaultKind::Failed));
    }

    #[test]
    fn caps_round_trip() {
        let given = Caps {
            load_store: true,
            ordered_puts: false,
            inline_bytes: 64,
            max_bytes: u64::MAX,
            alignment: 4,
            signal: SignalCaps {
                bits: 64,
                set: true,
                add: false,
                native_strong: true,
                domain: AtomicityDomain::Nic,
                target_progress: true,
            },
            cost: Cost { latency_ns: 200.5, bytes_per_ns: 8.25 },
        };
        assert_eq!(caps(&caps_record(&given)), Some(given));
        assert_eq!(caps(&abi::Caps { atomicity: 9, ..caps_record(&given) }), None);
    }
}
