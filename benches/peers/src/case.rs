//! What is measured: a grid of cells, each of which every side runs.

use std::fmt;

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Case {
    /// MoE dispatch and combine: hidden 7168, bf16, top-8 of 256 experts, uniform routing.
    Moe,
    /// A message between two ranks, half round trip.
    Put,
    /// A barrier.
    Barrier,
    /// The bytes of one rank to all, 1 KiB to 16 MiB; every rank in turn is the root.
    Broadcast,
    /// The bytes of every rank to all, 1 KiB to 16 MiB together.
    #[value(name = "all_gather", alias = "all-gather")]
    AllGather,
}

impl Case {
    /// The name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Case::Moe => "moe",
            Case::Put => "put",
            Case::Barrier => "barrier",
            Case::Broadcast => "broadcast",
            Case::AllGather => "all_gather",
        }
    }

    /// Whether it is one of the collectives of [`COLLECTIVE_BYTES`].
    pub fn is_collective(self) -> bool {
        matches!(self, Case::Broadcast | Case::AllGather)
    }
}

/// Sizes of the collectives, as in `programs/collective.h`: what ends up on every rank.
pub const COLLECTIVE_BYTES: [usize; 8] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// One point of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Kind of operation.
    pub case: Case,
    /// Ranks, all on this machine.
    pub ranks: usize,
    /// Tokens per rank for [`Case::Moe`], else 0.
    pub tokens: usize,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} ranks", self.case.name(), self.ranks)?;
        match self.case {
            Case::Moe => write!(f, ", {} tokens", self.tokens),
            Case::Put | Case::Barrier | Case::Broadcast | Case::AllGather => Ok(()),
        }
    }
}

/// All cells: moe for ranks × tokens, barrier and collectives for ranks, put once, between two ranks.
pub fn grid(cases: &[Case], ranks: &[usize], tokens: &[usize]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &case in cases {
        match case {
            Case::Moe => {
                for &ranks in ranks {
                    cells.extend(tokens.iter().map(|&tokens| Cell { case, ranks, tokens }));
                }
            }
            Case::Barrier | Case::Broadcast | Case::AllGather => {
                cells.extend(ranks.iter().map(|&ranks| Cell { case, ranks, tokens: 0 }))
            }
            Case::Put => cells.push(Cell { case, ranks: 2, tokens: 0 }),
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn put_runs_once_whatever_the_ranks() {
        let cells = grid(&[Case::Moe, Case::Put, Case::Barrier], &[2, 4, 8], &[128, 1024]);
        let count = |case| cells.iter().filter(|c| c.case == case).count();
        assert_eq!((count(Case::Moe), count(Case::Put), count(Case::Barrier)), (6, 1, 3));
        assert_eq!(cells[1].to_string(), "moe, 2 ranks, 1024 tokens");
    }
}
