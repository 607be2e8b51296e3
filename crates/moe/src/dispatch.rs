//! Dispatch: rows out, rows in.
//!
//! Where load / store reaches an owner its planes are written in place; elsewhere they are packed into the same shape in
//! this rank's own window and put as runs, one a plane. Routing travels first and its word is raised, so that an owner
//! knows what comes while the rows are still under way. Rows that are to be quantised are so before the first wait.

use campanile_host::clock::now_ns;
use campanile_host::copy::Copier;

use crate::error::MoeError;
use crate::moe::Moe;
use crate::protocol::Round;
use crate::tokens::Tokens;
use campanile_core::MoeMode;

/// Tokens between two advances of the ROWS words in the throughput schedule. A word costs the drain of the store buffer,
/// about a microsecond behind rows that miss; 256 rows of 14 KiB are some 300 µs.
const ADVANCE_EVERY: usize = 256;

/// Where the rows for one owner go: this source's part of its planes, or of the staging for it.
#[derive(Clone, Copy)]
struct Target {
    rows: *mut u8,
    scales: *mut u8,
    meta: *mut u8,
}

impl Moe {
    pub(crate) fn send_rows(&mut self, round: Round, tokens: &Tokens<'_>) -> Result<(), MoeError> {
        if !self.plan.config().quantize {
            return self.send_as_given(round, tokens);
        }
        let mut quantized = std::mem::take(&mut self.quantized);
        let sent = self.send_as_given(round, &quantized.fill(&self.plan, self.kernels, tokens));
        self.quantized = quantized;
        sent
    }

    fn send_as_given(&mut self, round: Round, tokens: &Tokens<'_>) -> Result<(), MoeError> {
        for peer in self.peers() {
            let credit = self.protocol.credit(round, peer)?;
            self.wait("moe dispatch", credit)?;
            if self.window.map(peer).is_none() {
                // The staging of this set may still be read by the queue.
                self.window.flush(peer)?;
            }
        }
        self.write_meta(round, tokens);
        for peer in self.peers() {
            if self.window.map(peer).is_some() {
                let meta = self.protocol.publish_meta(round, peer)?;
                self.publish(&meta)?;
            }
        }
        let config = self.plan.config();
        let row = config.dtype.row_bytes(config.hidden);
        let written: usize = self.routes[round.set.index()].counts().iter().map(|&rows| rows as usize * row).sum();
        let copier = if self.stream_rows.choose(written) { self.streaming } else { Copier::TEMPORAL };
        let start = now_ns();
        match self.plan.config().mode {
            MoeMode::Throughput => self.send_by_token(round, tokens, &copier)?,
            MoeMode::LowLatency => self.send_by_owner(round, tokens, &copier)?,
            // Rows that stay in the cache are cheap to read once more for each owner.
            MoeMode::Auto if Copier::for_bytes(written).is_streaming() => self.send_by_token(round, tokens, &copier)?,
            MoeMode::Auto => self.send_by_owner(round, tokens, &copier)?,
        }
        self.stream_rows.record(written, now_ns() - start);
        for peer in self.peers() {
            if self.window.map(peer).is_none() {
                self.put_runs(round, peer)?;
            }
        }
        Ok(self.protocol.finish(round)?)
    }

    pub(crate) fn receive_rows(&mut self, round: Round) -> Result<(), MoeError> {
        self.received[round.set.index()].fill(0);
        for source in self.peers() {
            let meta = self.protocol.meta(round, source)?;
            self.wait("moe dispatch", meta)?;
            let rows = self.protocol.rows_from(round, source)?.unwrap_or(0);
            self.received[round.set.index()][source] = rows;
        }
        for source in self.peers() {
            let rows = self.received[round.set.index()][source];
            let arrived = self.protocol.rows(round, source, rows)?;
            self.wait("moe dispatch", arrived)?;
            let free = self.protocol.outputs_free(round.set, source)?;
            self.wait("moe dispatch", free)?;
        }
        Ok(self.protocol.finish(round)?)
    }

    fn target(&self, round: Round, owner: usize) -> Target {
        let (plan, planes) = (&self.plan, self.plan.set(round.set));
        let (base, rank, rows, scales, meta) = match self.window.map(owner) {
            Some(base) => (base.as_ptr(), plan.rank, &planes.rows, &planes.scales, &planes.meta),
            None => {
                let own = self.window.region().address();
                (own, owner, &planes.staged_rows, &planes.staged_scales, &planes.staged_meta)
            }
        };
        // SAFETY: every offset of the plan lies inside the window, whose parts all have the plan's size.
        unsafe {
            Target {
                rows: base.add(plan.at(rows, rank, 0)),
                scales: base.add(plan.at(scales, rank, 0)),
                meta: base.add(plan.at(meta, rank, 0)),
            }
        }
    }

