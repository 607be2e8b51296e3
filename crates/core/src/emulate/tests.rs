//! Emulation, over a queue that remembers what it is asked.

use std::sync::Mutex;

use super::*;
use crate::{AtomicOp, AtomicityDomain, Cost, RegionKey, RemoteKey, SignalCaps};

/// Remembers what it is asked. On demand one of its posts finds it full, or an operation of so many bytes is refused.
#[derive(Default)]
struct Recorder {
    asked: Mutex<Vec<String>>,
    /// Which post finds it full, from 1.
    busy: Option<usize>,
    /// Operations of how many bytes are refused.
    refuses: Option<u64>,
}

const DEPTH: usize = 4;

impl Recorder {
    fn say(&self, what: String) -> usize {
        let mut asked = self.asked.lock().unwrap();
        asked.push(what);
        asked.len()
    }
}

/// A put as `p offset+bytes`, a signal as `s!` if it is strong and `s` if not, a put with one as both.
fn short(op: &Op) -> String {
    let signal = op.signal().map_or("", |signal| if signal.strength == Strength::Strong { "s!" } else { "s" });
    match op {
        Op::Put { source, bytes, .. } => format!("p{}+{bytes}", source.offset),
        Op::PutSignal { source, bytes, .. } => format!("p{}+{bytes}{signal}", source.offset),
        Op::Get { target, bytes, .. } => format!("g{}+{bytes}", target.offset),
        Op::Fence => "f".to_owned(),
        _ => signal.to_owned(),
    }
}

impl Queue for Recorder {
    fn post(&self, ops: &[Op]) -> Result<Ticket, PostError> {
        assert!(ops.len() <= DEPTH, "a part is never longer than the queue is deep");
        if let Some(index) = ops.iter().position(|op| Some(op.bytes()) == self.refuses) {
            return Err(PostError::Invalid { index, reason: "no".to_owned() });
        }
        let list: Vec<_> = ops.iter().map(short).collect();
        let turn = self.say(list.join(" "));
        if self.busy == Some(turn) {
            self.say("busy".to_owned());
            return Err(PostError::Busy { needed: 1, free: 0 });
        }
        Ok(Ticket::new(7, turn as u64))
    }

    fn ring(&self) -> Result<(), QueueError> {
        Ok(())
    }

    fn flush(&self) -> Ticket {
        Ticket::new(7, 0)
    }

    fn test(&self, _: Ticket, _: Completion) -> Result<bool, QueueError> {
        Ok(true)
    }

    fn progress(&self) -> Result<usize, QueueError> {
        Ok(0)
    }

    fn cancel(&self, _: Ticket) -> Result<Cancelled, QueueError> {
        Ok(Cancelled::TooLate)
    }

    fn wait(&self, _: Ticket, completion: Completion, _: Duration) -> Result<(), QueueError> {
        assert_eq!(completion, Completion::Remote(Agent::Cpu), "local completion is not visibility");
        self.say("drain".to_owned());
        Ok(())
    }

    fn describe(&self) -> String {
        String::new()
    }
}

fn caps() -> Caps {
    let signal = SignalCaps {
        bits: 64,
        set: true,
        add: true,
        native_strong: true,
        domain: AtomicityDomain::Nic,
        target_progress: false,
    };
    Caps {
        load_store: false,
        ordered_puts: false,
        inline_bytes: Inline::MAX as u32,
        max_bytes: u64::MAX,
        alignment: 1,
        signal,
        cost: Cost { latency_ns: 0.0, bytes_per_ns: 1.0 },
    }
}

fn lacking(change: impl Fn(&mut Caps)) -> Lacks {
    Lacks::of(|_| {
        let mut caps = caps();
        change(&mut caps);
        Some(caps)
    })
}

const LOCAL: LocalAddress = LocalAddress { region: RegionKey(1), offset: 0 };
const REMOTE: RemoteAddress = RemoteAddress { region: RemoteKey(2), offset: 0 };

fn put(bytes: u64) -> Op {
    Op::Put { source: LOCAL, target: REMOTE, bytes }
}

fn update(strength: Strength, action: SignalAction) -> SignalUpdate {
    SignalUpdate { target: REMOTE, action, value: 1, strength }
}

fn set(strength: Strength) -> Op {
    Op::Signal(update(strength, SignalAction::Set))
}

fn posted(lacks: Lacks, recorder: Recorder, ops: &[Op]) -> (Result<Ticket, PostError>, Vec<String>) {
    let recorder = Arc::new(recorder);
    let queue = lacks.emulate(Arc::clone(&recorder) as _, DEPTH, Duration::from_secs(1));
    let posted = queue.post(ops);
    let asked = recorder.asked.lock().unwrap().clone();
    (posted, asked)
}

fn asked(lacks: Lacks, ops: &[Op]) -> Vec<String> {
    let (posted, asked) = posted(lacks, Recorder::default(), ops);
    posted.expect("it is posted");
    asked
}

#[test]
fn nothing_lacking_is_no_wrapper() {
    let queue: Arc<dyn Queue> = Arc::new(Recorder::default());
    let lacks = lacking(|_| ());
    assert!(Arc::ptr_eq(&lacks.emulate(Arc::clone(&queue), DEPTH, Duration::ZERO), &queue));
    let lacks = lacking(|caps| caps.alignment = 2);
    assert!(!Arc::ptr_eq(&lacks.emulate(Arc::clone(&queue), DEPTH, Duration::ZERO), &queue));
}

