//! Running the grid: rounds outside, cells inside, arms innermost in an order that rotates, so that slow drift of the
//! machine spreads over all sides and no side always follows the same neighbour.

use std::collections::HashSet;
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::campanile;
use crate::case::Cell;
use crate::core_distance;
use crate::core_set::CoreSet;
use crate::effort::Effort;
use crate::launch::Outcome;
use crate::peer::{Arm, Format, NotRun};
use crate::quiet::{self, Clock};
use crate::row::{self, Conditions, Figure, Row};

/// Exit status with which a program says that this CPU cannot run the variant (`programs/rank.h`).
const UNAVAILABLE: i32 = 77;

/// A cell and the arms of all sides for it.
pub type Plan = Vec<(Cell, Vec<Arm>)>;

/// Runs a plan and collects what comes of it.
#[derive(Debug)]
pub struct Runner {
    /// Repetitions and limits.
    pub effort: Effort,
    /// The cores that are watched.
    pub cores: CoreSet,
    /// A folder for output.
    pub scratch: PathBuf,
    /// Figures so far.
    pub rows: Vec<Row>,
    /// MPI implementations as they name themselves, by peer.
    pub libraries: Vec<(String, String)>,
    /// Arms that could not be measured.
    pub not_run: Vec<NotRun>,
    /// Arms that failed and should not have: of this project's own programs.
    pub broken: Vec<String>,
    skip: HashSet<(usize, String, String)>,
}

/// Why an arm has no figure.
enum Failure {
    /// The CPU cannot do it.
    Unavailable(String),
    /// It crashed, overstayed, or printed something unreadable.
    Broken(String),
}

impl Runner {
    /// A runner without results.
    pub fn new(effort: Effort, cores: CoreSet, scratch: PathBuf) -> Self {
        Runner {
            effort,
            cores,
            scratch,
            rows: Vec::new(),
            libraries: Vec::new(),
            not_run: Vec::new(),
            broken: Vec::new(),
            skip: HashSet::new(),
        }
    }

    /// Runs all rounds. An error: a side computed a wrong result, or the machine cannot be watched.
    pub fn run(&mut self, plan: &Plan) -> Result<()> {
        for round in 0..self.effort.rounds {
            for (index, (cell, arms)) in plan.iter().enumerate() {
                for arm in rotated(arms, round, self.effort.rounds) {
                    let key = (index, arm.peer.clone(), arm.variant.clone());
                    if self.skip.contains(&key) {
                        continue;
                    }
                    eprint!("round {}/{}  {cell}  {} {} ", round + 1, self.effort.rounds, arm.peer, arm.variant);
                    if let Err(failure) = self.measure(cell, arm, round + 1)? {
                        self.skip.insert(key);
                        self.note(cell, arm, failure);
                    }
                }
            }
        }
        Ok(())
    }

    /// Launches an arm in a quiet moment; again if others disturbed it. Keeps the quietest.
    fn measure(&mut self, cell: &Cell, arm: &Arm, round: usize) -> Result<Result<(), Failure>> {
        let mut best: Option<(Vec<Figure>, Conditions)> = None;
        for attempt in 1..=self.effort.attempts {
            quiet::wait(&self.cores, self.effort.patience)?;
            let distance = self.core_distance();
            let before = Clock::now(&self.cores)?;
            let outcome = match arm.launch.run(self.effort.limit, &self.scratch) {
                Ok(outcome) => outcome,
                Err(error) => return Ok(Err(Failure::Broken(format!("cannot be started: {error}")))),
            };
            let usage = before.until(&Clock::now(&self.cores)?);
            let figures = match self.read(cell, arm, &outcome)? {
                Ok(figures) => figures,
                Err(failure) => return Ok(Err(failure)),
            };
            let conditions = Conditions {
                round,
                others_percent: (usage.others_percent * 10.0).round() / 10.0,
                steal_ticks: usage.steal_ticks,
                core_distance_ns: [distance, self.core_distance()],
                attempts: attempt,
            };
            match &mut best {
                Some((_, kept)) if kept.others_percent <= conditions.others_percent => kept.attempts = attempt,
                _ => best = Some((figures, conditions)),
            }
            if usage.others_percent <= quiet::LIMIT_PERCENT {
                break;
            }
        }
        let (figures, conditions) = best.expect("at least one attempt, which returns or sets it");
        let medians: Vec<String> = figures.iter().map(|f| format!("{} {:.4} {}", f.metric, f.median, f.unit)).collect();
        eprintln!(" {} (others {} %)", medians.join(", "), conditions.others_percent);
        let rows = figures.into_iter().map(|figure| Row { peer: arm.peer.clone(), figure, conditions });
        self.rows.extend(rows);
        Ok(Ok(()))
    }

