//! Findings and verdicts: how a case ended.

use std::fmt::{self, Debug, Display};
use std::thread::ScopedJoinHandle;

use campanile_core::Rank;
use campanile_host::clock::now_ns;

/// What one rank found wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Who found it.
    pub rank: Rank,
    /// What the contract promises.
    pub expected: String,
    /// What was there instead.
    pub seen: String,
}

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}; saw {}", self.rank, self.expected, self.seen)
    }
}

/// How a case ended, on all ranks together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every rank saw what the contract promises.
    Passed,
    /// At least one did not.
    Failed(Vec<Finding>),
    /// It could not be run, for this reason.
    NotApplicable(String),
}

impl Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed(findings) => {
                f.write_str("failed")?;
                findings.iter().try_for_each(|finding| write!(f, "; {finding}"))
            }
            Self::NotApplicable(reason) => write!(f, "not applicable: {reason}"),
        }
    }
}

impl Verdict {
    /// The verdict of the ranks together. What was found first comes first: the rest may follow from it. A rank that
    /// was left alone by another counts only if none has a reason.
    pub(super) fn of_ranks(ends: &[(Rank, End)]) -> Self {
        let found = |alone: bool| {
            let mut found: Vec<_> = ends
                .iter()
                .filter_map(|(rank, end)| match end {
                    End::Stopped(Stop::Failed { at, expected, seen }) if !alone => Some((*at, *rank, expected, seen)),
                    End::Stopped(Stop::LeftAlone { expected, seen }) if alone => Some((0, *rank, expected, seen)),
                    _ => None,
                })
                .collect();
            found.sort_unstable();
            let finding = |(_, rank, expected, seen): (u64, Rank, &String, &String)| Finding {
                rank,
                expected: expected.clone(),
                seen: seen.clone(),
            };
            found.into_iter().map(finding).collect::<Vec<_>>()
        };
        let skipped = ends.iter().find_map(|(_, end)| match end {
            End::Stopped(Stop::Skipped { reason }) => Some(reason.clone()),
            _ => None,
        });
        match (found(false), skipped, found(true)) {
            (failed, _, _) if !failed.is_empty() => Self::Failed(failed),
            (_, Some(reason), _) => Self::NotApplicable(reason),
            (_, None, alone) if !alone.is_empty() => Self::Failed(alone),
            _ => Self::Passed,
        }
    }
}

/// Why a body did not go on to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The contract is broken; found at this time of the node's clock, in nanoseconds.
    Failed { at: u64, expected: String, seen: String },
    /// It turned out that it cannot be run.
    Skipped { reason: String },
    /// Another rank, which was needed, has ended its part: the reason is there.
    LeftAlone { expected: String, seen: String },
}

/// What a body returns.
pub(super) type Proof<T = ()> = Result<T, Stop>;

/// How one rank's part ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Done,
    Stopped(Stop),
}

/// Stands between the parts of an end.
const SEPARATOR: char = '\u{1f}';

impl End {
    /// The end as a value of the bootstrap.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let text = match self {
            Self::Done => "done".to_owned(),
            Self::Stopped(Stop::Failed { at, expected, seen }) => {
                format!("failed{SEPARATOR}{at}{SEPARATOR}{expected}{SEPARATOR}{seen}")
            }
            Self::Stopped(Stop::Skipped { reason }) => format!("skipped{SEPARATOR}{reason}"),
            Self::Stopped(Stop::LeftAlone { expected, seen }) => {
                format!("left alone{SEPARATOR}{expected}{SEPARATOR}{seen}")
            }
        };
        text.into_bytes()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let parts: Vec<&str> = text.splitn(4, SEPARATOR).collect();
        let owned = str::to_owned;
        match parts[..] {
            ["done"] => Self::Done,
            ["skipped", reason] => Self::Stopped(Stop::Skipped { reason: owned(reason) }),
            ["left alone", expected, seen] => {
                Self::Stopped(Stop::LeftAlone { expected: owned(expected), seen: owned(seen) })
            }
            ["failed", at, expected, seen] => {
                let at = at.parse().unwrap_or(u64::MAX);
                Self::Stopped(Stop::Failed { at, expected: owned(expected), seen: owned(seen) })
            }
            _ => Self::Stopped(failed("a verdict of that rank", format!("{text:?}"))),
        }
    }
}

