//! ReceivedRows rows: what the experts see, in place, and where they leave their results.
//!
//! Rows of a source are contiguous, in the order of its tokens. They may be read, and results written, until the
//! handle goes into combine or release; borrowing the operation mutably makes the compiler see to that.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::moe::Moe;
use crate::protocol::Round;

/// The rows of one round at this rank.
pub struct ReceivedRows<'a> {
    moe: &'a mut Moe,
    round: Round,
}

/// What came with a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowMeta<'a> {
    /// Number of the token at its source.
    pub token: usize,
    /// `[K]` number of the expert among this rank's, ascending; −1 for slots that live elsewhere.
    pub topk_idx: &'a [i32],
    /// `[K]` weights, 0 for slots that live elsewhere; empty if the operation is not weighted.
    pub topk_weights: &'a [f32],
}

impl<'a> ReceivedRows<'a> {
    pub(crate) fn new(moe: &'a mut Moe, round: Round) -> Self {
        Self { moe, round }
    }

    /// Rows from `source`.
    pub fn count(&self, source: usize) -> usize {
        self.moe.received[self.round.set.index()][source] as usize
    }

    /// Rows from all sources, N.
    pub fn total(&self) -> usize {
        self.moe.received[self.round.set.index()].iter().map(|&rows| rows as usize).sum()
    }

    /// Ranks that rows may come from.
    pub fn sources(&self) -> usize {
        self.moe.plan.ranks
    }

    /// All (source, row), ordered by source, then by its token: row n of a compact layout is the n-th of them.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..self.sources()).flat_map(|source| (0..self.count(source)).map(move |row| (source, row)))
    }

    /// The H elements of a row, as they travelled, 16-byte aligned.
    ///
    /// # Panics
    /// If the source has no such row.
    pub fn row(&self, source: usize, row: usize) -> &[u8] {
        self.check(source, row);
        // SAFETY: a row that came (checked); see `Moe::row`.
        unsafe { self.moe.row(self.round, source, row) }
    }

    /// The elements of a row as numbers of `T`, which is as large as an element: `f32`, `u16`, `half::bf16`, …; of
    /// four-bit elements a byte holds two.
    ///
    /// # Panics
    /// If the source has no such row, or `T` has another size than an element.
    pub fn row_as<T: FromBytes + Immutable>(&self, source: usize, row: usize) -> &[T] {
        let size = self.moe.plan.config().dtype.bytes();
        assert_eq!(size_of::<T>(), size, "an element of {} has {size} bytes", self.moe.plan.config().dtype);
        <[T]>::ref_from_bytes(self.row(source, row)).expect("rows are 16-byte aligned and whole elements")
    }

    /// Where the result of a row goes, as numbers of `T`, which is as large as an element of the combine type.
    ///
    /// # Panics
    /// If the source has no such row, or `T` has another size than an element.
    pub fn output_as_mut<T: FromBytes + IntoBytes>(&mut self, source: usize, row: usize) -> &mut [T] {
        let dtype = self.moe.plan.config().combine_dtype;
        assert_eq!(size_of::<T>(), dtype.bytes(), "an element of {dtype} has {} bytes", dtype.bytes());
        <[T]>::mut_from_bytes(self.output_mut(source, row)).expect("results are 16-byte aligned and whole elements")
    }

    /// The S scales of a row, as they travelled.
    ///
    /// # Panics
    /// If the source has no such row.
    pub fn scales(&self, source: usize, row: usize) -> &[f32] {
        self.check(source, row);
        // SAFETY: a row that came (checked); see `Moe::scales`.
        unsafe { self.moe.scales(self.round, source, row) }
    }

    /// What came with a row.
    ///
    /// # Panics
    /// If the source has no such row.
    pub fn meta(&self, source: usize, row: usize) -> RowMeta<'_> {
        self.check(source, row);
        // SAFETY: a row that came (checked); see `Moe::meta`.
        unsafe { self.moe.meta(self.round, source, row) }
    }

    /// Where the result of a row goes for a zero-copy combine ([`Outputs::InPlace`](crate::Outputs::InPlace)):
    /// H elements of the combine type, 16-byte aligned, with what an earlier round left in them.
    ///
    /// # Panics
    /// If the source has no such row.
    pub fn output_mut(&mut self, source: usize, row: usize) -> &mut [u8] {
        self.check(source, row);
        // SAFETY: a row that came (checked), and `&mut self` makes it the only reference; see `Moe::output`.
        unsafe { self.moe.output(self.round, source, row) }
    }

    /// A row, its scales, what came with it, and where its result goes.
    ///
    /// # Panics
    /// If the source has no such row.
    pub fn expert(&mut self, source: usize, row: usize) -> (&[u8], &[f32], RowMeta<'_>, &mut [u8]) {
        self.check(source, row);
        // SAFETY: a row that came (checked). The four lie in different planes, so they are disjoint; `&mut self` makes
        // the result the only reference to it.
        unsafe {
            let output = self.moe.output(self.round, source, row);
            let moe = &*self.moe;
            (
                moe.row(self.round, source, row),
                moe.scales(self.round, source, row),
                moe.meta(self.round, source, row),
                output,
            )
        }
    }

    /// Rows for each of this rank's experts, counting a token once for each of its slots there.
    ///
    /// # Panics
    /// If `counts` has not one entry a local expert.
    pub fn expert_counts(&self, counts: &mut [usize]) {
        assert_eq!(counts.len(), self.moe.plan.local_experts(), "one count a local expert");
        counts.fill(0);
        for (source, row) in self.iter() {
            for &expert in self.meta(source, row).topk_idx.iter().filter(|expert| **expert >= 0) {
                counts[expert as usize] += 1;
            }
        }
    }

    pub(crate) fn moe(&self) -> &Moe {
        self.moe
    }

    fn check(&self, source: usize, row: usize) {
        assert!(row < self.count(source), "row {row} of {} rows from rank {source}", self.count(source));
    }
}

