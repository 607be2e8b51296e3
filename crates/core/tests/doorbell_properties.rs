//! The doorbell queue against a model of it: any sequence of calls, any depth, any start.
//!
//! The model counts in `u128` from 0 and never wraps; the queue starts near 2^16, 2^32, 2^56, 2^63 or 2^64.
#![cfg(not(campanile_loom))]

use std::collections::VecDeque;
use std::time::Duration;

use campanile_core::doorbell::{
    Clock, CommandRing, DoorbellQueue, Patience, QueueFault, Reservation, ReserveError, TicketError, Wrap, Written,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// A clock that stands at the deadline: a wait polls twice.
struct Expired;

impl Clock for Expired {
    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

const AT_ONCE: Patience<'static> =
    Patience { clock: &Expired, deadline: Duration::ZERO, abort: &|| false, relax: &|_| {} };

/// One call. Numbers choose among what there is, modulo.
#[derive(Clone, Debug)]
enum Call {
    Reserve {
        slots: usize,
        wrap: Wrap,
    },
    /// Publishes the oldest reservation, whose turn it is.
    Publish,
    /// Publishes another one; the oldest is then taken for dead.
    PublishOutOfTurn {
        which: usize,
    },
    /// Drops a reservation unpublished.
    Abandon {
        which: usize,
    },
    Ring,
    Execute {
        slots: usize,
    },
    Fail {
        status: u32,
    },
    Flush,
    Test {
        which: usize,
    },
}

fn call() -> impl Strategy<Value = Call> {
    let wrap = prop_oneof![Just(Wrap::Allowed), Just(Wrap::Padded)];
    prop_oneof![
        400 => (0..20usize, wrap).prop_map(|(slots, wrap)| Call::Reserve { slots, wrap }),
        400 => Just(Call::Publish),
        200 => Just(Call::Ring),
        400 => (0..20usize).prop_map(|slots| Call::Execute { slots }),
        100 => Just(Call::Flush),
        200 => any::<usize>().prop_map(|which| Call::Test { which }),
        1 => any::<usize>().prop_map(|which| Call::PublishOutOfTurn { which }),
        1 => any::<usize>().prop_map(|which| Call::Abandon { which }),
        1 => any::<u32>().prop_map(|status| Call::Fail { status }),
    ]
}

fn start() -> impl Strategy<Value = u64> {
    let boundary = prop_oneof![Just(0), Just(1u64 << 16), Just(1 << 32), Just(1 << 56), Just(1 << 63),];
    // Below 0 is just before 2^64.
    (boundary, 0..40u64).prop_map(|(boundary, before)| boundary.wrapping_sub(before))
}

/// What the queue should be.
struct Model<'q> {
    depth: u128,
    start: u64,
    reserved: u128,
    written: u128,
    rung: u128,
    completed: u128,
    /// Start, padding, slots, and the thing itself.
    unpublished: VecDeque<(u128, u128, u128, Reservation<'q>)>,
    tickets: Vec<(u128, Written)>,
    fault: Option<QueueFault>,
}

impl Model<'_> {
    fn raw(&self, position: u128) -> u64 {
        self.start.wrapping_add(position as u64)
    }

    fn counters(&self) -> [u64; 4] {
        [self.completed, self.rung, self.written, self.reserved].map(|position| self.raw(position))
    }
}

fn counters(queue: &DoorbellQueue) -> [u64; 4] {
    let state = queue.state();
    [state.completed.raw(), state.rung.raw(), state.written.raw(), state.reserved.raw()]
}

/// Content of the slot at a position, and of padding.
const NO_OPERATION: u128 = u128::MAX;

fn run(depth: u32, start: u64, calls: Vec<Call>) -> Result<(), TestCaseError> {
    let queue = DoorbellQueue::starting_at(depth, start).expect("a power of two");
    let mut slots = vec![None; depth as usize];
    let mut model = Model {
        depth: depth.into(),
        start,
        reserved: 0,
        written: 0,
        rung: 0,
        completed: 0,
        unpublished: VecDeque::new(),
        tickets: Vec::new(),
        fault: None,
    };
    for call in calls {
        match call {
            Call::Reserve { slots: wanted, wrap } => {
                let result = queue.reserve(wanted, wrap);
                let limit = if wrap == Wrap::Padded { model.depth.div_ceil(2) } else { model.depth };
                let index = u128::from(model.raw(model.reserved)) % model.depth;
                let wraps = index + wanted as u128 > model.depth;
                let padding = if wrap == Wrap::Padded && wraps { model.depth - index } else { 0 };
                let needed = padding + wanted as u128;
                let free = model.depth - (model.reserved - model.completed);
                match result {
                    Err(ReserveError::Poisoned(poisoned)) => prop_assert_eq!(Some(poisoned.fault), model.fault),
                    Err(ReserveError::TooLarge { needed, .. }) => {
                        prop_assert!(model.fault.is_none() && needed == wanted && wanted as u128 > limit);
                    }
                    Err(ReserveError::Busy { needed: n, free: f }) => {
                        prop_assert!(wanted as u128 <= limit && needed > free);
                        prop_assert_eq!((u128::from(n), u128::from(f)), (needed, free));
                    }
                    Err(error) => return Err(TestCaseError::fail(error.to_string())),
                    Ok(reservation) => {
                        prop_assert!(model.fault.is_none() && wanted as u128 <= limit && needed <= free);
                        prop_assert_eq!(reservation.padding().len() as u128, padding);
                        prop_assert_eq!(reservation.slots().len(), wanted);
                        let all = reservation.padding().chain(reservation.slots());
                        for (position, slot) in (model.reserved..).zip(all) {
                            prop_assert_eq!(slot.position, model.raw(position));
                            prop_assert_eq!(slot.index as u128, u128::from(slot.position) % model.depth);
                            prop_assert_eq!(slots[slot.index], None, "taken while in use");
                            let own = position - model.reserved >= padding;
                            slots[slot.index] = Some(if own { position } else { NO_OPERATION });
                        }
                        if needed > 0 {
                            model.unpublished.push_back((model.reserved, padding, wanted as u128, reservation));
                            model.reserved += needed;
                        }
                    }
                }
            }
            Call::Publish => {
                if let Some((at, padding, wanted, reservation)) = model.unpublished.pop_front() {
                    match reservation.publish(&AT_ONCE) {
                        Ok(ticket) => {
                            prop_assert!(model.fault.is_none());
                            model.written = at + padding + wanted;
                            prop_assert_eq!(ticket.raw(), model.raw(model.written));
                            model.tickets.push((model.written, ticket));
                        }
                        Err(poisoned) => prop_assert_eq!(Some(poisoned.fault), model.fault),
                    }
                }
            }
            Call::PublishOutOfTurn { which } => {
                if model.unpublished.len() > 1 {
                    let which = 1 + which % (model.unpublished.len() - 1);
                    let (_, _, _, reservation) = model.unpublished.remove(which).expect("in range");
                    let position = model.raw(model.written);
                    let fault = *model.fault.get_or_insert(QueueFault::ProducerStalled { position });
                    prop_assert_eq!(reservation.publish(&AT_ONCE).map_err(|poisoned| poisoned.fault), Err(fault));
                }
            }
            Call::Abandon { which } => {
                if !model.unpublished.is_empty() {
                    let which = which % model.unpublished.len();
                    let (at, ..) = model.unpublished.remove(which).expect("in range");
                    let position = model.raw(at);
                    model.fault.get_or_insert(QueueFault::Abandoned { position });
                }
            }
            Call::Ring => {
                let mut values = Vec::new();
                match queue.ring(|value| values.push(value.raw())) {
                    Ok(rung) => {
                        prop_assert!(model.fault.is_none());
                        let new = model.written > model.rung;
                        model.rung = model.written;
                        prop_assert_eq!(rung.raw(), model.raw(model.rung));
                        prop_assert_eq!(values, if new { vec![rung.raw()] } else { vec![] });
                    }
                    Err(poisoned) => {
                        prop_assert_eq!(Some(poisoned.fault), model.fault);
                        prop_assert!(values.is_empty());
                    }
                }
            }
            Call::Execute { slots: wanted } => {
                let mut executor = queue.executor().expect("the only one");
                match executor.pending() {
                    Ok(pending) => {
                        prop_assert!(model.fault.is_none());
                        prop_assert_eq!(pending.len() as u128, model.rung - model.completed);
                        for slot in pending.take(wanted) {
                            let content = slots[slot.index].take();
                            prop_assert!(content == Some(model.completed) || content == Some(NO_OPERATION));
                            model.completed += 1;
                            let completed = executor.complete(1).expect("rung");
                            prop_assert_eq!(completed.raw(), model.raw(model.completed));
                        }
                    }
                    Err(poisoned) => prop_assert_eq!(Some(poisoned.fault), model.fault),
                }
            }
            Call::Fail { status } => {
                let position = model.raw(model.completed);
                let fault = *model.fault.get_or_insert(QueueFault::Completion { position, status });
                prop_assert_eq!(queue.executor().expect("the only one").fail(status).fault, fault);
            }
            Call::Flush => {
                let before = queue.state();
                let ticket = queue.flush();
                prop_assert_eq!(queue.state(), before);
                prop_assert_eq!(ticket.raw(), model.raw(model.written));
                model.tickets.push((model.written, ticket));
            }
            Call::Test { which } => {
                if !model.tickets.is_empty() {
                    let (position, ticket) = model.tickets[which % model.tickets.len()];
                    match queue.test(ticket) {
                        Ok(complete) => {
                            prop_assert_eq!(complete, position <= model.completed);
                            prop_assert!(complete || model.fault.is_none());
                        }
                        Err(TicketError::Poisoned(poisoned)) => {
                            prop_assert!(position > model.completed);
                            prop_assert_eq!(Some(poisoned.fault), model.fault);
                        }
                        Err(error) => return Err(TestCaseError::fail(error.to_string())),
                    }
                }
            }
        }
        prop_assert_eq!(counters(&queue), model.counters());
        prop_assert!(queue.state().is_ordered());
        prop_assert_eq!(queue.check().err().map(|poisoned| poisoned.fault), model.fault);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls_agrees_with_the_model(
        shift in 0..5u32,
        start in start(),
        calls in vec(call(), 0..120),
    ) {
        run(1 << shift, start, calls)?;
    }

    /// Lists of any length, none and too many included, come out of a command ring as they went in; cancelled ones do
    /// not come out, and all tickets complete.
    #[test]
    fn a_command_ring_is_a_fifo_of_lists(
        shift in 0..5u32,
        start in start(),
        lists in vec((0..20usize, any::<bool>(), any::<bool>()), 0..60),
    ) {
        let ring = CommandRing::starting_at(1 << shift, start).expect("a power of two");
        let depth = 1usize << shift;
        let (mut next, mut expected, mut tickets) = (0u64, Vec::new(), Vec::new());
        let mut done = Vec::new();
        let mut execute = || {
            ring.ring(|_| {}).expect("sound");
            ring.execute(|&command| {
                done.push(command);
                Ok(())
            })
            .expect("sound");
        };
        for (length, cancel, pause) in lists {
            let list: Vec<u64> = (next..).take(length).collect();
            next += length as u64;
            let ticket = match ring.post(&list, &AT_ONCE) {
                Err(ReserveError::TooLarge { needed, .. }) => {
                    prop_assert!(needed == length && length > depth);
                    continue;
                }
                Err(ReserveError::Busy { .. }) => {
                    execute();
                    ring.post(&list, &AT_ONCE).expect("all is executed")
                }
                posted => posted.expect("sound"),
            };
            tickets.push(ticket);
            if cancel && length > 0 {
                prop_assert_eq!(ring.cancel(ticket), Ok(true));
            } else {
                expected.extend(list);
            }
            if pause {
                execute();
            }
        }
        execute();
        prop_assert_eq!(done, expected);
        prop_assert!(tickets.iter().rev().all(|&ticket| ring.test(ticket) == Ok(true)));
        prop_assert_eq!(ring.flush().raw(), ring.state().completed.raw());
    }
}