    /// Writes routing and scales of all rows.
    fn write_meta(&self, round: Round, tokens: &Tokens<'_>) {
        let (plan, routes) = (&self.plan, &self.routes[round.set.index()]);
        let (config, planes) = (plan.config(), plan.set(round.set));
        let topk = config.topk;
        for token in 0..tokens.count {
            let slots = &tokens.topk_idx[token * topk..][..topk];
            for route in routes.of(token) {
                let (target, ordinal) = (self.target(round, route.owner as usize), route.ordinal as usize);
                // SAFETY: row `ordinal` of this source at the owner (or of its staging): inside the planes, since the
                // count is at most the capacity; the owner gave its credit, so nobody reads it; this source is the
                // only writer.
                unsafe {
                    let words = target.meta.add(ordinal * planes.meta.stride).cast::<i32>();
                    words.write(token as i32);
                    for (slot, &expert) in slots.iter().enumerate() {
                        words.add(1 + slot).write(plan.number_on(expert, route.owner));
                    }
                    if config.weighted {
                        let weights = words.add(1 + topk).cast::<f32>();
                        for (slot, &weight) in tokens.topk_weights[token * topk..][..topk].iter().enumerate() {
                            let here = words.add(1 + slot).read() >= 0;
                            weights.add(slot).write(if here { weight } else { 0.0 });
                        }
                    }
                    if config.scales > 0 {
                        let scales = target.scales.add(ordinal * planes.scales.stride).cast::<f32>();
                        let from = tokens.scales.as_ptr().add(token * config.scales);
                        std::ptr::copy_nonoverlapping(from, scales, config.scales);
                    }
                }
            }
        }
    }

    /// Each row is read once and written to all its owners.
    fn send_by_token(&mut self, round: Round, tokens: &Tokens<'_>, copier: &Copier) -> Result<(), MoeError> {
        self.scratch.unpublished.fill(0);
        for first in (0..tokens.count).step_by(ADVANCE_EVERY) {
            for token in first..tokens.count.min(first + ADVANCE_EVERY) {
                for at in 0..self.routes[round.set.index()].of(token).len() {
                    let route = self.routes[round.set.index()].of(token)[at];
                    self.copy_row(round, tokens, token, route.owner as usize, route.ordinal as usize, copier);
                    self.scratch.unpublished[route.owner as usize] += 1;
                }
            }
            copier.fence();
            for peer in self.peers() {
                let rows = std::mem::take(&mut self.scratch.unpublished[peer]);
                if rows > 0 && self.window.map(peer).is_some() {
                    let store = self.protocol.publish_rows(round, peer, rows)?;
                    self.publish(&store)?;
                }
            }
        }
        Ok(())
    }

    /// Each owner gets all its rows before the next one gets any.
    fn send_by_owner(&mut self, round: Round, tokens: &Tokens<'_>, copier: &Copier) -> Result<(), MoeError> {
        for peer in self.peers() {
            let routes = &self.routes[round.set.index()];
            let rows = routes.counts()[peer];
            if rows == 0 {
                continue;
            }
            for token in 0..tokens.count {
                if let Some(route) = routes.of(token).iter().find(|route| route.owner as usize == peer) {
                    self.copy_row(round, tokens, token, peer, route.ordinal as usize, copier);
                }
            }
            copier.fence();
            if self.window.map(peer).is_some() {
                let store = self.protocol.publish_rows(round, peer, rows)?;
                self.publish(&store)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn copy_row(&self, round: Round, tokens: &Tokens<'_>, token: usize, owner: usize, ordinal: usize, copier: &Copier) {
        let config = self.plan.config();
        let stride = self.plan.set(round.set).rows.stride;
        // SAFETY: the source row is inside `tokens.x` (checked with the tokens); the target as in `write_meta`; the
        // caller's slice and the window do not overlap.
        unsafe {
            copier.copy(
                self.target(round, owner).rows.add(ordinal * stride),
                tokens.x.as_ptr().add(token * tokens.stride),
                config.dtype.row_bytes(config.hidden),
            );
        }
    }

    /// Puts the staged planes for an owner that load / store does not reach, and raises its words behind them.
    fn put_runs(&mut self, round: Round, peer: usize) -> Result<(), MoeError> {
        let (plan, planes) = (&self.plan, self.plan.set(round.set));
        let rows = self.routes[round.set.index()].counts()[peer];
        let region = self.window.region();
        for (staged, plane) in [
            (&planes.staged_meta, &planes.meta),
            (&planes.staged_scales, &planes.scales),
            (&planes.staged_rows, &planes.rows),
        ] {
            let bytes = plane.stride * rows as usize;
            self.window.put(peer, region, plan.at(staged, peer, 0), plan.at(plane, plan.rank, 0), bytes)?;
        }
        let meta = self.protocol.publish_meta(round, peer)?;
        self.publish(&meta)?;
        let store = self.protocol.publish_rows(round, peer, rows)?;
        self.publish(&store)
    }
}
