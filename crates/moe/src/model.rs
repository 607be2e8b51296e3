//! The oracle: what every rank must get out, in plain scalar f32.
//!
//! [`solve`] is written to be read beside the definition, element by element, and shares nothing with the engine but
//! the scalar conversions of [`number`]. [`compare()`] holds an engine's solution against it, bit for bit; [`bound()`]
//! holds it against the same sums in f64, within an error bound that needs no trust in either.
//!
//! The definition. On each destination rank that owns any of the token's experts:
//! c = Σ over the token's slots there, in slot order, of (weight · expert_scale), from +0 (without weights c = 1;
//! without expert_scale that factor is left out); y = c · x (for scaled types, x · scale first), rounded once to the
//! combine type. At the source: the y of the lowest destination rank, + the others ascending, rounded once. All of it
//! in f32, each operation rounded to nearest even. No valid slot: +0. One destination: its y, untouched.
//!
//! Where dispatch quantises, x is that of the quantised row. For each block, in f32: amax = the largest |x| that is not
//! NaN, but at least [`LEAST_AMAX`](number::LEAST_AMAX); scale = amax / largest; code = x · (largest / amax), rounded
//! to the type.

mod bound;
mod compare;
mod quantize;

pub use bound::{Bound, bound};
pub use compare::{Mismatch, Tensor, Verified, compare};

use std::collections::BTreeMap;

use crate::{Problem, RankInput, RankOutput, Received, Solution, number};

/// What the ranks of `problem` must get out.
///
/// # Panics
/// May panic when the problem is not valid; see [`Problem::validate`].
pub fn solve(problem: &Problem) -> Solution {
    let numbers = local_numbers(problem);
    let mut ranks = vec![RankOutput::default(); problem.ranks.len()];
    for (source, input) in problem.ranks.iter().enumerate() {
        let sent = quantize::sent(problem, input);
        for token in 0..sent.tokens {
            let token = Token::new(problem, &sent, token);
            let owners = token.slots_by_owner();
            for (&owner, slots) in &owners {
                receive(&mut ranks[owner].received, source, &token, slots, &numbers);
            }
            let output = &mut ranks[source];
            output.out.extend(token.result(&owners));
            output.out_weights.extend(token.weights.iter().zip(token.topk_idx).map(|(&weight, &expert)| {
                // Selected, not added: every bit of a valid slot's weight comes back.
                if expert >= 0 { weight } else { 0.0 }
            }));
        }
    }
    Solution { ranks }
}

/// Number of each expert among the experts of its rank, ascending.
fn local_numbers(problem: &Problem) -> Vec<i32> {
    let mut next = vec![0; problem.ranks.len()];
    let mut numbers = Vec::with_capacity(problem.experts());
    for &rank in &problem.expert_rank {
        numbers.push(next[rank as usize]);
        next[rank as usize] += 1;
    }
    numbers
}

/// One token, with its part of each tensor that travels.
struct Token<'a> {
    problem: &'a Problem,
    index: usize,
    x: &'a [u8],
    scales: &'a [f32],
    topk_idx: &'a [i32],
    weights: &'a [f32],
}

impl<'a> Token<'a> {
    fn new(problem: &'a Problem, sent: &'a RankInput, index: usize) -> Self {
        Self {
            problem,
            index,
            x: part(&sent.x, index, problem.dtype.row_bytes(problem.hidden)),
            scales: part(&sent.scales, index, problem.scales),
            topk_idx: part(&sent.topk_idx, index, problem.topk),
            weights: part(&sent.topk_weights, index, if problem.weighted { problem.topk } else { 0 }),
        }
    }

    /// The slots of each rank that owns any of the token's experts; both ascending.
    fn slots_by_owner(&self) -> BTreeMap<usize, Vec<usize>> {
        let mut owners = BTreeMap::<_, Vec<_>>::new();
        for (slot, &expert) in self.topk_idx.iter().enumerate() {
            if expert >= 0 {
                owners.entry(self.problem.expert_rank[expert as usize] as usize).or_default().push(slot);
            }
        }
        owners
    }

    /// Element `h` as the experts see it.
    fn x(&self, h: usize) -> f32 {
        let x = number::read(self.problem.dtype, self.x, h);
        if self.problem.dtype.is_scaled() { x * self.scales[self.problem.scale_of(h)] } else { x }
    }

    /// The factor c of the rank that owns these slots.
    fn factor(&self, slots: &[usize]) -> f32 {
        if !self.problem.weighted {
            return 1.0;
        }
        let mut c = 0.0;
        for &slot in slots {
            let mut product = self.weights[slot];
            if let Some(expert_scale) = &self.problem.expert_scale {
                product *= expert_scale[self.topk_idx[slot] as usize];
            }
            c += product;
        }
        c
    }

    /// The row that comes back, of the combine type.
    fn result(&self, owners: &BTreeMap<usize, Vec<usize>>) -> Vec<u8> {
        let (dtype, hidden) = (self.problem.combine_dtype, self.problem.hidden);
        let factors: Vec<f32> = owners.values().map(|slots| self.factor(slots)).collect();
        let mut out = vec![0; dtype.row_bytes(hidden)];
        let mut y = out.clone();
        for h in 0..hidden {
            let x = self.x(h);
            let mut sum = None;
            for c in &factors {
                number::write(dtype, &mut y, h, c * x);
                let y = number::read(dtype, &y, h);
                sum = Some(sum.map_or(y, |sum: f32| sum + y));
            }
            // Writing a single y again changes nothing: it is a number of the type, or the canonical NaN.
            number::write(dtype, &mut out, h, sum.unwrap_or(0.0));
        }
        out
    }
}

/// Part `index` of a tensor whose parts have `length` elements.
fn part<T>(tensor: &[T], index: usize, length: usize) -> &[T] {
    &tensor[index * length..(index + 1) * length]
}

/// Adds a token to what a rank received: its row as it is, its routing and weights reduced to this rank's `slots`.
fn receive(received: &mut Received, source: usize, token: &Token<'_>, slots: &[usize], numbers: &[i32]) {
    received.x.extend(token.x);
    received.scales.extend(token.scales);
    received.src.extend([source as i32, token.index as i32]);
    let here = |slot: usize| slots.contains(&slot);
    received.topk_idx.extend(
        (0..token.topk_idx.len()).map(|slot| if here(slot) { numbers[token.topk_idx[slot] as usize] } else { -1 }),
    );
    received
        .topk_weights
        .extend((0..token.weights.len()).map(|slot| if here(slot) { token.weights[slot] } else { 0.0 }));
}
