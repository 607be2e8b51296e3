//! A running job: its processes, and the loop that starts and supervises them.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use campanile_core::Rank;
use campanile_host::process::{Pidfd, ProcessError, Signal, die_with_parent};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, kill_process_group};

use super::exit::{Exit, Failure, Outcome, RankOutcome};
use super::guardian::{self, Guardian};
use super::output::{Content, Lines, Pipe, Sink};
use super::signals::Signals;
use super::{Launch, LaunchError, Output, system};
use crate::poll::poll_until;

/// How long a process that got SIGKILL may take to die before it is given up.
const DYING: Duration = Duration::from_secs(10);

/// How long ranks are started before the others are looked after.
const STARTING: Duration = Duration::from_millis(20);

/// A job whose ranks are being started or have been.
pub(super) struct Job<'a> {
    launch: &'a Launch,
    /// In order of rank. Before `guardian`: they are gone when it goes.
    processes: Vec<Process>,
    guardian: Guardian,
    signals: Option<Signals>,
    sinks: Vec<Sink>,
    /// The sinks of stdout and stderr.
    standard: [usize; 2],
    start: Instant,
    ending: Option<Ending>,
}

/// The process of a rank.
struct Process {
    rank: Rank,
    child: Child,
    group: Pid,
    pidfd: Pidfd,
    exit: Option<Exit>,
    /// Its stdout and stderr.
    pipes: [Pipe; 2],
}

/// A job that ends because something went wrong.
struct Ending {
    failure: Failure,
    step: Step,
    /// When the next step is due.
    deadline: Instant,
}

/// What has been done so far to end the ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Nothing: they may notice themselves.
    Grace,
    /// They were asked, by a signal.
    Asked,
    /// They got SIGKILL.
    Killed,
    /// They did not die, or their output is not read in time.
    GivenUp,
}

/// What an entry of the poll list belongs to.
enum Source {
    Signals,
    Process(usize),
    Pipe(usize, usize),
    Sink(usize),
}

impl<'a> Job<'a> {
    pub(super) fn new(launch: &'a Launch, guardian: Guardian, signals: Option<Signals>) -> Result<Self, LaunchError> {
        let (sinks, standard) = Sink::standard().map_err(system("opening standard output and standard error"))?;
        let (processes, start) = (Vec::with_capacity(launch.ranks), Instant::now());
        Ok(Self { launch, processes, guardian, signals, sinks, standard, start, ending: None })
    }

    /// Starts the process of a rank.
    fn start(&mut self, rank: Rank, store: &str) -> Result<(), LaunchError> {
        let launch = self.launch;
        let program = || launch.program.to_string_lossy().into_owned();
        let mut command = Command::new(&launch.program);
        command
            .args(&launch.arguments)
            .envs(launch.environment.iter().map(|(name, value)| (name, value)))
            .env("CAMPANILE_RANK", rank.0.to_string())
            .env("CAMPANILE_LOCAL_RANK", rank.0.to_string())
            .env("CAMPANILE_WORLD_SIZE", launch.ranks.to_string())
            .env("CAMPANILE_STORE", store)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own, with the pid of its leader as number.
            .process_group(0);
        let (launcher, guardian) = (std::process::id(), self.guardian.socket());
        let before_exec = move || {
            guardian::make_known(&guardian);
            die_with_parent(launcher)
        };
        // SAFETY: the closure runs between fork and exec, where only async-signal-safe calls are allowed:
        // `make_known` is a `getpid` and a `send`, `die_with_parent` is said to be one by its documentation; nothing
        // is allocated.
        unsafe { command.pre_exec(before_exec) };
        let mut child = command.spawn().map_err(|reason| match reason.raw_os_error() {
            // No number: the name has a NUL in it.
            None | Some(libc::ENOENT | libc::EACCES | libc::ENOEXEC | libc::ENOTDIR) => {
                LaunchError::Program { program: program(), reason }
            }
            Some(_) => LaunchError::Start { rank, program: program(), reason },
        })?;
        match self.adopt(rank, &mut child) {
            Ok((group, pidfd, pipes)) => {
                self.processes.push(Process { rank, child, group, pidfd, exit: None, pipes });
                Ok(())
            }
            Err(reason) => {
                // Not waited for yet, so its number still means it.
                let _ = child.kill();
                let _ = child.wait();
                Err(LaunchError::Start { rank, program: program(), reason })
            }
        }
    }

    /// What is needed to supervise a child.
    fn adopt(&self, rank: Rank, child: &mut Child) -> std::io::Result<(Pid, Pidfd, [Pipe; 2])> {
        let pidfd = Pidfd::open(child.id()).map_err(|error| match error {
            ProcessError::System { source, .. } => source,
            other => std::io::Error::other(other),
        })?;
        let stdout = OwnedFd::from(child.stdout.take().expect("stdout was asked to be a pipe"));
        let stderr = OwnedFd::from(child.stderr.take().expect("stderr was asked to be a pipe"));
        let passed_on = |stream: usize| Content::Lines(Lines::of(rank), self.standard[stream]);
        let content = match self.launch.output {
            Output::Prefixed => passed_on(0),
            Output::Captured => Content::Captured(Vec::new()),
        };
        Ok((Pid::from_child(child), pidfd, [Pipe::new(stdout, content)?, Pipe::new(stderr, passed_on(1))?]))
    }

