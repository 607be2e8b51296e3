//! The ordering contract: what a transport promises and what its callers may rely on.
//!
//! | term | promise |
//! |---|---|
//! | put | no order between puts, unless [`Caps::ordered_puts`](crate::Caps::ordered_puts) says so; the source must stay until local completion |
//! | weak signal | visible ⇒ the put that it is bundled with is visible at the target |
//! | strong signal | visible ⇒ all earlier puts of the same (queue, peer) are visible; over several queues only by draining, at a stated cost |
//! | fence | earlier operations are delivered before later ones; completes nothing |
//! | flush | a pure snapshot of what completed posts have written; no side effect; never waits for others' unpublished reservations |
//! | test or wait, [`Local`](crate::Completion::Local) | the source is reusable, results are there |
//! | test or wait, [`Remote`](crate::Completion::Remote)(agent) | target memory is updated and visible to that agent |
//! | 0 bytes, more operations than slots, unaligned, wrap | legal, or a clear error at once; never a stall |
//!
//! # Load and store
//!
//! Where [`Transport::map`](crate::Transport::map) gives a pointer, plain stores through it take the place of puts and a
//! release store of a word the place of a strong signal ([`Window::signal`](crate::Window::signal) does both halves of
//! that and wakes the waiter). Non-temporal stores need a store fence of the writer before the word. A waiter's
//! acquire load of the word ([`Transport::signal_wait`](crate::Transport::signal_wait)) is the other half.
//!
//! # Words
//!
//! A word has exactly one writer; it is only ever accessed as a 64-bit atomic; it is never reset; it is compared by
//! signed difference. CPU, GPU and NIC do not write the same word: atomicity domains do not mix.
//!
//! # Doorbell order
//!
//! `Completed ≤ Rung ≤ Written ≤ Reserved`, four 64-bit monotone counters:
//!
//! 1. One reservation is one contiguous publish: a put, its signal and wrap padding together.
//! 2. Only the owner of a reservation publishes it. Nobody rings up to `Reserved`.
//! 3. A turn is awaited with `≥` logic. A counter seen beyond one's own turn is a protocol error with a state dump.
//! 4. Flush never rings and never writes a counter. Waiting on a queue with deferred doorbells rings up to `Written` first.
//! 5. A caller with an unpublished reservation never waits for its own range; a list that needs more slots than the
//!    depth is refused. A producer that dies before publishing poisons the queue after the deadline.
//! 6. Every wait has a deadline, and decodes completion errors into a sticky error.
//!
//! The state machine is [`doorbell`](crate::doorbell).
//!
//! # Failure
//!
//! Every wait is bounded. The first culprit is recorded in a word that all ranks share; every rank that still needs it
//! learns of it; after an error nobody publishes anything.
