//! Tokens: what a rank puts into a dispatch.

use crate::error::MoeError;
use crate::plan::Plan;
use crate::{DType, Problem};

/// The tokens of one rank, borrowed from the caller.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// Type of `x`; must be the operation's [`x_dtype`](crate::MoeConfig::x_dtype).
    pub dtype: DType,
    /// How many, 0 to the operation's capacity.
    pub count: usize,
    /// `count` rows of H elements, `stride` bytes apart.
    pub x: &'a [u8],
    /// Bytes from one row to the next, at least a row.
    pub stride: usize,
    /// `[count, S]` block scales; empty unless the type of `x` is scaled.
    pub scales: &'a [f32],
    /// `[count, K]` expert of each slot; −1 drops the slot.
    pub topk_idx: &'a [i32],
    /// `[count, K]` weights; empty unless the operation is weighted.
    pub topk_weights: &'a [f32],
}

impl<'a> Tokens<'a> {
    /// The tokens of one rank of a problem.
    pub fn of(problem: &'a Problem, rank: usize) -> Self {
        let input = &problem.ranks[rank];
        Self {
            dtype: problem.x_dtype(),
            count: input.tokens,
            x: &input.x,
            stride: problem.x_dtype().row_bytes(problem.hidden),
            scales: &input.scales,
            topk_idx: &input.topk_idx,
            topk_weights: &input.topk_weights,
        }
    }

    /// Checks everything against the plan; touches only the routing.
    pub(crate) fn check(&self, plan: &Plan) -> Result<(), MoeError> {
        let config = plan.config();
        let bad = |argument, given: String, allowed: String| {
            Err(MoeError::Argument { operation: "dispatch", argument, given, allowed })
        };
        let dtype = config.x_dtype();
        if self.dtype != dtype {
            return bad("dtype is", self.dtype.to_string(), format!("the operation was made for {dtype}"));
        }
        if self.count > config.capacity {
            let allowed = format!("the capacity is {}; make the operation larger or send less", config.capacity);
            return bad("token count is", self.count.to_string(), allowed);
        }
        let row = dtype.row_bytes(config.hidden);
        if self.stride < row {
            return bad("stride is", format!("{} bytes", self.stride), format!("a row has {row}"));
        }
        let needed = match self.count {
            0 => Some(0),
            count => self.stride.checked_mul(count - 1).and_then(|bytes| bytes.checked_add(row)),
        };
        if needed.is_none_or(|needed| self.x.len() < needed) {
            let allowed = format!("{} rows, {} bytes apart, of {row} bytes are needed", self.count, self.stride);
            return bad("x has", format!("{} bytes", self.x.len()), allowed);
        }
        let slots = self.count * config.topk;
        let lengths = [
            ("scales has", self.scales.len(), self.count * config.x_scales()),
            ("topk_idx has", self.topk_idx.len(), slots),
            ("topk_weights has", self.topk_weights.len(), if config.weighted { slots } else { 0 }),
        ];
        for (argument, given, needed) in lengths {
            if given != needed {
                let allowed = format!("{needed} are needed for {} tokens", self.count);
                return bad(argument, format!("{given} elements"), allowed);
            }
        }
        let experts = config.expert_rank.len() as i32;
        match self.topk_idx.iter().position(|&expert| expert < -1 || expert >= experts) {
            None => Ok(()),
            Some(at) => {
                let (token, slot) = (at / config.topk, at % config.topk);
                let given = format!("{} at token {token}, slot {slot}", self.topk_idx[at]);
                bad("topk_idx is", given, format!("experts are 0 to {}, -1 drops the slot", experts - 1))
            }
        }
    }
}
