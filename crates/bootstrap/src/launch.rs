//! Ranks as processes of this machine: [`Launch`].
//!
//! **Model.** The launcher keeps the job's [store](crate::StoreServer), starts one process a rank, and supervises
//! them in one loop that polls their pidfds and output pipes, with a deadline; the starting is part of that loop, so
//! that a failure, a signal or the end of the job's time ends it too. A rank is the process that was started
//! and, for cleaning up, its process group: what a wrapper script starts belongs to it. A rank ends when its process
//! does; what is left of its group is killed then, and what it had written is passed on.
//!
//! **One failure ends all.** The first rank that exits with another code than 0, or dies by a signal, is the failure.
//! The others get a grace period to notice and say so themselves, then SIGTERM, then after as long again SIGKILL. A
//! job that runs into its timeout, output that cannot be written, and SIGINT, SIGTERM or SIGHUP to the launcher
//! (where it [forwards](Launch::forward_signals) them) skip the grace period; a further signal skips the next one.
//!
//! **Nothing is left behind.** Before [`run`](Launch::run) returns, by any path, every rank was reaped, and what was
//! left of its group has got SIGKILL. If the launcher itself dies, by SIGKILL too, each rank is killed by the kernel
//! (`PR_SET_PDEATHSIG`) and its group by a small guardian process that outlives the launcher for that moment. Limits:
//! a process that leaves its rank's group (`setsid`, `setpgid`, an interactive shell's job control) is out of reach;
//! so are the children of a wrapper if the guardian is killed together with the launcher; a set-uid rank escapes the
//! kernel's signal.
//!
//! **Output.** Each line of a rank's stdout and stderr goes to the launcher's stdout and stderr, behind `[rank] `,
//! whole: lines of ranks never tear each other. Bytes are passed on as they are; a last line without newline gets
//! one; a line of more than 1 MiB is broken. Or stdout is captured ([`Output::Captured`]), for a program that starts
//! ranks of itself and collects their results. A launcher whose reader does not keep up holds its ranks up, and
//! misses no deadline.

mod exit;
mod guardian;
mod job;
mod output;
mod signals;

use std::ffi::{OsStr, OsString};
use std::io;
use std::time::Duration;

use campanile_core::{BootstrapError, Config, Rank, Scope, Source};

pub use exit::{Exit, Failure, Outcome, RankOutcome};
use guardian::Guardian;
use job::Job;
use signals::Signals;

use crate::StoreServer;

/// What is done with the ranks' standard output. Their standard error is always passed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// Each line goes to the launcher's, behind `[rank] `.
    #[default]
    Prefixed,
    /// It is kept, for [`RankOutcome::stdout`].
    Captured,
}

/// A job that is to be started: N processes that run one command, each told which rank it is.
///
/// Each finds `CAMPANILE_RANK`, `CAMPANILE_WORLD_SIZE`, `CAMPANILE_LOCAL_RANK` and `CAMPANILE_STORE` in its environment
/// (see [`from_env`](crate::from_env)), beside the launcher's own; its standard input is empty.
///
/// ```
/// use campanile_bootstrap::{Launch, Output};
///
/// let script = "echo $CAMPANILE_RANK of $CAMPANILE_WORLD_SIZE";
/// let outcome = Launch::new("sh", ["-c", script], 2).output(Output::Captured).run()?;
/// assert!(outcome.failure.is_none());
/// assert_eq!(outcome.ranks[1].stdout, b"1 of 2\n");
/// # Ok::<(), campanile_bootstrap::LaunchError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Launch {
    program: OsString,
    arguments: Vec<OsString>,
    ranks: usize,
    environment: Vec<(OsString, OsString)>,
    timeout: Option<Duration>,
    grace: Duration,
    output: Output,
    forward_signals: bool,
}

impl Launch {
    /// Most ranks of a job: all run on this machine, each with pipes and a process descriptor here.
    pub const MAX_RANKS: usize = 4096;

