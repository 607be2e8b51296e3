//! Outputs: where the experts left their results.

use crate::error::MoeError;
use crate::layout::ExpertLayout;
use crate::moe::Moe;
use crate::protocol::Round;

/// The results of one round, one a received row, of the combine type.
#[derive(Clone, Copy, Debug)]
pub enum Outputs<'a> {
    /// In the window, written through [`ReceivedRows::output_mut`](crate::ReceivedRows::output_mut): nothing is copied.
    InPlace,
    /// `[N, H]` without padding, ordered by (source rank, source token); copied in.
    Compact(&'a [u8]),
    /// `[layout.rows, H]` without padding, grouped by expert. A token's rows here are summed in slot order, in f32,
    /// rounded once.
    ExpertMajor {
        /// The results; rows that pad a group are not looked at.
        data: &'a [u8],
        /// The layout that the rows were copied out by.
        layout: &'a ExpertLayout,
    },
}

impl Outputs<'_> {
    /// Checks the sizes against what came.
    pub(crate) fn check(&self, moe: &Moe, round: Round) -> Result<(), MoeError> {
        let config = moe.plan.config();
        let row_bytes = config.combine_dtype.row_bytes(config.hidden);
        let bad = |given: usize, rows: usize| {
            Err(MoeError::Argument {
                operation: "combine",
                argument: "bytes of outputs are",
                given: given.to_string(),
                allowed: format!("{} are needed for {rows} rows of {row_bytes}", rows * row_bytes),
            })
        };
        match self {
            Self::InPlace => Ok(()),
            Self::Compact(data) => {
                let rows = moe.received[round.set.index()].iter().map(|&rows| rows as usize).sum::<usize>();
                if data.len() == rows * row_bytes { Ok(()) } else { bad(data.len(), rows) }
            }
            Self::ExpertMajor { data, layout } => {
                if layout.starts.len() != moe.plan.local_experts() || layout.counts.len() != layout.starts.len() {
                    return Err(MoeError::Argument {
                        operation: "combine",
                        argument: "layout has",
                        given: format!("{} experts", layout.starts.len()),
                        allowed: format!("this rank has {}", moe.plan.local_experts()),
                    });
                }
                // Places are taken from the layout, so it must be that of these rows.
                let mut next = layout.starts.iter().zip(&layout.counts).map(|(start, count)| (*start, start + count));
                let inside = next.all(|(start, end)| start <= end && end <= layout.rows);
                if !inside || !moe.has_expert_counts(round, &layout.counts) {
                    return Err(MoeError::Argument {
                        operation: "combine",
                        argument: "layout is",
                        given: format!("of other rows: {} for {} experts", layout.rows, layout.counts.len()),
                        allowed: "give the one that ExpertLayout::new made of this round".to_owned(),
                    });
                }
                if data.len() == layout.rows * row_bytes { Ok(()) } else { bad(data.len(), layout.rows) }
            }
        }
    }
}
