//! Combine: results back, summed in a fixed order.
//!
//! By pull the owner only says that its results stand; the source reads them where they are, in one pass with the sum. By
//! push the owner writes them into the source's `returns`, a chunk at a time, and the source sums a token as soon as
//! every owner has returned its row. Either way a sum ascends by rank, so the bits are the same.

use std::ops::Range;

use campanile_host::clock::now_ns;
use campanile_host::copy::{Copier, streaming_fence};

use crate::arithmetic::Store;
use crate::error::MoeError;
use crate::moe::Moe;
use crate::outputs::Outputs;
use crate::protocol::{Combine, Round};
use crate::route::Route;

/// Results between two advances of a RETURNED word.
const ADVANCE_EVERY: usize = 64;

impl Moe {
    pub(crate) fn send_results(&mut self, round: Round, outputs: &Outputs<'_>) -> Result<(), MoeError> {
        self.write_outputs(round, outputs);
        if self.combine == Combine::Push {
            for peer in self.peers() {
                self.push_results(round, peer)?;
            }
        }
        for peer in self.peers() {
            let ready = self.protocol.publish_ready(round, peer)?;
            self.publish(&ready)?;
        }
        Ok(self.protocol.finish(round)?)
    }

    pub(crate) fn receive_results(
        &mut self,
        round: Round,
        out: &mut [u8],
        out_weights: Option<&mut [f32]>,
    ) -> Result<(), MoeError> {
        match self.combine {
            Combine::Pull => {
                for owner in self.peers() {
                    let rows = self.routes[round.set.index()].counts()[owner];
                    let results = self.protocol.results(round, owner, rows)?;
                    self.wait("moe combine", results)?;
                }
                let store = if self.stream_sums.choose(out.len()) { Store::Streaming } else { Store::Cached };
                let start = now_ns();
                self.sum_tokens(round, 0..self.tokens(round), out, store);
                self.stream_sums.record(out.len(), now_ns() - start);
            }
            Combine::Push => {
                let tokens = self.tokens(round);
                let store = if Copier::for_bytes(out.len()).is_streaming() { Store::Streaming } else { Store::Cached };
                for first in (0..tokens).step_by(ADVANCE_EVERY) {
                    let chunk = first..tokens.min(first + ADVANCE_EVERY);
                    for token in chunk.clone() {
                        for at in 0..self.routes[round.set.index()].of(token).len() {
                            let route = self.routes[round.set.index()].of(token)[at];
                            let results = self.protocol.results(round, route.owner as usize, route.ordinal + 1)?;
                            self.wait("moe combine", results)?;
                        }
                    }
                    self.sum_tokens(round, chunk, out, store);
                }
            }
        }
        if let Some(weights) = out_weights {
            for (token, out) in weights.chunks_exact_mut(self.plan.config().topk).enumerate() {
                self.collect_weights(round, self.routes[round.set.index()].of(token), out);
            }
        }
        for owner in self.peers() {
            let done = self.protocol.publish_done(round, owner)?;
            self.publish(&done)?;
        }
        Ok(self.protocol.finish(round)?)
    }

    /// Brings the results into the `outputs` plane.
    fn write_outputs(&mut self, round: Round, outputs: &Outputs<'_>) {
        let config = self.plan.config();
        let (dtype, hidden) = (config.combine_dtype, config.hidden);
        let row_bytes = dtype.row_bytes(hidden);
        match *outputs {
            Outputs::InPlace => {}
            Outputs::Compact(data) => {
                let copier = Copier::for_bytes(data.len());
                let mut rows = data.chunks_exact(row_bytes);
                for source in 0..self.plan.ranks {
                    for row in 0..self.received[round.set.index()][source] as usize {
                        let from = rows.next().expect("the length was checked");
                        // SAFETY: a row that came in the open round; its result is only this rank's to write until
                        // READY_C, which follows.
                        let to = unsafe { self.output(round, source, row) };
                        // SAFETY: two slices of `row_bytes` bytes, one in the window, one the caller's.
                        unsafe { copier.copy(to.as_mut_ptr(), from.as_ptr(), row_bytes) };
                    }
                }
                copier.fence();
            }
            Outputs::ExpertMajor { data, layout } => {
                self.for_each_expert_sum(round, layout, data, |moe, source, row, rows| {
                    // SAFETY: as above for the result; `rows` point to `row_bytes` bytes each in the caller's slice.
                    unsafe {
                        let to = moe.output(round, source, row).as_mut_ptr();
                        moe.kernels.reduce_rows(dtype, to, rows, hidden, Store::Cached);
                    }
                });
            }
        }
    }