#[test]
fn strong_signals_drain_what_is_before_them() {
    let (strong, weak) = (set(Strength::Strong), set(Strength::Weak));
    let weak_only = lacking(|caps| caps.signal.native_strong = false);
    assert_eq!(asked(weak_only, &[put(1), put(2), strong, put(3)]), ["p0+1 p0+2", "drain", "s p0+3"]);
    assert_eq!(asked(weak_only, &[strong]), ["drain", "s"]);
    assert_eq!(asked(weak_only, &[put(1), weak, Op::Fence]), ["p0+1 s f"]);
    let bundled = |strength| Op::PutSignal {
        source: LOCAL,
        target: REMOTE,
        bytes: 5,
        signal: update(strength, SignalAction::Set),
    };
    assert_eq!(asked(weak_only, &[put(1), bundled(Strength::Strong)]), ["p0+1", "drain", "p0+5s"]);
    assert_eq!(asked(weak_only, &[put(1), bundled(Strength::Weak)]), ["p0+1 p0+5s"]);
    // A put that is split cannot be bundled with its signal.
    let small = lacking(|caps| caps.max_bytes = 3);
    assert_eq!(asked(small, &[bundled(Strength::Weak)]), ["p3+2 p0+3 s!"]);
    let small_and_weak = lacking(|caps| (caps.max_bytes, caps.signal.native_strong) = (3, false));
    assert_eq!(asked(small_and_weak, &[bundled(Strength::Weak)]), ["p3+2 p0+3", "drain", "s"]);
}

#[test]
fn large_operations_are_split_into_aligned_pieces() {
    let lacks = lacking(|caps| (caps.max_bytes, caps.alignment) = (19, 8));
    assert_eq!(asked(lacks, &[put(16), put(40)]), ["p0+16 p32+8 p16+16 p0+16"]);
    assert_eq!(asked(lacks, &[put(80)]), ["p64+16 p48+16 p32+16 p16+16", "p0+16"]);
    let get = Op::Get { source: REMOTE, target: LOCAL, bytes: 24 };
    assert_eq!(asked(lacks, &[get, put(0)]), ["g16+8 g0+16 p0+0"]);
}

#[test]
fn what_cannot_be_had_is_refused_before_anything_is_posted() {
    let inline = Op::PutInline { data: Inline::new(&[0; 9]).expect("short"), target: REMOTE };
    let add = Op::Signal(update(Strength::Weak, SignalAction::Add));
    let atomic = Op::Atomic { op: AtomicOp::Add { operand: 1 }, target: REMOTE };
    let no_atomics = Lacks::of(|op| (op != OpKind::Atomic).then(caps));
    for (lacks, op, fragment) in [
        (lacking(|caps| caps.inline_bytes = 8), inline, "takes up to 8: put them from registered memory"),
        (lacking(|caps| caps.signal.add = false), add, "cannot add"),
        (lacking(|caps| caps.signal.set = false), set(Strength::Weak), "cannot set"),
        (lacking(|caps| caps.signal.bits = 32), set(Strength::Weak), "32 at a time"),
        (lacking(|caps| caps.alignment = 4), put(6), "a length of 6; the transport takes multiples of 4"),
        (no_atomics, atomic, "Atomic is not in the transport's caps"),
    ] {
        let (refused, asked) = posted(lacks, Recorder::default(), &[put(4), op]);
        let Err(PostError::Invalid { index: 1, reason }) = &refused else { panic!("{refused:?}") };
        assert!(reason.contains(fragment) && asked.is_empty(), "{reason}; {asked:?}");
    }
}

#[test]
fn parts_wait_for_room_and_the_first_does_not() {
    let lacks = lacking(|caps| caps.max_bytes = 1);
    let (refused, asked) = posted(lacks, Recorder { busy: Some(1), ..Recorder::default() }, &[put(3)]);
    assert_eq!(refused, Err(PostError::Busy { needed: 1, free: 0 }));
    assert_eq!(asked, ["p2+1 p1+1 p0+1", "busy"]);
    let (accepted, asked) = posted(lacks, Recorder { busy: Some(2), ..Recorder::default() }, &[put(5)]);
    assert_eq!(accepted, Ok(Ticket::new(7, 4)));
    assert_eq!(asked, ["p4+1 p3+1 p2+1 p1+1", "p0+1", "busy", "p0+1"]);
    let (refused, asked) = posted(lacks, Recorder::default(), &[put(2); 5]);
    assert_eq!(refused, Err(PostError::TooLarge { needed: 5, depth: DEPTH }));
    assert!(asked.is_empty());
    // The last piece goes first: refused with it, nothing has moved, and the caller's operation is named.
    let refuses = |bytes| Recorder { refuses: Some(bytes), ..Recorder::default() };
    let lacks = lacking(|caps| caps.max_bytes = 10);
    let (refused, _) = posted(lacks, refuses(3), &[put(2), put(13)]);
    assert_eq!(refused, Err(PostError::Invalid { index: 1, reason: "no".to_owned() }));
}

#[test]
fn a_list_that_breaks_off_fails_the_queue_for_good() {
    let lacks = lacking(|caps| caps.signal.native_strong = false);
    let recorder = Arc::new(Recorder { refuses: Some(3), ..Recorder::default() });
    let queue = lacks.emulate(Arc::clone(&recorder) as _, DEPTH, Duration::from_secs(1));
    let failed = queue.post(&[put(1), set(Strength::Strong), put(3)]).expect_err("its last part is refused");
    let PostError::Queue(failure) = failed else { panic!("{failed}") };
    assert!(failure.to_string().contains("could not follow the parts before it"), "{failure}");
    assert_eq!(queue.post(&[put(1)]), Err(PostError::Queue(failure.clone())));
    assert_eq!(queue.test(queue.flush(), Completion::Local), Err(failure));
}