/// Where things lie in this rank's own window. Callers have checked that the row came in the open round.
///
/// # Safety (of all of them)
/// The row came in the round, which is open: by the protocol its source has written it before and writes it no more until
/// this rank gives the credit back, which takes the handle and so ends every borrow.
impl Moe {
    fn own(&self, offset: usize) -> *mut u8 {
        // SAFETY: every offset of the plan lies inside the window, which has the plan's size.
        unsafe { self.window.region().address().add(offset) }
    }

    pub(crate) unsafe fn row(&self, round: Round, source: usize, row: usize) -> &[u8] {
        let at = self.plan.at(&self.plan.set(round.set).rows, source, row);
        let bytes = self.plan.config().dtype.row_bytes(self.plan.config().hidden);
        // SAFETY: the impl's promise.
        unsafe { std::slice::from_raw_parts(self.own(at), bytes) }
    }

    pub(crate) unsafe fn scales(&self, round: Round, source: usize, row: usize) -> &[f32] {
        let at = self.plan.at(&self.plan.set(round.set).scales, source, row);
        // SAFETY: the impl's promise; the stride is a multiple of 16, so f32 is aligned.
        unsafe { std::slice::from_raw_parts(self.own(at).cast(), self.plan.config().scales) }
    }

    pub(crate) unsafe fn meta(&self, round: Round, source: usize, row: usize) -> RowMeta<'_> {
        let at = self.plan.at(&self.plan.set(round.set).meta, source, row);
        let topk = self.plan.config().topk;
        let weights = if self.plan.config().weighted { topk } else { 0 };
        // SAFETY: the impl's promise; the stride is a multiple of 16 and holds 1 + 2 K words of 4 bytes.
        unsafe {
            let words = self.own(at).cast::<i32>();
            RowMeta {
                token: words.read() as usize,
                topk_idx: std::slice::from_raw_parts(words.add(1), topk),
                topk_weights: std::slice::from_raw_parts(words.add(1 + topk).cast(), weights),
            }
        }
    }

    #[expect(
        clippy::mut_from_ref,
        reason = "the memory is the window's, not the struct's; callers hold `&mut ReceivedRows`"
    )]
    pub(crate) unsafe fn output(&self, round: Round, source: usize, row: usize) -> &mut [u8] {
        let at = self.plan.at(&self.plan.set(round.set).outputs, source, row);
        let bytes = self.plan.config().combine_dtype.row_bytes(self.plan.config().hidden);
        // SAFETY: the impl's promise; no peer reads `outputs` between its DONE_C of the last round, which the dispatch
        // waited for, and this rank's READY_C.
        unsafe { std::slice::from_raw_parts_mut(self.own(at), bytes) }
    }
}
