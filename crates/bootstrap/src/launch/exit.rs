//! How ranks and jobs end.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use campanile_core::Rank;

/// How the process of a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With a code; 0 is good.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// Not at all: SIGKILL was sent, and it is stuck in the kernel.
    Stuck,
    /// There was none: the job ended before all ranks had been started.
    NotStarted,
}

impl Exit {
    /// Whether it ended well.
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Stuck,
        }
    }
}

impl fmt::Display for Exit {
    /// What is said of a rank: `exited with code 3`. With the flag `#`, of several: `were killed`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => {
                let verb = if f.alternate() { "were" } else { "was" };
                write!(f, "{verb} killed by {}", SignalName(signal))
            }
            Self::Stuck => f.write_str("did not die of SIGKILL, stuck in the kernel"),
            Self::NotStarted => {
                let verb = if f.alternate() { "were" } else { "was" };
                write!(f, "{verb} not started")
            }
        }
    }
}

/// Why a job did not end well.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// A rank failed, this one first. Of several at the same time, one that was killed by a signal: the others may
    /// have ended because of it.
    Rank {
        /// Which.
        rank: Rank,
        /// How.
        exit: Exit,
    },
    /// The job's time was over.
    Timeout {
        /// How long it was.
        after: Duration,
        /// The ranks that had not ended, or not begun.
        running: Vec<Rank>,
    },
    /// The launcher got a signal.
    Interrupted {
        /// Which.
        signal: i32,
    },
    /// The launcher could not pass on what the ranks wrote.
    Output {
        /// Where to.
        stream: &'static str,
        /// Why not.
        reason: String,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank { rank, exit } => write!(f, "{rank} {exit}"),
            Self::Timeout { after, running } if running.is_empty() => {
                write!(f, "after {after:.1?} all ranks had ended, but nobody had read all that they wrote")
            }
            Self::Timeout { after, running } => {
                write!(f, "not done after {after:.1?}; still running: {}", ranks(running))
            }
            Self::Interrupted { signal } => write!(f, "interrupted by {}", SignalName(*signal)),
            Self::Output { stream, reason } => write!(f, "cannot write to {stream}: {reason}"),
        }
    }
}

/// How a rank ended, and what it had written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankOutcome {
    /// How its process ended.
    pub exit: Exit,
    /// Its standard output, if that was [captured](super::Output::Captured).
    pub stdout: Vec<u8>,
}

/// How a job ended. Displayed, it is one line: the failure, and how the other ranks ended then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The ranks, in order.
    pub ranks: Vec<RankOutcome>,
    /// What went wrong first, if something did. `None`: every rank exited with code 0.
    pub failure: Option<Failure>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(failure) = &self.failure else {
            return f.write_str("every rank exited with code 0");
        };
        write!(f, "{failure}")?;
        let first = match failure {
            Failure::Rank { rank, .. } => Some(*rank),
            _ => None,
        };
        // The others by how they ended, in order of the first rank that ended so.
        let mut groups: Vec<(Exit, Vec<Rank>)> = Vec::new();
        for (rank, outcome) in self.ranks.iter().enumerate().map(|(rank, outcome)| (Rank::new(rank), outcome)) {
            if Some(rank) == first {
                continue;
            }
            match groups.iter_mut().find(|(exit, _)| *exit == outcome.exit) {
                Some((_, members)) => members.push(rank),
                None => groups.push((outcome.exit, vec![rank])),
            }
        }
        groups.iter().try_for_each(|(exit, members)| match members.len() {
            1 => write!(f, "; {} {exit}", ranks(members)),
            _ => write!(f, "; {} {exit:#}", ranks(members)),
        })
    }
}

/// `rank 1`, `ranks 1, 2`.
fn ranks(ranks: &[Rank]) -> String {
    let numbers: Vec<String> = ranks.iter().map(|rank| rank.0.to_string()).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

struct SignalName(i32);

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            libc::SIGHUP => "SIGHUP",
            libc::SIGINT => "SIGINT",
            libc::SIGQUIT => "SIGQUIT",
            libc::SIGILL => "SIGILL",
            libc::SIGTRAP => "SIGTRAP",
            libc::SIGABRT => "SIGABRT",
            libc::SIGBUS => "SIGBUS",
            libc::SIGFPE => "SIGFPE",
            libc::SIGKILL => "SIGKILL",
            libc::SIGUSR1 => "SIGUSR1",
            libc::SIGSEGV => "SIGSEGV",
            libc::SIGUSR2 => "SIGUSR2",
            libc::SIGPIPE => "SIGPIPE",
            libc::SIGALRM => "SIGALRM",
            libc::SIGTERM => "SIGTERM",
            libc::SIGXCPU => "SIGXCPU",
            libc::SIGXFSZ => "SIGXFSZ",
            libc::SIGSYS => "SIGSYS",
            other => return write!(f, "signal {other}"),
        };
        write!(f, "signal {} ({name})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_one_line_that_names_the_first_and_groups_the_others() {
        let rank = |exit| RankOutcome { exit, stdout: Vec::new() };
        let ranks = vec![
            rank(Exit::Code(1)),
            rank(Exit::Code(0)),
            rank(Exit::Signal(libc::SIGKILL)),
            rank(Exit::Code(1)),
            rank(Exit::Signal(63)),
        ];
        let failure = Some(Failure::Rank { rank: Rank(2), exit: Exit::Signal(libc::SIGKILL) });
        assert_eq!(
            Outcome { ranks: ranks.clone(), failure }.to_string(),
            "rank 2 was killed by signal 9 (SIGKILL); ranks 0, 3 exited with code 1; rank 1 exited with code 0; \
             rank 4 was killed by signal 63"
        );
        let failure = Some(Failure::Timeout { after: Duration::from_millis(1500), running: vec![Rank(0), Rank(4)] });
        assert!(
            Outcome { ranks, failure }
                .to_string()
                .starts_with("not done after 1.5s; still running: ranks 0, 4; ranks 0, 3")
        );
    }
}
