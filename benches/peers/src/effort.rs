//! How much is measured: the same numbers for every side.

use std::time::Duration;

use crate::case::Cell;

/// Repetitions and limits.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Times the whole grid is run; the outermost loop.
    pub rounds: usize,
    /// Most timed iterations of a moe launch; see [`Effort::iterations`].
    pub most_iterations: usize,
    /// Fewest timed iterations of a moe launch.
    pub fewest_iterations: usize,
    /// Most untimed iterations before them; see [`Effort::warmup`].
    pub warmup: usize,
    /// The C programs stop after this long, if they have 5 samples.
    pub budget: Duration,
    /// Samples of a put or barrier launch; each is the mean of a batch.
    pub batches: usize,
    /// A launch that takes longer is ended and listed as failed.
    pub limit: Duration,
    /// Launches of an arm in a round, if others disturb it: at most.
    pub attempts: usize,
    /// Longest wait for a quiet machine before a launch.
    pub patience: Duration,
}

impl Effort {
    /// For figures that are kept.
    pub const FULL: Effort = Effort {
        rounds: 3,
        most_iterations: 200,
        fewest_iterations: 20,
        warmup: 40,
        budget: Duration::from_millis(1500),
        batches: 20,
        limit: Duration::from_secs(60),
        attempts: 2,
        patience: Duration::from_secs(12),
    };

    /// To see that everything runs.
    pub const QUICK: Effort = Effort {
        rounds: 1,
        most_iterations: 20,
        fewest_iterations: 5,
        warmup: 2,
        budget: Duration::from_millis(300),
        batches: 5,
        limit: Duration::from_secs(30),
        attempts: 1,
        patience: Duration::ZERO,
    };

    /// Timed iterations of a moe launch: the most at 256 tokens over all ranks, fewer as the payload grows.
    pub fn iterations(&self, cell: &Cell) -> usize {
        let scaled = self.most_iterations * 256 / (cell.ranks * cell.tokens).max(1);
        scaled.clamp(self.fewest_iterations, self.most_iterations)
    }

    /// Untimed iterations before them, the same for all sides: enough to try out ways of copying, and no more than are
    /// timed.
    pub fn warmup(&self, cell: &Cell) -> usize {
        self.warmup.min(self.iterations(cell))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Case;

    #[test]
    fn iterations_shrink_with_the_payload() {
        let at = |ranks, tokens| Effort::FULL.iterations(&Cell { case: Case::Moe, ranks, tokens });
        assert_eq!((at(2, 16), at(2, 128), at(4, 128), at(8, 1024)), (200, 200, 100, 20));
    }
}
