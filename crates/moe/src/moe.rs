//! The MoE operation on host memory: dispatch, experts, combine.
//!
//! [`Moe`] owns a window with the planes of its [`Plan`], the protocol state, and the routes of each set. A round is
//! dispatch, then the caller's experts on the [`ReceivedRows`](crate::ReceivedRows) rows, then combine; dispatch and combine
//! split into send and receive, so that other work (or another set's phase) fits in between. All ranks issue the phases
//! of an operation in one order. The data plane allocates nothing and takes no lock.
//!
//! The first error after a phase has begun is sticky: the protocol is aborted, nothing more is published, and the other
//! ranks learn of it. Errors before that (a bad argument, a stale handle) change nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use campanile_core::{Communicator, Condition, MemoryKind, MoeCombine, Path, Wait, Window};

use campanile_host::copy::Copier;

use crate::arithmetic::Kernels;
use crate::error::MoeError;
use crate::handle::{Combining, Dispatching, Handle, OpenRound};
use crate::outputs::Outputs;
use crate::plan::{MoeConfig, Plan, PlanPaths};
use crate::protocol::{Combine, Epoch, Misuse, Phase, Protocol, Round, Set, Word, WordCondition, WordMap, WordStore};
use crate::quantize::Quantized;
use crate::received_rows::ReceivedRows;
use crate::route::Routes;
use crate::stream_choice::StreamChoice;
use crate::tokens::Tokens;

/// An MoE operation of one rank.
pub struct Moe {
    pub(crate) comm: Arc<Communicator>,
    pub(crate) plan: Plan,
    pub(crate) window: Window,
    pub(crate) protocol: Protocol,
    pub(crate) combine: Combine,
    pub(crate) active: Vec<bool>,
    /// The active ranks in the order in which this rank serves them.
    order: Arc<[usize]>,
    /// Routes of the open round of each set.
    pub(crate) routes: Vec<Routes>,
    /// Rows that each source sent in the open round of each set.
    pub(crate) received: Vec<Vec<u32>>,
    pub(crate) kernels: &'static Kernels,
    pub(crate) scratch: Scratch,
    pub(crate) quantized: Quantized,
    /// Chosen once, so that the data plane does not.
    pub(crate) streaming: Copier,
    /// Whether rows of dispatch are streamed.
    pub(crate) stream_rows: StreamChoice,
    /// Whether sums of combine are streamed.
    pub(crate) stream_sums: StreamChoice,
    operation: u64,
}

/// Room for one token and one phase, so that the data plane allocates nothing.
pub(crate) struct Scratch {
    /// Contributions to the token at hand.
    pub(crate) rows: Vec<*const u8>,
    /// Rows written for each owner and not published yet.
    pub(crate) unpublished: Vec<u32>,
    /// Next row of each local expert.
    pub(crate) cursors: Vec<usize>,
}

// SAFETY: the pointers are left-overs of the last token, never read before they are written again.
unsafe impl Send for Scratch {}

