//! Two micro-batches in flight: split send and receive over two buffer sets.
//!
//! While the rows of one batch are under way, the experts work on the other. Every rank issues the same phases in the
//! same order; that is all that is asked of the caller, and a call out of order is an error on its own rank, at once.
//!
//! `cargo run -p campanile-examples --example 06_moe_overlap`

use std::sync::Arc;

use campanile::{
    CommOptions, Communicator, DType, Handle, Moe, MoeConfig, MoeError, Outputs, Problem, Set, Tokens, threads,
};

const RANKS: usize = 4;
const EXPERTS: usize = 4;
const TOKENS: usize = 32;
const HIDDEN: usize = 64;
const TOPK: usize = 2;
const BATCHES: usize = 6;
const FIRST: Set = Set(0);
const SECOND: Set = Set(1);

fn main() -> Result<(), MoeError> {
    let ranks = threads(RANKS, &CommOptions::default(), |comm| pipeline(&comm));
    let tokens: Vec<_> = ranks.into_iter().collect::<Result<_, _>>()?;
    assert_eq!(tokens, [BATCHES * TOKENS; RANKS]);
    println!("{BATCHES} batches of {TOKENS} tokens on each of {RANKS} ranks, two in flight");
    Ok(())
}

fn pipeline(comm: &Arc<Communicator>) -> Result<usize, MoeError> {
    let config = MoeConfig {
        dtype: DType::F32,
        combine_dtype: DType::F32,
        weighted: false,
        sets: 2,
        ..MoeConfig::new(TOKENS, HIDDEN, TOPK, Problem::block_map(EXPERTS, RANKS))
    };
    let mut moe = Moe::new(comm, config)?;
    let batch = |number: usize| Batch::new(comm.rank(), number);
    let mut done = 0;

    for number in (0..BATCHES).step_by(2) {
        let (first, second) = (batch(number), batch(number + 1));

        let sent_first = moe.dispatch_send(FIRST, &first.tokens())?;
        let sent_second = moe.dispatch_send(SECOND, &second.tokens())?;

        // A set that is in use takes no other round. Nothing was sent, and nothing is broken by asking.
        let refused = moe.dispatch_send(FIRST, &first.tokens()).expect_err("the set has an open round");
        assert!(matches!(refused, MoeError::Misuse(_)), "{refused}");

        let handle = moe.dispatch_receive(sent_first)?;
        experts(&mut moe, &handle)?; // the second batch travels
        let results_first = moe.combine_send(handle, Outputs::InPlace)?;

        let handle = moe.dispatch_receive(sent_second)?;
        experts(&mut moe, &handle)?; // the results of the first travel
        let results_second = moe.combine_send(handle, Outputs::InPlace)?;

        let mut out = vec![0; TOKENS * HIDDEN * 4];
        moe.combine_receive(results_first, &mut out, None)?;
        first.check(&out);
        moe.combine_receive(results_second, &mut out, None)?;
        second.check(&out);
        done += 2 * TOKENS;
    }
    Ok(done)
}

/// Every expert doubles what it gets. A row stands for all of its token's slots on this rank.
fn experts(moe: &mut Moe, handle: &Handle) -> Result<(), MoeError> {
    let mut received = moe.received(handle)?;
    for source in 0..received.sources() {
        for row in 0..received.count(source) {
            let (x, _, meta, output) = received.expert(source, row);
            let slots = meta.topk_idx.iter().filter(|expert| **expert >= 0).count();
            for (x, y) in x.as_chunks::<4>().0.iter().zip(output.as_chunks_mut::<4>().0) {
                *y = (2.0 * slots as f32 * f32::from_le_bytes(*x)).to_le_bytes();
            }
        }
    }
    Ok(())
}

/// Tokens of one rank in one batch.
struct Batch {
    x: Vec<f32>,
    bytes: Vec<u8>,
    topk_idx: Vec<i32>,
}

impl Batch {
    fn new(rank: usize, number: usize) -> Self {
        let x: Vec<f32> = (0..TOKENS * HIDDEN).map(|i| (i + 100 * number + 10_000 * rank) as f32).collect();
        let expert = |token: usize| [(token + number + rank) % EXPERTS, (token + 2) % EXPERTS].map(|e| e as i32);
        Self {
            bytes: x.iter().flat_map(|x| x.to_le_bytes()).collect(),
            x,
            topk_idx: (0..TOKENS).flat_map(expert).collect(),
        }
    }

    fn tokens(&self) -> Tokens<'_> {
        Tokens {
            dtype: DType::F32,
            count: TOKENS,
            x: &self.bytes,
            stride: HIDDEN * 4,
            scales: &[],
            topk_idx: &self.topk_idx,
            topk_weights: &[],
        }
    }

    /// Both slots of a token double it, also where they name the same expert.
    fn check(&self, out: &[u8]) {
        let out = out.as_chunks::<4>().0.iter().map(|y| f32::from_le_bytes(*y));
        assert!(out.eq(self.x.iter().map(|x| 4.0 * x)));
    }
}
