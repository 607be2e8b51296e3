//! Mixture of experts over four ranks: dispatch, experts in place, combine.
//!
//! Each rank owns two of eight experts and holds a few tokens. Dispatch brings every token to the ranks that own its
//! experts, once per rank. The experts read the rows where they arrived and leave their results beside them; nothing is
//! copied. Combine sums the results of a token at the rank that sent it.
//!
//! `cargo run -p campanile-examples --example 04_moe`

use campanile::moe::RowMeta;
use campanile::{CommOptions, DType, Moe, MoeConfig, MoeError, Outputs, Problem, Set, Tokens, threads};

const RANKS: usize = 4;
const EXPERTS: usize = 8;
const TOKENS: usize = 6;
const HIDDEN: usize = 16;
const TOPK: usize = 3;
const ROUNDS: usize = 3;

fn main() -> Result<(), MoeError> {
    let ranks = threads(RANKS, &CommOptions::default(), |comm| -> Result<usize, MoeError> {
        // Where each expert lives: two in a row on each rank. Any map will do.
        let expert_rank = Problem::block_map(EXPERTS, RANKS);
        let config = MoeConfig {
            dtype: DType::F32,
            combine_dtype: DType::F32,
            ..MoeConfig::new(TOKENS, HIDDEN, TOPK, expert_rank)
        };
        // Made once, by all ranks together: it allocates the window. Nothing below allocates in the operation.
        let mut moe = Moe::new(&comm, config)?;

        let (x, topk_idx, topk_weights) = tokens(comm.rank());
        let mut out = vec![0; TOKENS * HIDDEN * 4];
        let mut rows = 0;
        for _ in 0..ROUNDS {
            let tokens = Tokens {
                dtype: DType::F32,
                count: TOKENS,
                x: &x,
                stride: HIDDEN * 4,
                scales: &[],
                topk_idx: &topk_idx,
                topk_weights: &topk_weights,
            };
            // No barrier anywhere: the words of the protocol say when a buffer is free.
            let handle = moe.dispatch(Set(0), &tokens)?;

            let mut received = moe.received(&handle)?;
            rows = received.total();
            for source in 0..received.sources() {
                for row in 0..received.count(source) {
                    let (x, _scales, meta, output) = received.expert(source, row);
                    let factor = local_factor(comm.rank(), &meta);
                    for (x, y) in x.as_chunks::<4>().0.iter().zip(output.as_chunks_mut::<4>().0) {
                        *y = (factor * f32::from_le_bytes(*x)).to_le_bytes();
                    }
                }
            }

            moe.combine(handle, Outputs::InPlace, &mut out, None)?;
        }

        let out: Vec<f32> = out.as_chunks::<4>().0.iter().map(|y| f32::from_le_bytes(*y)).collect();
        assert_eq!(out, expected(comm.rank()));
        Ok(rows)
    });
    let rows: Vec<_> = ranks.into_iter().collect::<Result<_, _>>()?;
    println!("rows that came to each rank: {rows:?}; {} tokens with {TOPK} experts each went out", RANKS * TOKENS);
    println!("every result is the weighted sum of what the token's experts made of it");
    Ok(())
}

/// What expert `expert` does to a token: it multiplies it.
fn factor(expert: usize) -> f32 {
    expert as f32 + 1.0
}

/// What this rank's experts do to a row together. A row stands for all slots of its token that live here, and its result
/// is their sum; the weights are applied here.
fn local_factor(rank: usize, meta: &RowMeta<'_>) -> f32 {
    let first = rank * EXPERTS / RANKS;
    let slots = meta.topk_idx.iter().zip(meta.topk_weights);
    // Experts are numbered from 0 on each rank; slots that live elsewhere are −1.
    slots.filter(|(expert, _)| **expert >= 0).map(|(&expert, weight)| weight * factor(first + expert as usize)).sum()
}

/// Tokens of a rank, as bytes, with their experts and weights; small numbers, so that every sum is exact.
fn tokens(rank: usize) -> (Vec<u8>, Vec<i32>, Vec<f32>) {
    let x = (0..TOKENS * HIDDEN).flat_map(|element| (element as f32 + 1000.0 * rank as f32).to_le_bytes()).collect();
    // Two neighbours, which often live on one rank, and one on the other side. The last token uses two experts only.
    let expert = |token: usize| {
        let last = if token == TOKENS - 1 { -1 } else { ((rank + token + 4) % EXPERTS) as i32 };
        [((rank + token) % EXPERTS) as i32, ((rank + token + 1) % EXPERTS) as i32, last]
    };
    (x, (0..TOKENS).flat_map(expert).collect(), [0.5, 0.25, 0.125].repeat(TOKENS))
}

/// What must come out, without any exchange.
fn expected(rank: usize) -> Vec<f32> {
    let (x, topk_idx, topk_weights) = tokens(rank);
    let x = x.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x));
    let sum = |token: usize| -> f32 {
        let slots = token * TOPK..(token + 1) * TOPK;
        let valid = slots.filter(|slot| topk_idx[*slot] >= 0);
        valid.map(|slot| topk_weights[slot] * factor(topk_idx[slot] as usize)).sum()
    };
    x.enumerate().map(|(element, x)| sum(element / HIDDEN) * x).collect()
}