impl Moe {
    /// Makes the operation on every rank of `comm`, with its window. Collective.
    ///
    /// # Errors
    /// [`MoeError::Plan`] for a config that is none; [`MoeError::Comm`] if ranks were given different ones, if there is
    /// too little memory somewhere, or if pull is asked for where load / store does not reach.
    pub fn new(comm: &Arc<Communicator>, config: MoeConfig) -> Result<Self, MoeError> {
        let mapped = comm.maps_all();
        let by = match config.combine {
            MoeCombine::Auto if mapped => MoeCombine::Pull,
            MoeCombine::Auto => MoeCombine::Push,
            by => by,
        };
        let plan =
            Plan::new(config, comm.rank(), comm.ranks(), PlanPaths { push: by == MoeCombine::Push, staged: !mapped })?;
        comm.agree("moe", &plan.config().fingerprint(by))?;
        if by == MoeCombine::Pull && !mapped {
            return Err(MoeError::Argument {
                operation: "construction",
                argument: "combine is",
                given: by.to_string(),
                allowed: format!(
                    "load / store does not reach every rank by transport {}, path {}; use push",
                    comm.transport().info().name,
                    Path::Queue.name()
                ),
            });
        }
        let window = comm.window(plan.bytes(), MemoryKind::Host)?;
        let ranks = plan.ranks;
        let first = Epoch::FIRST;
        initialise_words(&plan, &window, &vec![first; plan.config().sets as usize]);
        // No rank stores a word before every rank has initialised its own.
        comm.agree("moe words", &[])?;
        static OPERATIONS: AtomicU64 = AtomicU64::new(0);
        let sets = plan.config().sets as usize;
        Ok(Self {
            protocol: Protocol::new(plan.word_map, comm.rank(), plan.config().capacity as u32, first),
            combine: if by == MoeCombine::Push { Combine::Push } else { Combine::Pull },
            order: order(comm.rank(), &vec![true; ranks]),
            active: vec![true; ranks],
            routes: (0..sets).map(|_| Routes::new(&plan)).collect(),
            received: vec![vec![0; ranks]; sets],
            kernels: Kernels::get(),
            scratch: Scratch {
                rows: Vec::with_capacity(plan.config().topk.max(ranks)),
                unpublished: vec![0; ranks],
                cursors: vec![0; plan.local_experts()],
            },
            quantized: Quantized::new(&plan),
            streaming: Copier::streaming(),
            stream_rows: StreamChoice::new(),
            stream_sums: StreamChoice::new(),
            operation: OPERATIONS.fetch_add(1, Ordering::Relaxed),
            comm: Arc::clone(comm),
            plan,
            window,
        })
    }

