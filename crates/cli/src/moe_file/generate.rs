//! A made-up [`Problem`], for when there is no file.

use std::fmt;

use campanile::moe::routing::{Router, Routing};
use campanile::moe::{DType, Problem, RankInput, number};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// What to make up. The same options make the same problem on every machine.
///
/// All sizes but `tokens` are at least 1.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// Number of ranks.
    pub ranks: usize,
    /// Tokens of each rank.
    pub tokens: usize,
    /// Elements of a row.
    pub hidden: usize,
    /// Slots of a token.
    pub topk: usize,
    /// Number of experts, spread over the ranks in blocks.
    pub experts: usize,
    /// Type of the rows.
    pub dtype: DType,
    /// Whether slots have weights and experts scales.
    pub weighted: bool,
    /// Who goes where.
    pub routing: Routing,
    /// Another seed, another problem of the same shape.
    pub seed: u64,
}

impl Default for GenerateOptions {
    /// The shape of a DeepSeek-V3 layer in decoding.
    fn default() -> Self {
        Self {
            ranks: 4,
            tokens: 128,
            hidden: 7168,
            topk: 8,
            experts: 256,
            dtype: DType::BF16,
            weighted: true,
            routing: Routing::Uniform,
            seed: 0,
        }
    }
}

impl fmt::Display for GenerateOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} routing, seed {}", self.routing, self.seed)
    }
}

/// Makes up a problem: elements in [−1, 1], weights that add up to 1 for each token, expert scales in [0.5, 1.5).
pub fn generate(options: &GenerateOptions) -> Problem {
    let GenerateOptions { ranks, tokens, hidden, topk, experts, dtype, weighted, routing, seed } = *options;
    let scales = dtype.default_scales(hidden);
    let expert_rank = Problem::block_map(experts, ranks);
    let router = Router::new(routing, topk, seed);
    // Streams of their own: one for what belongs to no rank, then one a rank, each 2^128 numbers from the next.
    let mut stream = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut next_stream = || {
        stream.jump();
        Uniform { source: stream.clone() }
    };
    let mut shared = next_stream();
    let expert_scale = weighted.then(|| (0..experts).map(|_| shared.next() / 2.0 + 1.0).collect());
    let ranks = (0..ranks).map(|rank| {
        let mut uniform = next_stream();
        let routed = router.route(rank, ranks, tokens, &expert_rank);
        let row_bytes = dtype.row_bytes(hidden);
        let mut x = vec![0; tokens * row_bytes];
        // Block scales bring the range of the type down to that of the elements.
        let range = if dtype.is_scaled() { dtype.largest() } else { 1.0 };
        for row in x.chunks_exact_mut(row_bytes) {
            (0..hidden).for_each(|h| number::write(dtype, row, h, uniform.next() * range));
        }
        RankInput {
            tokens,
            x,
            scales: (0..tokens * scales).map(|_| (uniform.next() / 4.0 + 0.75) / range).collect(),
            topk_idx: routed.topk_idx,
            topk_weights: if weighted { routed.topk_weights } else { Vec::new() },
        }
    });
    let ranks = ranks.collect();
    let combine_dtype = dtype.default_combine();
    let quantize = false;
    Problem { dtype, combine_dtype, hidden, topk, scales, quantize, expert_rank, expert_scale, weighted, ranks }
}

/// Numbers in [−1, 1), all multiples of 2⁻²³ there with equal probability.
struct Uniform {
    source: Xoshiro256PlusPlus,
}

impl Uniform {
    fn next(&mut self) -> f32 {
        // The upper bits are the better ones.
        (self.source.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