pub(super) fn failed(expected: impl Into<String>, seen: impl Display) -> Stop {
    Stop::Failed { at: now_ns(), expected: expected.into(), seen: seen.to_string() }
}

/// Makes sure that something holds.
pub(super) fn require(holds: bool, expected: &str, seen: impl FnOnce() -> String) -> Proof {
    if holds { Ok(()) } else { Err(failed(expected, seen())) }
}

/// Makes sure that `what` is what it must be.
pub(super) fn same<T: PartialEq + Debug>(what: &str, seen: T, expected: T) -> Proof {
    require(seen == expected, &format!("{what}: {expected:?}"), || format!("{seen:?}"))
}

/// Makes sure of every byte; tells of the first that differs.
pub(super) fn same_bytes(what: &str, seen: &[u8], expected: &[u8]) -> Proof {
    if seen == expected {
        return Ok(());
    }
    same(&format!("length of {what}"), seen.len(), expected.len())?;
    let Some(at) = seen.iter().zip(expected).position(|(seen, expected)| seen != expected) else { return Ok(()) };
    let wrong = seen.iter().zip(expected).filter(|(seen, expected)| seen != expected).count();
    let seen = format!("{:#04x}; {wrong} of {} bytes are wrong", seen[at], seen.len());
    Err(failed(format!("{what}: byte {at} is {:#04x}", expected[at]), seen))
}

/// What a thread of a case found; a panic is a failure.
pub(super) fn joined<T>(thread: ScopedJoinHandle<'_, Proof<T>>) -> Proof<T> {
    thread.join().unwrap_or_else(|_| Err(failed("no panic", "one in a thread of the case")))
}

/// A result that must be `Ok`.
pub(super) trait Expected<T> {
    fn expected(self, what: &str) -> Proof<T>;
}

impl<T, E: Display> Expected<T> for Result<T, E> {
    fn expected(self, what: &str) -> Proof<T> {
        self.map_err(|error| failed(what, format!("the error: {error}")))
    }
}

/// A result that must be an error; it is returned.
pub(super) fn refused<T, E>(result: Result<T, E>, what: &str) -> Proof<E> {
    result.err().ok_or_else(|| failed(what, "it was accepted"))
}

/// Makes sure that an error names what it is about.
pub(super) fn names(error: &impl Display, fragment: &str) -> Proof {
    let text = error.to_string();
    require(text.contains(fragment), &format!("an error that names {fragment:?}"), || text.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_round_trip() {
        let (expected, seen) = ("a — b".to_owned(), "c\nd".to_owned());
        for end in [
            End::Done,
            End::Stopped(Stop::Failed { at: u64::MAX - 1, expected: expected.clone(), seen: seen.clone() }),
            End::Stopped(Stop::LeftAlone { expected, seen }),
            End::Stopped(Stop::Skipped { reason: String::new() }),
        ] {
            assert_eq!(End::from_bytes(&end.to_bytes()), end);
        }
        assert!(matches!(End::from_bytes(b""), End::Stopped(Stop::Failed { .. })));
    }

    #[test]
    fn a_reason_counts_more_than_its_consequences() {
        let failed = |at| End::Stopped(Stop::Failed { at, expected: "x".to_owned(), seen: "y".to_owned() });
        let alone = End::Stopped(Stop::LeftAlone { expected: "it".to_owned(), seen: "nothing".to_owned() });
        let skipped = End::Stopped(Stop::Skipped { reason: "no memory".to_owned() });
        let of = |ends: [&End; 3]| {
            let ranks = ends.into_iter().cloned().enumerate().map(|(rank, end)| (Rank::new(rank), end));
            Verdict::of_ranks(&ranks.collect::<Vec<_>>())
        };
        assert_eq!(of([&End::Done; 3]), Verdict::Passed);
        assert_eq!(of([&alone, &skipped, &End::Done]), Verdict::NotApplicable("no memory".to_owned()));
        assert_eq!(of([&alone, &failed(7), &skipped]).to_string(), "failed; rank 1: expected x; saw y");
        match of([&failed(7), &alone, &failed(6)]) {
            Verdict::Failed(findings) => assert_eq!(findings.iter().map(|f| f.rank.0).collect::<Vec<_>>(), [2, 0]),
            other => panic!("{other:?}"),
        }
        assert!(matches!(of([&End::Done, &alone, &End::Done]), Verdict::Failed(findings) if findings.len() == 1));
    }
}
