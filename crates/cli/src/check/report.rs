//! What `campanile check` found: for people and for programs.

use std::time::Duration;

use campanile_testkit::conformance::{self, Case, GROUPS};
use serde::{Deserialize, Serialize};

use crate::bench::print_json;
use crate::exit::Error;
use crate::output::print;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// As promised.
    Passed,
    /// Not so.
    Failed {
        /// What was found, the first first.
        findings: Vec<Finding>,
    },
    /// It could not be run.
    NotApplicable {
        /// Why not.
        reason: String,
    },
}

/// What was found wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// By which rank; nobody if it is about the job.
    rank: Option<u32>,
    /// What the contract promises.
    expected: String,
    /// What was there instead.
    seen: String,
}

impl Verdict {
    /// A failure that no rank could tell of.
    pub fn failed(expected: &str, seen: &str) -> Self {
        let finding = Finding { rank: None, expected: expected.to_owned(), seen: seen.to_owned() };
        Self::Failed { findings: vec![finding] }
    }

    /// As it is, and the job ended badly, too.
    pub fn and_failed(self, job: &str) -> Self {
        let Self::Failed { findings: last } = Self::failed("ranks that end well", job) else { return self };
        match self {
            Self::Failed { findings } => Self::Failed { findings: [findings, last].concat() },
            Self::Passed | Self::NotApplicable { .. } => Self::Failed { findings: last },
        }
    }
}

impl From<conformance::Verdict> for Verdict {
    fn from(verdict: conformance::Verdict) -> Self {
        match verdict {
            conformance::Verdict::Passed => Self::Passed,
            conformance::Verdict::NotApplicable(reason) => Self::NotApplicable { reason },
            conformance::Verdict::Failed(findings) => {
                let finding = |found: conformance::Finding| Finding {
                    rank: Some(found.rank.0),
                    expected: found.expected,
                    seen: found.seen,
                };
                Self::Failed { findings: findings.into_iter().map(finding).collect() }
            }
        }
    }
}

/// A case and how it ended.
#[derive(Clone, Debug, Serialize)]
pub struct Tested {
    group: &'static str,
    name: &'static str,
    proves: &'static str,
    seconds: f64,
    #[serde(flatten)]
    verdict: Verdict,
}

impl Tested {
    /// Of a case that took that long.
    pub fn new(case: &'static Case, verdict: Verdict, took: Duration) -> Self {
        let (group, name, proves) = (case.group().name, case.name(), case.proves());
        Self { group, name, proves, seconds: took.as_secs_f64(), verdict }
    }
}

/// A run of the suite.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was examined.
    pub transport: &'static str,
    /// Its version.
    pub version: &'static str,
    /// Ranks of each case.
    pub ranks: usize,
    /// What they were.
    pub ranks_as: &'static str,
    /// What their windows were in.
    pub windows: &'static str,
    /// Where random delays and bytes came from.
    pub seed: u64,
    /// Upper bound of every wait.
    pub timeout_s: f64,
    /// How long all took.
    pub seconds: f64,
    /// The cases, in order.
    pub cases: Vec<Tested>,
}

/// How many cases ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Counts {
    passed: usize,
    failed: usize,
    not_applicable: usize,
}

impl Counts {
    fn of<'a>(cases: impl IntoIterator<Item = &'a Tested>) -> Self {
        cases.into_iter().fold(Self::default(), |counts, case| match case.verdict {
            Verdict::Passed => Self { passed: counts.passed + 1, ..counts },
            Verdict::Failed { .. } => Self { failed: counts.failed + 1, ..counts },
            Verdict::NotApplicable { .. } => Self { not_applicable: counts.not_applicable + 1, ..counts },
        })
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { passed, failed, not_applicable } = self;
        write!(f, "{passed} passed, {failed} failed, {not_applicable} not applicable")
    }
}

impl Report {
    /// Cases that failed.
    pub fn failed(&self) -> usize {
        Counts::of(&self.cases).failed
    }

    /// Cases that passed.
    pub fn passed(&self) -> usize {
        Counts::of(&self.cases).passed
    }

