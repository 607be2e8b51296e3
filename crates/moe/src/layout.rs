//! Layouts: the received rows in another order, copied.
//!
//! *Rows* are used in place and need nothing of this. *Compact* is token-major: all rows without gaps, ordered by (source
//! rank, source token). *Expert-major* groups them by local expert, each group padded to a multiple of rows that the
//! expert's GEMM likes; a token stands once for each of its slots here, ordered by (source, source token, slot).

use crate::moe::Moe;
use crate::protocol::Round;
use crate::received_rows::ReceivedRows;

/// Where the groups of an expert-major layout lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpertLayout {
    /// Rows of each local expert, without padding.
    pub counts: Vec<usize>,
    /// First row of each local expert.
    pub starts: Vec<usize>,
    /// Rows in all, with padding.
    pub rows: usize,
}

impl ExpertLayout {
    /// The layout of what came, each group starting at a multiple of `alignment` rows (at least 1).
    ///
    /// # Panics
    /// If `alignment` is 0.
    pub fn new(received: &ReceivedRows<'_>, alignment: usize) -> Self {
        assert!(alignment > 0, "groups start at a multiple of at least 1 row");
        let mut layout = Self { counts: vec![0; received.moe().plan.local_experts()], ..Self::default() };
        received.expert_counts(&mut layout.counts);
        for &count in &layout.counts {
            layout.starts.push(layout.rows);
            layout.rows += count.next_multiple_of(alignment);
        }
        layout
    }
}

impl ReceivedRows<'_> {
    /// Copies the rows into the compact layout: `[N, H]` without padding.
    ///
    /// # Panics
    /// If `x` does not have the bytes of N rows.
    pub fn copy_compact(&self, x: &mut [u8]) {
        let row_bytes = self.row_bytes();
        assert_eq!(x.len(), self.total() * row_bytes, "x has the bytes of all rows");
        for ((source, row), x) in self.iter().zip(x.chunks_exact_mut(row_bytes)) {
            x.copy_from_slice(self.row(source, row));
        }
    }

    /// Copies the rows into the expert-major layout: `[layout.rows, H]` without padding between rows; rows that pad a
    /// group are zeroed. `each` is told the place of every row: (place, source, row, slot).
    ///
    /// # Panics
    /// If `x` does not have the bytes of the layout's rows.
    pub fn copy_expert_major(
        &self,
        layout: &ExpertLayout,
        x: &mut [u8],
        mut each: impl FnMut(usize, usize, usize, usize),
    ) {
        let row_bytes = self.row_bytes();
        assert_eq!(x.len(), layout.rows * row_bytes, "x has the bytes of the layout's rows");
        let mut cursors = layout.starts.clone();
        for (source, row) in self.iter() {
            for (slot, &expert) in self.meta(source, row).topk_idx.iter().enumerate() {
                if expert >= 0 {
                    let place = cursors[expert as usize];
                    cursors[expert as usize] += 1;
                    x[place * row_bytes..][..row_bytes].copy_from_slice(self.row(source, row));
                    each(place, source, row, slot);
                }
            }
        }
        for (expert, &filled) in cursors.iter().enumerate() {
            let end = layout.starts.get(expert + 1).copied().unwrap_or(layout.rows);
            x[filled * row_bytes..end * row_bytes].fill(0);
        }
    }

    fn row_bytes(&self) -> usize {
        let config = self.moe().plan.config();
        config.dtype.row_bytes(config.hidden)
    }
}

impl Moe {
    /// Whether so many rows came for each local expert.
    pub(crate) fn has_expert_counts(&self, round: Round, counts: &[usize]) -> bool {
        let mut left = counts.to_vec();
        for source in 0..self.plan.ranks {
            for row in 0..self.received[round.set.index()][source] as usize {
                // SAFETY: a row that came in the open round.
                let meta = unsafe { self.meta(round, source, row) };
                for &expert in meta.topk_idx.iter().filter(|expert| **expert >= 0) {
                    let Some(fewer) = left[expert as usize].checked_sub(1) else { return false };
                    left[expert as usize] = fewer;
                }
            }
        }
        left.iter().all(|&left| left == 0)
    }

    /// Sums the expert-major rows of each received row in slot order and gives the sum to `each`: (source, row, rows).
    pub(crate) fn for_each_expert_sum(
        &mut self,
        round: Round,
        layout: &ExpertLayout,
        data: &[u8],
        mut each: impl FnMut(&Self, usize, usize, &[*const u8]),
    ) {
        let config = self.plan.config();
        let row_bytes = config.combine_dtype.row_bytes(config.hidden);
        let mut rows = std::mem::take(&mut self.scratch.rows);
        let mut cursors = std::mem::take(&mut self.scratch.cursors);
        cursors.copy_from_slice(&layout.starts);
        for source in 0..self.plan.ranks {
            for row in 0..self.received[round.set.index()][source] as usize {
                rows.clear();
                // SAFETY: a row that came in the open round.
                let meta = unsafe { self.meta(round, source, row) };
                for &expert in meta.topk_idx.iter().filter(|expert| **expert >= 0) {
                    let place = cursors[expert as usize];
                    cursors[expert as usize] += 1;
                    rows.push(data[place * row_bytes..][..row_bytes].as_ptr());
                }
                each(self, source, row, &rows);
            }
        }
        (self.scratch.rows, self.scratch.cursors) = (rows, cursors);
    }
}
