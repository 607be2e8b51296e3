//! Routes: which rows of this rank go where, counted and not negotiated.
//!
//! A token goes once to every rank that owns one of its experts. Its row there is its ordinal among the tokens that
//! this source sends to that owner, so the same input gives the same place on any machine and at any time.

use crate::plan::Plan;
use crate::tokens::Tokens;

/// One row of one token: to `owner`, as its row `ordinal` of this source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) owner: u32,
    pub(crate) ordinal: u32,
}

/// The routes of one dispatch, by token; allocated once, for the capacity.
#[derive(Debug)]
pub(crate) struct Routes {
    /// Routes of token t: `routes[starts[t]..starts[t + 1]]`, owners ascending.
    starts: Vec<u32>,
    routes: Vec<Route>,
    /// Rows for each owner.
    counts: Vec<u32>,
    /// One bit an owner, of the token at hand.
    owners: Vec<u64>,
}

impl Routes {
    /// Room for the most that the plan allows.
    pub(crate) fn new(plan: &Plan) -> Self {
        let config = plan.config();
        let most = config.topk.min(plan.ranks) * config.capacity;
        Self {
            starts: Vec::with_capacity(config.capacity + 1),
            routes: Vec::with_capacity(most),
            counts: vec![0; plan.ranks],
            owners: vec![0; plan.ranks.div_ceil(64)],
        }
    }

    /// Counts the routes of `tokens`, which were checked. Slots of masked ranks are dropped. Allocates nothing.
    pub(crate) fn count(&mut self, plan: &Plan, tokens: &Tokens<'_>, active: &[bool]) {
        let config = plan.config();
        self.starts.clear();
        self.routes.clear();
        self.counts.fill(0);
        self.starts.push(0);
        for slots in tokens.topk_idx.chunks_exact(config.topk) {
            for &expert in slots {
                if expert >= 0 {
                    let owner = config.expert_rank[expert as usize] as usize;
                    self.owners[owner / 64] |= u64::from(active[owner]) << (owner % 64);
                }
            }
            for (word, owners) in self.owners.iter_mut().enumerate() {
                while *owners != 0 {
                    let owner = word * 64 + owners.trailing_zeros() as usize;
                    *owners &= *owners - 1;
                    let count = &mut self.counts[owner];
                    self.routes.push(Route { owner: owner as u32, ordinal: *count });
                    *count += 1;
                }
            }
            self.starts.push(self.routes.len() as u32);
        }
    }

    /// Tokens counted.
    pub(crate) fn tokens(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Rows for each owner.
    pub(crate) fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// Routes of a token, owners ascending.
    #[inline]
    pub(crate) fn of(&self, token: usize) -> &[Route] {
        &self.routes[self.starts[token] as usize..self.starts[token + 1] as usize]
    }
}