    /// Writes it to standard output.
    pub fn print(&self, json: bool) -> Result<(), Error> {
        if !json {
            return print(&self.text());
        }
        #[derive(Serialize)]
        struct Counted<'a> {
            #[serde(flatten)]
            counts: Counts,
            #[serde(flatten)]
            report: &'a Report,
        }
        print_json(&Counted { counts: Counts::of(&self.cases), report: self })
    }

    fn text(&self) -> String {
        let mut text = format!(
            "transport {} {}, {} ranks as {}, windows in {} memory, waits of at most {} s, seed {}\n\n",
            self.transport, self.version, self.ranks, self.ranks_as, self.windows, self.timeout_s, self.seed
        );
        for group in GROUPS {
            let cases: Vec<_> = self.cases.iter().filter(|case| case.group == group.name).collect();
            if cases.is_empty() {
                continue;
            }
            let counts = Counts::of(cases.iter().copied()).to_string();
            let seconds: f64 = cases.iter().map(|case| case.seconds).sum();
            text += &format!("  {:<12}{counts:<41}{seconds:>6.1} s  {}\n", group.name, group.about);
        }
        let failed = self.cases.iter().filter_map(|case| match &case.verdict {
            Verdict::Failed { findings } => Some((case, findings)),
            _ => None,
        });
        for (case, findings) in failed {
            text += &format!("\nfailed: {} ({})\n  {}\n", case.name, case.group, case.proves);
            for Finding { rank, expected, seen } in findings {
                let who = rank.map_or_else(|| "job".to_owned(), |rank| format!("rank {rank}"));
                text += &format!("  {who}: expected {expected}\n  {:>1$}  saw {seen}\n", "", who.len());
            }
        }
        let counts = Counts::of(&self.cases);
        if self.ranks_as == "processes" && counts.passed * 4 < counts.failed {
            text += "\nmost cases failed: a transport between threads of one process is checked with --as threads\n";
        }
        let mut title = "\nnot applicable\n";
        for case in &self.cases {
            if let Verdict::NotApplicable { reason } = &case.verdict {
                text += &format!("{title}  {}: {reason}\n", case.name);
                title = "";
            }
        }
        text += &format!("\n{} cases: {}, in {:.1} s\n", self.cases.len(), Counts::of(&self.cases), self.seconds);
        text
    }
}

/// What can be run.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    cases: Vec<Entry>,
}

#[derive(Clone, Debug, Serialize)]
struct Entry {
    group: &'static str,
    name: &'static str,
    proves: &'static str,
    needs: Vec<String>,
}

impl Listed {
    /// These cases.
    pub fn of(cases: &[&'static Case]) -> Self {
        let entry = |case: &&'static Case| Entry {
            group: case.group().name,
            name: case.name(),
            proves: case.proves(),
            needs: case.needs().iter().map(ToString::to_string).collect(),
        };
        Self { cases: cases.iter().map(entry).collect() }
    }
}

/// Writes a list to standard output.
pub fn list(listed: &Listed, json: bool) -> Result<(), Error> {
    if json {
        return print_json(listed);
    }
    let mut text = String::new();
    for group in GROUPS {
        let mut title = format!("{}: {}\n", group.name, group.about);
        for case in listed.cases.iter().filter(|case| case.group == group.name) {
            let needs = if case.needs.is_empty() { "anything".to_owned() } else { case.needs.join(", ") };
            text += &format!("{title}  {}\n      {}\n      needs {needs}\n", case.name, case.proves);
            title.clear();
        }
    }
    print(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tested(number: usize, verdict: Verdict) -> Tested {
        let case = conformance::cases().nth(number).expect("there are cases");
        Tested::new(case, verdict, Duration::from_millis(1500))
    }

    #[test]
    fn a_report_tells_every_failure_and_every_reason() {
        let skipped = Verdict::NotApplicable { reason: "needs a moon".to_owned() };
        let failed = Verdict::failed("water", "fire").and_failed("rank 1 was killed");
        let report = Report {
            transport: "shm",
            version: "1",
            ranks: 3,
            ranks_as: "threads",
            windows: "host",
            seed: 7,
            timeout_s: 2.0,
            seconds: 4.5,
            cases: vec![tested(0, Verdict::Passed), tested(1, failed), tested(2, skipped)],
        };
        let text = report.text();
        for line in [
            "transport shm 1, 3 ranks as threads, windows in host memory, waits of at most 2 s, seed 7",
            "  control     1 passed, 1 failed, 1 not applicable        4.5 s",
            "failed: all_ranks_connect (control)",
            "  job: expected water\n       saw fire",
            "  job: expected ranks that end well\n       saw rank 1 was killed",
            "  a_missing_peer_is_named: needs a moon",
            "3 cases: 1 passed, 1 failed, 1 not applicable, in 4.5 s",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
        let json = serde_json::to_value(&report.cases).unwrap();
        assert_eq!(json[0]["verdict"], "passed");
        assert_eq!(json[1]["findings"][0]["seen"], "fire");
        assert_eq!(json[2]["reason"], "needs a moon");
    }

    #[test]
    fn a_job_that_ends_badly_has_failed_whatever_its_verdict() {
        assert!(matches!(Verdict::Passed.and_failed("x"), Verdict::Failed { findings } if findings.len() == 1));
        let twice = Verdict::failed("a", "b").and_failed("x");
        assert!(matches!(twice, Verdict::Failed { findings } if findings.len() == 2));
    }
}
