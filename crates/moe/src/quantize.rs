//! Quantised tokens: the rows of a dispatch that takes bf16 and sends FP8.
//!
//! All rows are quantised before the first is sent, each once, however many ranks it goes to; from there on a dispatch is
//! that of any FP8 rows. The room is allocated once, for the capacity.

use crate::arithmetic::Kernels;
use crate::plan::Plan;
use crate::tokens::Tokens;

/// Room for the quantised rows and scales of one dispatch.
#[derive(Debug, Default)]
pub(crate) struct Quantized {
    rows: Vec<u8>,
    scales: Vec<f32>,
}

impl Quantized {
    /// Room for the capacity of the plan; none if it does not quantise.
    pub(crate) fn new(plan: &Plan) -> Self {
        let config = plan.config();
        if !config.quantize {
            return Self::default();
        }
        let row = config.dtype.row_bytes(config.hidden);
        Self { rows: vec![0; config.capacity * row], scales: vec![0.0; config.capacity * config.scales] }
    }

    /// The tokens, which were checked, with their rows quantised.
    pub(crate) fn fill<'a>(&'a mut self, plan: &Plan, kernels: &Kernels, tokens: &Tokens<'a>) -> Tokens<'a> {
        let config = plan.config();
        let stride = config.dtype.row_bytes(config.hidden);
        let (rows, scales) = (self.rows.chunks_exact_mut(stride), self.scales.chunks_exact_mut(config.scales));
        for (token, (row, scales)) in rows.zip(scales).take(tokens.count).enumerate() {
            let x = tokens.x[token * tokens.stride..].as_ptr();
            // SAFETY: the tokens were checked, so their rows have `hidden` elements; `row` has the bytes of one, and is
            // borrowed mutably.
            unsafe { kernels.quantize_row(row.as_mut_ptr(), scales, config.dtype, x, config.hidden) }
        }
        Tokens {
            dtype: config.dtype,
            x: &self.rows,
            stride,
            scales: &self.scales[..tokens.count * config.scales],
            ..*tokens
        }
    }
}
