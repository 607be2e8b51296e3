//! One rank's part of a whole exchange, with experts that scale: what `campanile moe` and the tests run.
//!
//! The experts of a rank multiply a token by c, the sum of weight · scale over the token's slots there
//! ([`coefficient`]), so the scalar model can say what must come out, bit for bit, in any layout.

use std::sync::Arc;

use campanile_core::{Communicator, MoeCombine, MoeMode};
use campanile_host::clock::now_ns;

use crate::arithmetic::{Kernels, Row, coefficient};
use crate::error::MoeError;
use crate::protocol::Set;
use crate::{DType, ExpertLayout, Handle, Moe, MoeConfig, Outputs, Problem, RankOutput, Received, RowMeta, Tokens};

/// In which layout the experts work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// In place, in the window.
    #[default]
    Rows,
    /// Copied, token-major.
    Compact,
    /// Copied, grouped by expert.
    ExpertMajor,
}

impl Layout {
    /// All values, in the order in which `--help` lists them.
    pub const ALL: [Self; 3] = [Self::Rows, Self::Compact, Self::ExpertMajor];

    /// The name that is printed and accepted.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Compact => "compact",
            Self::ExpertMajor => "expert-major",
        }
    }

    /// The value of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.name() == name)
    }
}

/// How an exchange is run. The result does not depend on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExchangeOptions {
    /// Layout in which the experts work.
    pub layout: Layout,
    /// Schedule of dispatch.
    pub mode: MoeMode,
    /// How results come back.
    pub combine: MoeCombine,
    /// Whether to keep what dispatch brought.
    pub keep_received: bool,
}

/// When a rank did what, in nanoseconds of the machine's monotonic clock (the same for all its processes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Start and end of dispatch.
    pub dispatch: [u64; 2],
    /// Start and end of combine.
    pub combine: [u64; 2],
}

/// What a rank has after an exchange.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exchanged {
    /// The result; `received` is empty unless it was kept.
    pub output: RankOutput,
    /// Rows that each source sent here.
    pub rows_from: Vec<usize>,
    /// How results came back: pull or push.
    pub combine: MoeCombine,
    /// When.
    pub times: Times,
}

/// The operation that a problem needs.
pub fn config(problem: &Problem, options: &ExchangeOptions) -> MoeConfig {
    let capacity = problem.ranks.iter().map(|rank| rank.tokens).max().unwrap_or(0).max(1);
    MoeConfig {
        dtype: problem.dtype,
        scales: problem.scales,
        quantize: problem.quantize,
        combine_dtype: problem.combine_dtype,
        weighted: problem.weighted,
        sets: 1,
        mode: options.mode,
        combine: options.combine,
        ..MoeConfig::new(capacity, problem.hidden, problem.topk, problem.expert_rank.clone())
    }
}

/// Runs this rank's part of `problem`, which is valid and the same on every rank. Collective.
///
/// # Errors
/// [`MoeError`] of the operation.
pub fn run(comm: &Arc<Communicator>, problem: &Problem, options: &ExchangeOptions) -> Result<Exchanged, MoeError> {
    let mut moe = Moe::new(comm, config(problem, options))?;
    let rank = comm.rank();
    let tokens = Tokens::of(problem, rank);
    let mut exchanged = Exchanged { combine: moe.combine_by(), ..Exchanged::default() };
    let out_bytes = tokens.count * problem.combine_dtype.row_bytes(problem.hidden);
    exchanged.output.out = vec![0; out_bytes];
    exchanged.output.out_weights = vec![0.0; if problem.weighted { tokens.count * problem.topk } else { 0 }];

    exchanged.times.dispatch[0] = now_ns();
    let handle = moe.dispatch(Set(0), &tokens)?;
    exchanged.times.dispatch[1] = now_ns();

    let received = moe.received(&handle)?;
    exchanged.rows_from = (0..received.sources()).map(|source| received.count(source)).collect();
    if options.keep_received {
        exchanged.output.received = keep(&received, problem);
    }
    let RankOutput { out, out_weights, .. } = &mut exchanged.output;
    let out_weights = problem.weighted.then_some(&mut out_weights[..]);
    exchanged.times.combine = with_experts(&mut moe, problem, options.layout, handle, |moe, handle, outputs| {
        let start = now_ns();
        moe.combine(handle, outputs, out, out_weights)?;
        Ok([start, now_ns()])
    })?;
    Ok(exchanged)
}

fn keep(received: &crate::ReceivedRows<'_>, problem: &Problem) -> Received {
    let mut kept = Received::default();
    for (source, row) in received.iter() {
        let meta = received.meta(source, row);
        kept.x.extend_from_slice(received.row(source, row));
        kept.scales.extend_from_slice(received.scales(source, row));
        kept.src.extend([source as i32, meta.token as i32]);
        kept.topk_idx.extend_from_slice(meta.topk_idx);
        kept.topk_weights.extend_from_slice(meta.topk_weights);
    }
    debug_assert_eq!(kept.topk_idx.len(), received.total() * problem.topk);
    kept
}