    /// In tenths of a nanosecond.
    fn core_distance(&self) -> Option<f64> {
        core_distance::measure(&self.cores).map(|ns| (ns * 10.0).round() / 10.0)
    }

    /// The figures of an ended launch. The outer error: a wrong result, on which the whole run stops.
    fn read(&mut self, cell: &Cell, arm: &Arm, outcome: &Outcome) -> Result<Result<Vec<Figure>, Failure>> {
        let denied = arm.format == Format::Campanile && campanile::denies(&outcome.stdout);
        if denied || outcome.stdout.contains("VERIFY FAILED") {
            bail!(
                "VERIFY FAILED: {} {} computed a wrong result ({cell})\n{}",
                arm.peer,
                arm.variant,
                tail(&outcome.stderr)
            );
        }
        if outcome.timed_out {
            let limit = self.effort.limit.as_secs();
            return Ok(Err(Failure::Broken(format!("did not end in {limit} s"))));
        }
        if outcome.status.code() == Some(UNAVAILABLE) {
            return Ok(Err(Failure::Unavailable(tail(&outcome.stderr))));
        }
        if !outcome.status.success() {
            return Ok(Err(Failure::Broken(format!("{}: {}", outcome.status, tail(&outcome.stderr)))));
        }
        let figures = match arm.format {
            Format::Rows => row::parse(&outcome.stdout).map(|output| {
                let library = output.library.map(|library| (arm.peer.clone(), library));
                self.libraries.extend(library.filter(|library| !self.libraries.contains(library)));
                output.figures
            }),
            Format::Campanile => campanile::parse(cell, &outcome.stdout),
        };
        Ok(figures.map_err(|error| Failure::Broken(format!("{error:#}"))))
    }

    fn note(&mut self, cell: &Cell, arm: &Arm, failure: Failure) {
        let (why, broken) = match failure {
            Failure::Unavailable(why) => (why, false),
            Failure::Broken(why) => (why, true),
        };
        eprintln!(" not run: {why}");
        let what = if broken {
            format!("{} {} ({cell})", arm.peer, arm.variant)
        } else {
            format!("{} {} ({})", arm.peer, arm.variant, cell.case.name())
        };
        if broken && [campanile::NAME, crate::direct::NAME].contains(&arm.peer.as_str()) {
            self.broken.push(format!("{what}: {why}"));
        }
        let entry = NotRun::new(what, why, "");
        if !self.not_run.contains(&entry) {
            self.not_run.push(entry);
        }
    }
}

/// The last lines of a program's standard error.
fn tail(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.trim_end().lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

/// The arms in the order of this round: each round starts a share of the list further on.
fn rotated(arms: &[Arm], round: usize, rounds: usize) -> impl Iterator<Item = &Arm> {
    let start = (round * arms.len() / rounds.max(1)) % arms.len().max(1);
    arms[start..].iter().chain(&arms[..start])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Launch;

    fn arm(variant: usize) -> Arm {
        let launch = Launch::new("true", [""; 0]);
        Arm { peer: "direct".into(), variant: variant.to_string(), launch, format: Format::Rows }
    }

    #[test]
    fn every_round_runs_all_arms_in_another_order() {
        let arms: Vec<Arm> = (0..7).map(arm).collect();
        let order = |round| -> String { rotated(&arms, round, 3).map(|arm| arm.variant.as_str()).collect() };
        assert_eq!([order(0), order(1), order(2)], ["0123456", "2345601", "4560123"]);
        assert_eq!(rotated(&[], 1, 3).count(), 0);
    }

    #[test]
    fn tails() {
        assert_eq!(tail("1\n2\n3\n4\n5\n6\n"), "2\n3\n4\n5\n6");
        assert_eq!(tail(""), "");
    }
}
