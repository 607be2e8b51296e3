//! Reports: how the cases of a run ended.

use std::time::Duration;

use super::case::Case;
use super::finding::Verdict;

/// How one case ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which.
    pub case: &'static Case,
    /// How, on all ranks together.
    pub verdict: Verdict,
    /// How long this rank was in it.
    pub took: Duration,
}

/// How the cases of a run ended, in the order in which they were run: the same on every rank.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The cases.
    pub outcomes: Vec<Outcome>,
}

impl Report {
    /// The cases that failed.
    pub fn failed(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| matches!(outcome.verdict, Verdict::Failed(_)))
    }

    /// The cases that passed.
    pub fn passed(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Passed)
    }

    /// The cases that could not be run.
    pub fn not_applicable(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| matches!(outcome.verdict, Verdict::NotApplicable(_)))
    }
}