/// Runs the scaling experts of this rank on what came and gives their results to `combine`.
///
/// # Errors
/// [`MoeError`] of the operation.
pub fn with_experts<T>(
    moe: &mut Moe,
    problem: &Problem,
    layout: Layout,
    handle: Handle,
    combine: impl FnOnce(&mut Moe, Handle, Outputs<'_>) -> Result<T, MoeError>,
) -> Result<T, MoeError> {
    let experts = Experts::new(problem, moe.communicator().rank());
    let mut received = moe.received(&handle)?;
    match layout {
        Layout::Rows => {
            for source in 0..received.sources() {
                for row in 0..received.count(source) {
                    let (x, scales, meta, output) = received.expert(source, row);
                    experts.scale(x, scales, &meta, output);
                }
            }
            combine(moe, handle, Outputs::InPlace)
        }
        Layout::Compact => {
            let mut x = vec![0; received.total() * experts.row_bytes()];
            received.copy_compact(&mut x);
            let mut outputs = vec![0; received.total() * experts.output_bytes()];
            let rows = x.chunks_exact(experts.row_bytes()).zip(outputs.chunks_exact_mut(experts.output_bytes()));
            for ((source, row), (x, output)) in received.iter().zip(rows) {
                experts.scale(x, received.scales(source, row), &received.meta(source, row), output);
            }
            combine(moe, handle, Outputs::Compact(&outputs))
        }
        Layout::ExpertMajor => {
            let layout = ExpertLayout::new(&received, 16);
            let mut x = vec![0; layout.rows * experts.row_bytes()];
            let mut places = vec![None; layout.rows];
            received.copy_expert_major(&layout, &mut x, |place, source, row, slot| {
                places[place] = Some((source, row, slot));
            });
            let mut outputs = vec![0; layout.rows * experts.output_bytes()];
            let rows = x.chunks_exact(experts.row_bytes()).zip(outputs.chunks_exact_mut(experts.output_bytes()));
            for (place, (x, output)) in places.iter().zip(rows) {
                let Some((source, row, slot)) = *place else { continue };
                let meta = received.meta(source, row);
                // The factor of a token belongs to all its slots here together. Its first slot applies it; the others
                // give −0, which changes nothing that it is added to.
                if meta.topk_idx.iter().position(|expert| *expert >= 0) == Some(slot) {
                    experts.scale(x, received.scales(source, row), &meta, output);
                } else {
                    fill_negative_zero(problem.combine_dtype, output);
                }
            }
            combine(moe, handle, Outputs::ExpertMajor { data: &outputs, layout: &layout })
        }
    }
}

/// The experts of one rank.
struct Experts<'a> {
    problem: &'a Problem,
    /// Factor of each local expert.
    scale: Option<Vec<f32>>,
    kernels: &'static Kernels,
}

impl<'a> Experts<'a> {
    fn new(problem: &'a Problem, rank: usize) -> Self {
        let local = |scale: &Vec<f32>| {
            let owned = problem.expert_rank.iter().zip(scale).filter(|(owner, _)| **owner as usize == rank);
            owned.map(|(_, scale)| *scale).collect()
        };
        Self { problem, scale: problem.expert_scale.as_ref().map(local), kernels: Kernels::get() }
    }

    fn row_bytes(&self) -> usize {
        self.problem.dtype.row_bytes(self.problem.hidden)
    }

    fn output_bytes(&self) -> usize {
        self.problem.combine_dtype.row_bytes(self.problem.hidden)
    }

    fn scale(&self, x: &[u8], scales: &[f32], meta: &RowMeta<'_>, output: &mut [u8]) {
        assert!(x.len() == self.row_bytes() && output.len() == self.output_bytes(), "rows of the problem's shape");
        let c = coefficient(meta.topk_idx, meta.topk_weights, self.scale.as_deref());
        let row = Row { dtype: self.problem.dtype, data: x.as_ptr(), scales };
        // SAFETY: the lengths were just checked; `output` is borrowed mutably, so the two are disjoint and nobody else
        // touches them.
        unsafe {
            self.kernels.scale_row(output.as_mut_ptr(), self.problem.combine_dtype, row, self.problem.hidden, c);
        }
    }
}

fn fill_negative_zero(dtype: DType, output: &mut [u8]) {
    // Little-endian: the sign is in the last byte of an element.
    let bytes = dtype.bytes();
    output.fill(0);
    output.iter_mut().skip(bytes - 1).step_by(bytes).for_each(|byte| *byte = 0x80);
}