    /// Starts the ranks, waits for the end of all, passes on what they write, and ends them all if something goes wrong.
    pub(super) fn run(mut self, store: &str) -> Result<Outcome, LaunchError> {
        while !self.done() {
            let pause = after(STARTING);
            while self.is_starting() && Instant::now() < pause {
                self.start(Rank::new(self.processes.len()), store)?;
            }
            let sources = self.poll().map_err(system("poll"))?;
            let mut failures = Vec::new();
            let mut signalled = false;
            for source in sources {
                match source {
                    Source::Signals => signalled = true,
                    Source::Process(index) => failures.extend(self.reap(index)),
                    Source::Pipe(index, stream) => {
                        self.processes[index].pipes[stream].read(&mut self.sinks);
                    }
                    Source::Sink(index) => self.write(index),
                }
            }
            // Of several at once: killed by a signal before exited, then the lowest rank.
            failures.sort_by_key(|(_, exit)| !matches!(exit, Exit::Signal(_)));
            if let Some((rank, exit)) = failures.into_iter().next() {
                self.end(Failure::Rank { rank, exit });
            }
            self.keep_deadline();
            for process in self.processes.iter_mut().filter(|process| process.exit.is_some()) {
                process.pipes.iter_mut().for_each(|pipe| pipe.drain(&mut self.sinks));
            }
            // A signal that comes when everything is done interrupts nothing.
            if signalled && !self.done() {
                self.take_signals();
            }
        }
        let failure = self.ending.take().map(|ending| ending.failure);
        let processes = std::mem::take(&mut self.processes);
        let not_started = RankOutcome { exit: Exit::NotStarted, stdout: Vec::new() };
        let not_started = std::iter::repeat_n(not_started, self.launch.ranks - processes.len());
        let ranks = processes.into_iter().map(|process| {
            let [stdout, _] = process.pipes;
            RankOutcome { exit: process.exit.unwrap_or(Exit::Stuck), stdout: stdout.into_captured() }
        });
        Ok(Outcome { ranks: ranks.chain(not_started).collect(), failure })
    }

