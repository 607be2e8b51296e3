//! The three layouts in which experts can work: rows in place, compact, expert-major. The results are the same bits.
//!
//! *In place* costs nothing. *Compact* (`[N, H]`, ordered by source rank and token) is one matrix for a kernel that takes
//! all tokens at once. *Expert-major* puts the tokens of each expert together, padded to what its matrix product likes; a
//! token stands there once for each of its experts on this rank.
//!
//! `cargo run -p campanile-examples --example 05_moe_layouts`

use std::sync::Arc;

use campanile::{
    CommOptions, Communicator, DType, ExpertLayout, Moe, MoeConfig, MoeError, Outputs, Problem, Set, Tokens, threads,
};

const RANKS: usize = 3;
const EXPERTS: usize = 6;
const TOKENS: usize = 10;
const HIDDEN: usize = 24;
const TOPK: usize = 4;
const ROW: usize = HIDDEN * 4;
/// Rows of each expert are padded to a multiple of this.
const ALIGNMENT: usize = 8;

/// What a rank gets out: by each layout.
type Results = [Vec<u8>; 3];

fn main() -> Result<(), MoeError> {
    let ranks = threads(RANKS, &CommOptions::default(), |comm| layouts(&comm));
    for (rank, results) in ranks.into_iter().enumerate() {
        let [in_place, compact, expert_major] = results?;
        assert!(in_place.iter().any(|byte| *byte != 0));
        assert_eq!(in_place, compact);
        assert_eq!(in_place, expert_major);
        println!("rank {rank}: {} bytes, equal by all three layouts", in_place.len());
    }
    Ok(())
}

fn layouts(comm: &Arc<Communicator>) -> Result<Results, MoeError> {
    let config = MoeConfig {
        dtype: DType::F32,
        combine_dtype: DType::F32,
        ..MoeConfig::new(TOKENS, HIDDEN, TOPK, Problem::block_map(EXPERTS, RANKS))
    };
    let mut moe = Moe::new(comm, config)?;
    let rank = comm.rank();
    let x: Vec<u8> = (0..TOKENS * HIDDEN).flat_map(|i| (i as f32 - 7.0 * rank as f32).to_le_bytes()).collect();
    // Four distinct experts of six on three ranks: every token has two on some rank.
    let topk_idx: Vec<i32> =
        (0..TOKENS).flat_map(|token| [0, 1, 3, 4].map(|step| ((token + rank + step) % EXPERTS) as i32)).collect();
    let topk_weights = [0.5, 0.25, 0.125, 0.125].repeat(TOKENS);
    let tokens = Tokens {
        dtype: DType::F32,
        count: TOKENS,
        x: &x,
        stride: ROW,
        scales: &[],
        topk_idx: &topk_idx,
        topk_weights: &topk_weights,
    };
    let factor = |local: i32| (rank * EXPERTS / RANKS) as f32 + local as f32 + 1.0;
    let mut results = Results::default();
    results.iter_mut().for_each(|out| out.resize(TOKENS * ROW, 0));
    let [in_place, compact, expert_major] = &mut results;

    // In place: the result of a row is the sum over its token's slots on this rank.
    let handle = moe.dispatch(Set(0), &tokens)?;
    let mut received = moe.received(&handle)?;
    for source in 0..received.sources() {
        for row in 0..received.count(source) {
            let (x, _, meta, output) = received.expert(source, row);
            let slots = meta.topk_idx.iter().zip(meta.topk_weights).filter(|(expert, _)| **expert >= 0);
            scale(slots.map(|(expert, weight)| weight * factor(*expert)).sum(), x, output);
        }
    }
    moe.combine(handle, Outputs::InPlace, in_place, None)?;

    // Compact: copied out and in; row n is the n-th of `received.iter()`.
    let handle = moe.dispatch(Set(0), &tokens)?;
    let received = moe.received(&handle)?;
    let mut rows = vec![0; received.total() * ROW];
    received.copy_compact(&mut rows);
    let mut outputs = vec![0; rows.len()];
    for (n, (source, row)) in received.iter().enumerate() {
        let meta = received.meta(source, row);
        let slots = meta.topk_idx.iter().zip(meta.topk_weights).filter(|(expert, _)| **expert >= 0);
        let of = n * ROW..(n + 1) * ROW;
        scale(slots.map(|(expert, weight)| weight * factor(*expert)).sum(), &rows[of.clone()], &mut outputs[of]);
    }
    moe.combine(handle, Outputs::Compact(&outputs), compact, None)?;

    // Expert-major: one run of rows for each expert. A slot is a row here, and combine sums those of a token.
    let handle = moe.dispatch(Set(0), &tokens)?;
    let received = moe.received(&handle)?;
    let layout = ExpertLayout::new(&received, ALIGNMENT);
    let mut rows = vec![0; layout.rows * ROW];
    let mut weights = vec![0.0; layout.rows];
    received.copy_expert_major(&layout, &mut rows, |place, source, row, slot| {
        weights[place] = received.meta(source, row).topk_weights[slot];
    });
    let mut outputs = vec![0; rows.len()];
    for (expert, (&start, &count)) in layout.starts.iter().zip(&layout.counts).enumerate() {
        assert_eq!(start % ALIGNMENT, 0);
        // A real expert is one matrix product over this run of rows.
        let run = start * ROW..(start + count) * ROW;
        let places = rows[run.clone()].chunks_exact(ROW).zip(outputs[run].chunks_exact_mut(ROW));
        for ((x, y), weight) in places.zip(&weights[start..start + count]) {
            scale(weight * factor(expert as i32), x, y);
        }
    }
    moe.combine(handle, Outputs::ExpertMajor { data: &outputs, layout: &layout }, expert_major, None)?;
    Ok(results)
}

/// An expert: every element times `factor`.
fn scale(factor: f32, x: &[u8], y: &mut [u8]) {
    for (x, y) in x.as_chunks::<4>().0.iter().zip(y.as_chunks_mut::<4>().0) {
        *y = (factor * f32::from_le_bytes(*x)).to_le_bytes();
    }
}