    /// The plan: sizes, planes, expert maps.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The communicator.
    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }

    /// How results come back.
    pub fn combine_by(&self) -> MoeCombine {
        match self.combine {
            Combine::Pull => MoeCombine::Pull,
            Combine::Push => MoeCombine::Push,
        }
    }

    /// Goes on without the ranks whose entry is `false`: they are known dead or fenced off. Latched by the next phase;
    /// slots of their experts are dropped from the next dispatch on.
    ///
    /// # Errors
    /// [`MoeError::Argument`] for another length, for this rank itself, or for a rank that was masked before.
    pub fn set_active(&mut self, active: &[bool]) -> Result<(), MoeError> {
        let bad = |given: String, allowed: String| {
            Err(MoeError::Argument { operation: "mask", argument: "active", given, allowed })
        };
        if active.len() != self.plan.ranks {
            let allowed = format!("one entry a rank, {}, is needed", self.plan.ranks);
            return bad(format!("has {} entries", active.len()), allowed);
        }
        if !active[self.plan.rank] {
            return bad("masks this rank".to_owned(), "a rank cannot go on without itself".to_owned());
        }
        if let Some(rank) = (0..active.len()).find(|&rank| active[rank] && !self.active[rank]) {
            return bad(format!("brings rank {rank} back"), "a masked rank stays masked".to_owned());
        }
        self.active.copy_from_slice(active);
        self.order = order(self.plan.rank, active);
        Ok(())
    }

    /// Goes on without ranks that were masked ([`Communicator::mask`]): `survivors` is the communicator which that gave.
    /// Positions, experts and sizes stay what they were; slots of the experts of masked ranks are dropped. Rounds that
    /// were open are lost, their handles are refused. Collective over the survivors, each of which has no phase running.
    ///
    /// The words begin a new generation, at an epoch that no rank has used, so that nothing which the lost rounds left in
    /// them is taken for an answer.
    ///
    /// # Errors
    /// [`MoeError::Argument`] if `survivors` is not a part of this operation's team; [`MoeError::Comm`] if another rank is
    /// gone: mask that one too, and call again.
    pub fn go_on(&mut self, survivors: &Communicator) -> Result<(), MoeError> {
        let (team, part) = (self.comm.team(), survivors.team());
        if let Some(stranger) = part.members().iter().find(|member| team.position(**member).is_none()) {
            return Err(MoeError::Argument {
                operation: "going on",
                argument: "survivors has",
                given: stranger.to_string(),
                allowed: "give it the communicator that mask returned for this operation's communicator".to_owned(),
            });
        }
        let active: Vec<bool> = team.members().iter().map(|member| part.position(*member).is_some()).collect();
        self.protocol.abort();
        // What this rank still had on its way must not arrive behind the new words.
        for peer in (0..active.len()).filter(|&peer| active[peer]) {
            self.window.quiet(peer)?;
        }
        let sets = 0..self.plan.config().sets;
        let next = sets.map(|set| self.protocol.next_generation(Set(set))).collect::<Result<Vec<_>, _>>()?;
        let mine: Vec<u8> = next.iter().flat_map(|epoch| epoch.0.to_le_bytes()).collect();
        let mut first = next;
        for theirs in survivors.gather("moe generation", &mine)? {
            for (first, bytes) in first.iter_mut().zip(theirs.as_chunks::<4>().0) {
                let theirs = Epoch(u32::from_le_bytes(*bytes));
                if theirs.since(*first) > 0 {
                    *first = theirs;
                }
            }
        }
        initialise_words(&self.plan, &self.window, &first);
        self.protocol.readmit(&first, &active)?;
        survivors.agree("moe generation words", &[])?;
        self.order = order(self.plan.rank, &active);
        self.active = active;
        Ok(())
    }

    /// Sends this rank's tokens on `set` and takes in what the others send.
    ///
    /// # Errors
    /// As [`dispatch_send`](Self::dispatch_send) and [`dispatch_receive`](Self::dispatch_receive).
    pub fn dispatch(&mut self, set: Set, tokens: &Tokens<'_>) -> Result<Handle, MoeError> {
        let sent = self.dispatch_send(set, tokens)?;
        self.dispatch_receive(sent)
    }

    /// Sends this rank's tokens on `set`. `tokens` is the caller's again on return.
    ///
    /// # Errors
    /// [`MoeError::Argument`] if the tokens do not fit the config, [`MoeError::Misuse`] if the set has an open round;
    /// nothing was sent then. [`MoeError::Comm`] if a rank that is needed has failed.
    pub fn dispatch_send(&mut self, set: Set, tokens: &Tokens<'_>) -> Result<Dispatching, MoeError> {
        tokens.check(&self.plan)?;
        if let Some(round) = self.protocol.open_round(set)? {
            return Err(Misuse::RoundOpen { round }.into());
        }
        let routes = &mut self.routes[set.index()];
        routes.count(&self.plan, tokens, &self.active);
        let round = self.protocol.begin_dispatch_send(set, &self.active, routes.counts())?;
        self.run(|moe| moe.send_rows(round, tokens))?;
        Ok(Dispatching(Handle { round, operation: self.operation }))
    }

    /// Takes in what the others send in this round.
    ///
    /// # Errors
    /// [`MoeError::Misuse`] for a handle of another operation; [`MoeError::Comm`] if a rank that is needed has failed.
    pub fn dispatch_receive(&mut self, sent: Dispatching) -> Result<Handle, MoeError> {
        let handle = sent.0;
        self.check_handle(&handle)?;
        self.protocol.begin_dispatch_receive(handle.round, &self.active)?;
        self.run(|moe| moe.receive_rows(handle.round))?;
        Ok(handle)
    }

    /// The rows that came in this round, and where their results go.
    ///
    /// # Errors
    /// [`MoeError::Misuse`] for a handle of another operation.
    pub fn received(&mut self, handle: &Handle) -> Result<ReceivedRows<'_>, MoeError> {
        self.check_handle(handle)?;
        Ok(ReceivedRows::new(self, handle.round))
    }

    /// Gives this rank's results back and sums those for its own tokens, ascending by rank, in f32, rounded once.
    ///
    /// `out` is `[tokens of the dispatch, H]` of the combine type without padding; `out_weights`, if given, `[tokens, K]`:
    /// the weight of each slot that was valid, else 0.
    ///
    /// # Errors
    /// As [`combine_send`](Self::combine_send) and [`combine_receive`](Self::combine_receive).
    pub fn combine(
        &mut self,
        handle: Handle,
        outputs: Outputs<'_>,
        out: &mut [u8],
        out_weights: Option<&mut [f32]>,
    ) -> Result<(), MoeError> {
        self.check_out(&handle, out, out_weights.as_deref())?;
        let sent = self.combine_send(handle, outputs)?;
        self.combine_receive(sent, out, out_weights)
    }

    /// Gives this rank's results back. The rows of the round are no longer this rank's to read.
    ///
    /// # Errors
    /// [`MoeError::Argument`] if the outputs do not fit what came; [`MoeError::Misuse`] for a handle of another operation;
    /// [`MoeError::Comm`] if a rank that is needed has failed.
    pub fn combine_send(&mut self, handle: Handle, outputs: Outputs<'_>) -> Result<Combining, MoeError> {
        self.check_handle(&handle)?;
        outputs.check(self, handle.round)?;
        self.protocol.begin_combine_send(handle.round, self.combine, &self.active)?;
        self.run(|moe| moe.send_results(handle.round, &outputs))?;
        Ok(Combining(handle))
    }

    /// Sums the results for this rank's tokens; see [`combine`](Self::combine). The round is over.
    ///
    /// # Errors
    /// [`MoeError::Argument`] if `out` does not fit the dispatch; [`MoeError::Comm`] if a rank that is needed has failed.
    pub fn combine_receive(
        &mut self,
        sent: Combining,
        out: &mut [u8],
        out_weights: Option<&mut [f32]>,
    ) -> Result<(), MoeError> {
        let handle = sent.0;
        self.check_out(&handle, out, out_weights.as_deref())?;
        self.protocol.begin_combine_receive(handle.round, &self.active)?;
        self.run(|moe| moe.receive_results(handle.round, out, out_weights))
    }

    /// Ends a round without results. All ranks release it, or all combine.
    ///
    /// # Errors
    /// [`MoeError::Misuse`] for a handle of another operation; [`MoeError::Comm`] if the communicator has failed.
    pub fn release(&mut self, handle: Handle) -> Result<(), MoeError> {
        self.check_handle(&handle)?;
        let round = handle.round;
        self.protocol.begin_release(round, &self.active)?;
        self.run(|moe| {
            for peer in moe.peers() {
                let ready = moe.protocol.publish_ready(round, peer)?;
                moe.publish(&ready)?;
                let done = moe.protocol.publish_done(round, peer)?;
                moe.publish(&done)?;
            }
            Ok(moe.protocol.finish(round)?)
        })
    }

    /// The handle of the round that is open on `set`, for a caller that dropped it or lost it to a call that refused its
    /// arguments.
    ///
    /// # Errors
    /// [`MoeError::Misuse`] if there is no such set.
    pub fn open_round(&self, set: Set) -> Result<Option<OpenRound>, MoeError> {
        let Some(round) = self.protocol.open_round(set)? else { return Ok(None) };
        let handle = Handle { round, operation: self.operation };
        Ok(match self.protocol.last_phase(round)? {
            Some(Phase::DispatchSend) => Some(OpenRound::Dispatching(Dispatching(handle))),
            Some(Phase::DispatchReceive) => Some(OpenRound::Dispatched(handle)),
            Some(Phase::CombineSend) => Some(OpenRound::Combining(Combining(handle))),
            // A phase that failed: the operation is over.
            _ => None,
        })
    }

    /// Tokens of the dispatch of a round.
    pub(crate) fn tokens(&self, round: Round) -> usize {
        self.routes[round.set.index()].tokens()
    }

    fn check_handle(&self, handle: &Handle) -> Result<(), MoeError> {
        let open = self.protocol.open_round(handle.round.set).ok().flatten();
        if handle.operation == self.operation && open == Some(handle.round) {
            return Ok(());
        }
        Err(MoeError::Argument {
            operation: "call",
            argument: "handle is",
            given: format!("of {} of another operation or one that failed", handle.round),
            allowed: "a handle belongs to the operation that gave it, until its combine or release".to_owned(),
        })
    }

    fn check_out(&self, handle: &Handle, out: &[u8], weights: Option<&[f32]>) -> Result<(), MoeError> {
        self.check_handle(handle)?;
        let config = self.plan.config();
        let tokens = self.tokens(handle.round);
        let bad = |argument, given: usize, needed: usize| {
            Err(MoeError::Argument {
                operation: "combine",
                argument,
                given: format!("{given}"),
                allowed: format!("{needed} are needed for the {tokens} tokens of its dispatch"),
            })
        };
        let needed = tokens * config.combine_dtype.row_bytes(config.hidden);
        if out.len() != needed {
            return bad("bytes of out are", out.len(), needed);
        }
        match weights {
            Some(weights) if !config.weighted => bad("elements of out_weights are", weights.len(), 0),
            Some(weights) if weights.len() != tokens * config.topk => {
                bad("elements of out_weights are", weights.len(), tokens * config.topk)
            }
            _ => Ok(()),
        }
    }

    /// Runs a phase that has begun; its error ends the operation on all ranks.
    fn run<T>(&mut self, phase: impl FnOnce(&mut Self) -> Result<T, MoeError>) -> Result<T, MoeError> {
        phase(self).inspect_err(|error| {
            self.protocol.abort();
            if !matches!(error, MoeError::Comm(_)) {
                self.comm.fail(campanile_core::CommError::Misuse { what: "moe", reason: error.to_string() });
            }
        })
    }

    /// The active ranks, starting behind this one, so that not all ranks begin with the same peer.
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let order = Arc::clone(&self.order);
        (0..order.len()).map(move |at| order[at])
    }

    /// Waits for a word and lets the protocol judge it.
    pub(crate) fn wait(&mut self, operation: &'static str, condition: Option<WordCondition>) -> Result<(), MoeError> {
        let Some(condition) = condition else { return Ok(()) };
        let seen = self.comm.wait(&Wait {
            region: self.window.region(),
            offset: self.plan.words.offset + condition.offset,
            condition: Condition::AtLeast(condition.at_least),
            peer: self.comm.team().member(condition.source),
            operation,
            slot: condition.word.name(),
            epoch: u64::from(condition.round.epoch.0),
        })?;
        self.protocol.observe(&condition, seen).map_err(Box::new)?;
        Ok(())
    }

    /// Makes a store that the protocol has handed out.
    #[inline]
    pub(crate) fn publish(&self, store: &WordStore) -> Result<(), MoeError> {
        Ok(self.window.signal(store.peer, self.plan.words.offset + store.offset, store.value)?)
    }
}

/// Stores into all words of this rank what they are before the first epoch of their set.
fn initialise_words(plan: &Plan, window: &Window, first: &[Epoch]) {
    for (set, &first) in (0..).map(Set).zip(first) {
        for source in 0..plan.ranks {
            for word in Word::ALL {
                let offset = plan.words.offset + plan.word_map.offset(set, source, word);
                window.word(offset).store(WordMap::initial(first), Ordering::Relaxed);
            }
        }
    }
}

fn order(rank: usize, active: &[bool]) -> Arc<[usize]> {
    let ranks = active.len();
    (1..=ranks).map(|step| (rank + step) % ranks).filter(|&peer| active[peer]).collect()
}

impl std::fmt::Debug for Moe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Moe(rank {} of {}, {} bytes)", self.plan.rank, self.plan.ranks, self.plan.bytes())
    }
}