    fn done(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| ending.step == Step::GivenUp)
            || (self.all_ended()
                && self.processes.iter().all(|process| process.pipes.iter().all(Pipe::at_end))
                && self.sinks.iter().all(Sink::is_idle))
    }

    /// Whether there are ranks that are still to be started.
    fn is_starting(&self) -> bool {
        self.ending.is_none() && self.processes.len() < self.launch.ranks
    }

    /// Whether all ranks have ended that were started, and no more will be.
    fn all_ended(&self) -> bool {
        !self.is_starting() && self.processes.iter().all(|process| process.exit.is_some())
    }

    /// When something is due although nothing happens.
    fn deadline(&self) -> Option<Instant> {
        match &self.ending {
            Some(ending) if !self.only_read_by_nobody() => Some(ending.deadline),
            _ => self.launch.timeout.and_then(|timeout| self.start.checked_add(timeout)),
        }
    }

    /// Whether a rank has failed, all have ended, and only the reader of their output is slow. It is waited for like
    /// after a success: the end of the output is what tells why.
    fn only_read_by_nobody(&self) -> bool {
        let failure = self.ending.as_ref().map(|ending| &ending.failure);
        matches!(failure, Some(Failure::Rank { .. })) && self.all_ended()
    }

    /// Waits for an event or the next deadline, not at all while ranks are to be started; what events there are.
    fn poll(&mut self) -> std::io::Result<Vec<Source>> {
        let deadline = if self.is_starting() { Some(Instant::now()) } else { self.deadline() };
        let mut sources = Vec::new();
        let mut fds = Vec::new();
        if let Some(signals) = &self.signals {
            sources.push(Source::Signals);
            fds.push(PollFd::new(signals, PollFlags::IN));
        }
        for (index, process) in self.processes.iter().enumerate() {
            if process.exit.is_none() {
                sources.push(Source::Process(index));
                fds.push(PollFd::new(&process.pidfd, PollFlags::IN));
            }
            for (stream, pipe) in process.pipes.iter().enumerate() {
                if let Some(fd) = pipe.poll_fd(&self.sinks) {
                    sources.push(Source::Pipe(index, stream));
                    fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
                }
            }
        }
        for (index, sink) in self.sinks.iter().enumerate().filter(|(_, sink)| !sink.is_idle()) {
            sources.push(Source::Sink(index));
            fds.push(PollFd::new(sink, PollFlags::OUT));
        }
        poll_until(&mut fds, deadline)?;
        let ready = fds.iter().map(|fd| !fd.revents().is_empty());
        Ok(sources.into_iter().zip(ready).filter_map(|(source, ready)| ready.then_some(source)).collect())
    }

    /// Takes note of the end of a process; a failure, if it is one.
    fn reap(&mut self, index: usize) -> Option<(Rank, Exit)> {
        let exit = self.processes[index].reap(&self.guardian)?;
        if let Some(ending) = self.ending.as_mut().filter(|_| self.processes.iter().all(|it| it.exit.is_some())) {
            // What is left is to be read.
            ending.deadline = after(self.launch.grace);
        }
        (!exit.success()).then_some((self.processes[index].rank, exit))
    }

    fn write(&mut self, index: usize) {
        let sink = &mut self.sinks[index];
        if let Err(errno) = sink.write() {
            sink.discard();
            let (stream, reason) = (sink.name(), std::io::Error::from(errno).to_string());
            self.end(Failure::Output { stream, reason });
        }
    }

    fn take_signals(&mut self) {
        while let Some(signal) = self.signals.as_mut().and_then(Signals::take) {
            match &self.ending {
                None => self.end(Failure::Interrupted { signal }),
                // Nothing is faster than SIGKILL, and what got it is still to be reaped.
                Some(ending) if ending.step == Step::Killed => {}
                // Whoever sends another one does not want to wait.
                Some(_) => self.next_step(Signal::from_named_raw(signal).unwrap_or(Signal::TERM)),
            }
        }
    }

    fn keep_deadline(&mut self) {
        if self.deadline().is_none_or(|deadline| Instant::now() < deadline) {
            return;
        }
        if self.only_read_by_nobody() {
            self.give_up();
        } else if self.ending.is_some() {
            self.next_step(Signal::TERM);
        } else {
            let has_ended = |rank: &usize| self.processes.get(*rank).is_some_and(|process| process.exit.is_some());
            let running = (0..self.launch.ranks).filter(|rank| !has_ended(rank)).map(Rank::new).collect();
            self.end(Failure::Timeout { after: self.launch.timeout.unwrap_or_default(), running });
        }
    }

    fn give_up(&mut self) {
        if let Some(ending) = &mut self.ending {
            ending.step = Step::GivenUp;
        }
    }

    /// Begins to end the job, unless that has begun.
    fn end(&mut self, failure: Failure) {
        if self.ending.is_some() {
            return;
        }
        let ask = match failure {
            Failure::Rank { .. } => None,
            Failure::Interrupted { signal } => Some(Signal::from_named_raw(signal).unwrap_or(Signal::TERM)),
            Failure::Timeout { .. } | Failure::Output { .. } => Some(Signal::TERM),
        };
        self.ending = Some(Ending { failure, step: Step::Grace, deadline: after(self.launch.grace) });
        if let Some(signal) = ask {
            self.next_step(signal);
        }
    }

    /// Takes the next step to end the ranks; if that is to ask them, by `ask`.
    fn next_step(&mut self, ask: Signal) {
        let (all_ended, grace, dying) = (self.all_ended(), after(self.launch.grace), after(DYING));
        let Some(ending) = &mut self.ending else { return };
        let signal = match ending.step {
            Step::Grace => {
                (ending.step, ending.deadline) = (Step::Asked, grace);
                ask
            }
            Step::Asked if !all_ended => {
                (ending.step, ending.deadline) = (Step::Killed, dying);
                Signal::KILL
            }
            _ => return self.give_up(),
        };
        self.processes.iter().for_each(|process| process.signal(signal));
    }
}

fn after(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now)
}

impl Process {
    /// If the process has ended: kills what is left of its group, takes its exit status, and returns that.
    fn reap(&mut self, guardian: &Guardian) -> Option<Exit> {
        let ended = self.pidfd.wait(Instant::now()).unwrap_or(false);
        if self.exit.is_some() || !ended {
            return None;
        }
        // It has ended and was not yet waited for, so the number of the group cannot have come to mean another one.
        let _ = kill_process_group(self.group, Signal::KILL);
        guardian.forget(self.group);
        self.exit = self.child.wait().ok().map(Exit::from).or(Some(Exit::Stuck));
        self.exit
    }

    /// Sends a signal to the group, if the process has not been reaped.
    fn signal(&self, signal: Signal) {
        if self.exit.is_none() {
            // The leader was not waited for, so there is such a group. It may be another user's by now (set-uid).
            if let Err(errno) = kill_process_group(self.group, signal) {
                tracing::warn!(rank = self.rank.0, %errno, ?signal, "the rank cannot be signalled");
            }
        }
    }
}

impl Drop for Job<'_> {
    /// Kills and reaps what is left: some, if not all ranks could be started.
    fn drop(&mut self) {
        self.processes.iter().for_each(|process| process.signal(Signal::KILL));
        let deadline = after(DYING);
        for process in self.processes.iter_mut().filter(|process| process.exit.is_none()) {
            if process.pidfd.wait(deadline).unwrap_or(false) {
                process.reap(&self.guardian);
            }
        }
    }
}
