//! The oracle of quantisation: what travels of a bf16 row.

use std::borrow::Cow;

use super::part;
use crate::{Problem, RankInput, number};

/// What a rank sends: its input, with the rows quantised where the problem says so.
pub(super) fn sent<'a>(problem: &Problem, input: &'a RankInput) -> Cow<'a, RankInput> {
    if !problem.quantize {
        return Cow::Borrowed(input);
    }
    let largest = problem.dtype.largest();
    let mut sent = RankInput { x: Vec::new(), scales: Vec::new(), ..input.clone() };
    for token in 0..input.tokens {
        let x = row(problem, input, token);
        let amax = amax(problem, x);
        let mut codes = vec![0; problem.dtype.row_bytes(problem.hidden)];
        for h in 0..problem.hidden {
            let inverse = largest / amax[problem.scale_of(h)];
            number::write(problem.dtype, &mut codes, h, number::read(problem.x_dtype(), x, h) * inverse);
        }
        sent.x.extend(codes);
        sent.scales.extend(amax.iter().map(|amax| amax / largest));
    }
    Cow::Owned(sent)
}

/// The row of a token as the caller gives it.
pub(super) fn row<'a>(problem: &Problem, input: &'a RankInput, token: usize) -> &'a [u8] {
    part(&input.x, token, problem.x_dtype().row_bytes(problem.hidden))
}

/// What each block of a row is scaled by: its largest magnitude that is not NaN, but at least
/// [`LEAST_AMAX`](number::LEAST_AMAX).
pub(super) fn amax(problem: &Problem, x: &[u8]) -> Vec<f32> {
    let mut amax = vec![number::LEAST_AMAX; problem.scales];
    for h in 0..problem.hidden {
        let block = &mut amax[problem.scale_of(h)];
        // The maximum of a number and NaN is the number.
        *block = block.max(number::read(problem.x_dtype(), x, h).abs());
    }
    amax
}