    /// Copies or puts the results for `source` into its `returns`.
    fn push_results(&mut self, round: Round, source: usize) -> Result<(), MoeError> {
        let rows = self.received[round.set.index()][source] as usize;
        let (plan, planes) = (&self.plan, self.plan.set(round.set));
        let own = self.window.region().address();
        let Some(base) = self.window.map(source) else {
            let region = self.window.region();
            let (from, to) = (plan.at(&planes.outputs, source, 0), plan.at(&planes.returns, plan.rank, 0));
            self.window.put(source, region, from, to, planes.returns.stride * rows)?;
            if plan.config().weighted {
                self.stage_weights(round, source);
                let (plan, planes) = (&self.plan, self.plan.set(round.set));
                let from = plan.at(&planes.staged_weights, source, 0);
                let to = plan.at(&planes.return_weights, plan.rank, 0);
                self.window.put(source, region, from, to, planes.return_weights.stride * rows)?;
            }
            let returned = self.protocol.publish_returned(round, source, rows as u32)?;
            return self.publish(&returned);
        };
        let copier = Copier::for_bytes(planes.returns.stride * rows);
        // SAFETY: offsets of the plan are inside the window.
        let (from, to, weights) = unsafe {
            (
                own.add(plan.at(&planes.outputs, source, 0)).cast_const(),
                base.as_ptr().add(plan.at(&planes.returns, plan.rank, 0)),
                base.as_ptr().add(planes.return_weights.offset),
            )
        };
        let (stride, weights_stride) = (planes.returns.stride, planes.return_weights.stride);
        let bytes = plan.config().combine_dtype.row_bytes(plan.config().hidden);
        let weights_at = plan.config().capacity * plan.rank;
        for first in (0..rows).step_by(ADVANCE_EVERY) {
            let last = rows.min(first + ADVANCE_EVERY);
            for row in first..last {
                // SAFETY: this rank's rows of the source's `returns`, free since the source's DONE_C, which the
                // dispatch waited for; the weights of a row that came.
                unsafe {
                    copier.copy(to.add(row * stride), from.add(row * stride), bytes);
                    let from = self.meta(round, source, row).topk_weights;
                    let to = weights.add((weights_at + row) * weights_stride);
                    std::ptr::copy_nonoverlapping(from.as_ptr(), to.cast(), from.len());
                }
            }
            copier.fence();
            let returned = self.protocol.publish_returned(round, source, (last - first) as u32)?;
            self.publish(&returned)?;
        }
        Ok(())
    }

    /// Packs the weights that came from `source`, for a put.
    fn stage_weights(&self, round: Round, source: usize) {
        let plane = &self.plan.set(round.set).staged_weights;
        for row in 0..self.received[round.set.index()][source] as usize {
            // SAFETY: the weights of a row that came; the staging is this rank's own, and its last put was flushed by
            // the dispatch.
            unsafe {
                let from = self.meta(round, source, row).topk_weights;
                let to = self.window.region().address().add(self.plan.at(plane, source, row));
                std::ptr::copy_nonoverlapping(from.as_ptr(), to.cast(), from.len());
            }
        }
    }

    /// Where the result of a route is read: at its owner by pull, in this rank's `returns` by push.
    #[inline]
    fn result(&self, round: Round, route: Route) -> *const u8 {
        let (plan, planes) = (&self.plan, self.plan.set(round.set));
        let (owner, ordinal) = (route.owner as usize, route.ordinal as usize);
        let (base, at) = match self.combine {
            Combine::Pull => (self.window.map(owner), plan.at(&planes.outputs, plan.rank, ordinal)),
            Combine::Push => (self.window.map(plan.rank), plan.at(&planes.returns, owner, ordinal)),
        };
        let base = base.expect("by pull every rank is mapped, this rank always is");
        // SAFETY: offsets of the plan are inside the window.
        unsafe { base.as_ptr().add(at).cast_const() }
    }

    /// Sums the results of some tokens.
    fn sum_tokens(&mut self, round: Round, tokens: Range<usize>, out: &mut [u8], store: Store) {
        let config = self.plan.config();
        let (dtype, hidden) = (config.combine_dtype, config.hidden);
        let row_bytes = dtype.row_bytes(hidden);
        let mut rows = std::mem::take(&mut self.scratch.rows);
        let routes = &self.routes[round.set.index()];
        for token in tokens {
            rows.clear();
            rows.extend(routes.of(token).iter().map(|&route| self.result(round, route)));
            let to = &mut out[token * row_bytes..][..row_bytes];
            // SAFETY: every result stands (its word was waited for) and is not written before this rank's DONE_C;
            // `to` is the caller's, disjoint from every window.
            unsafe { self.kernels.reduce_rows(dtype, to.as_mut_ptr(), &rows, hidden, store) };
        }
        if store == Store::Streaming {
            streaming_fence();
        }
        self.scratch.rows = rows;
    }

    /// Where the weights of a route are read: at its owner by pull, in this rank's `return_weights` by push.
    #[inline]
    fn weights(&self, round: Round, route: Route) -> *const f32 {
        let (plan, planes) = (&self.plan, self.plan.set(round.set));
        let (owner, ordinal) = (route.owner as usize, route.ordinal as usize);
        let (rank, at) = match self.combine {
            Combine::Pull => (owner, plan.at(&planes.meta, plan.rank, ordinal) + 4 * (1 + plan.config().topk)),
            Combine::Push => (plan.rank, plan.at(&planes.return_weights, owner, ordinal)),
        };
        let base = self.window.map(rank).expect("by pull every rank is mapped, this rank always is");
        // SAFETY: offsets of the plan are inside the window.
        unsafe { base.as_ptr().add(at).cast_const().cast() }
    }

    /// The weight of each slot of a token that was valid, from the rank that owns it; 0 for the others. A slot lives on one
    /// rank and is 0 on all others, so joining the bits keeps every bit of it.
    fn collect_weights(&self, round: Round, routes: &[Route], out: &mut [f32]) {
        out.fill(0.0);
        for &route in routes {
            // SAFETY: K weights inside the window, 4-byte aligned, written before the word that was waited for.
            let weights = unsafe { std::slice::from_raw_parts(self.weights(round, route), out.len()) };
            for (out, weight) in out.iter_mut().zip(weights) {
                *out = f32::from_bits(out.to_bits() | weight.to_bits());
            }
        }
    }
}