    /// `ranks` processes of `program`, which is looked up in `PATH` if it has no slash.
    pub fn new(
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        ranks: usize,
    ) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            arguments: arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect(),
            ranks,
            environment: Vec::new(),
            timeout: None,
            grace: Duration::from_secs(2),
            output: Output::default(),
            forward_signals: false,
        }
    }

    /// `ranks` processes of the program that runs now.
    ///
    /// # Errors
    /// [`LaunchError::System`] if the system does not tell which that is.
    pub fn current_exe(
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        ranks: usize,
    ) -> Result<Self, LaunchError> {
        let program = std::env::current_exe().map_err(system("finding out which program this is"))?;
        Ok(Self::new(program, arguments, ranks))
    }

    /// Sets a variable in the environment of every rank.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Gives every rank the settings of `config` that are not defaults, whatever the launcher's environment and file
    /// say. Without, they read these themselves, so what the launcher was told by other means does not reach them.
    #[must_use]
    pub fn config(mut self, config: &Config) -> Self {
        // The file was read here; it would override the environment.
        self = self.env("CAMPANILE_CONFIG", "unset");
        for setting in config.settings() {
            if setting.variable.scope == Scope::Job && setting.source != Source::Default {
                self = self.env(setting.variable.name, setting.value);
            }
        }
        self
    }

    /// Bounds the time of the whole job. Without, it may take as long as it likes.
    #[must_use]
    pub fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }

    /// The time that the other ranks have after a failure to end by themselves, and again after SIGTERM. Default: 2 s.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// What is done with the ranks' standard output.
    #[must_use]
    pub fn output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// Whether SIGINT, SIGTERM and SIGHUP to this process are passed on to the ranks while the job runs, instead of
    /// what they do otherwise. For a program whose whole business is the job. Default: no.
    #[must_use]
    pub fn forward_signals(mut self, forward: bool) -> Self {
        self.forward_signals = forward;
        self
    }

    /// Starts the ranks, and returns when all have ended.
    ///
    /// # Errors
    /// [`LaunchError`] if a rank could not be started; those that were are killed. Otherwise there is an [`Outcome`],
    /// however it went.
    pub fn run(&self) -> Result<Outcome, LaunchError> {
        if !(1..=Self::MAX_RANKS).contains(&self.ranks) {
            return Err(LaunchError::Ranks { given: self.ranks });
        }
        // Before any other thread of this launch exists: it forks.
        let guardian = Guardian::start(self.ranks).map_err(system("starting the guardian process"))?;
        let signals = match self.forward_signals {
            true => Some(Signals::catch().map_err(system("catching signals"))?),
            false => None,
        };
        let store = StoreServer::start()?;
        Job::new(self, guardian, signals)?.run(store.address())
    }
}

/// A job could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// No job has that many ranks.
    #[error("a job of {given} ranks cannot be started on one machine; give a number from 1 to {}", Launch::MAX_RANKS)]
    Ranks {
        /// What was given.
        given: usize,
    },
    /// There is no such program.
    #[error("cannot start {program:?}: {reason}; give a program in PATH, or the path of an executable file")]
    Program {
        /// What was given.
        program: String,
        /// Why not.
        reason: io::Error,
    },
    /// The system refused a process.
    #[error("cannot start {rank} ({program:?}): {reason}")]
    Start {
        /// Which.
        rank: Rank,
        /// What was given.
        program: String,
        /// Why not.
        reason: io::Error,
    },
    /// The system refused something else.
    #[error("{what}: {reason}")]
    System {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        reason: io::Error,
    },
    /// The store could not be started.
    #[error(transparent)]
    Store(#[from] BootstrapError),
}

impl LaunchError {
    /// Whether the caller asked for something that cannot be, as opposed to a system that refused.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Ranks { .. } | Self::Program { .. })
    }
}

fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> LaunchError {
    move |error| LaunchError::System { what, reason: error.into() }
}
