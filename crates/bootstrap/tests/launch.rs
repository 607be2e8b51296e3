//! The launcher: what it passes on, how jobs end, and that nothing is left behind.
//!
//! Most tests start a launcher as a process of its own (`tests/probe`), which exits with 99 if it left a child behind.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use campanile_bootstrap::{Exit, Failure, Launch, LaunchError, Output as RankOutput};
use campanile_core::{Bind, Config, Rank};
use campanile_host::process::{Pidfd, ProcessError, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, kill_process_group};

const PROBE: &str = env!("CARGO_BIN_EXE_campanile-launch-probe");

/// Far more than anything takes; reached only by what hangs.
const LONG: Duration = Duration::from_secs(60);

/// A launcher that runs `script` in a shell as every rank, with the signals that end a job as a terminal has them: what the
/// tests themselves were started under may ignore some, as `nohup` and a shell's `&` do, and what is ignored stays so.
fn launcher(options: &[&str], script: &str) -> Command {
    let mut command = Command::new(PROBE);
    command.arg("launch").args(options).args(["--", "sh", "-c", script]);
    let by_default = || {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: sets a disposition, which may be done between fork and exec; nothing of ours handles these here.
            if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: it makes system calls only, which are safe to make after fork.
    unsafe { command.pre_exec(by_default) };
    command
}

fn run(options: &[&str], script: &str) -> Output {
    launcher(options, script).output().expect("the probe starts")
}

/// A script that goes on when all ranks have come to it.
fn met(script: &str) -> String {
    format!("{PROBE} gather 60s; {script}")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The last line of stderr: how the job ended.
fn outcome(output: &Output) -> String {
    text(&output.stderr).lines().last().unwrap_or_default().to_owned()
}

/// A launcher that does not outlive its test, also if that fails.
struct Launcher(Child);

impl Launcher {
    fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("the probe starts"))
    }

    fn output(mut self) -> Output {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        if let Some(mut pipe) = self.0.stdout.take() {
            pipe.read_to_end(&mut stdout).unwrap();
        }
        if let Some(mut pipe) = self.0.stderr.take() {
            pipe.read_to_end(&mut stderr).unwrap();
        }
        Output { status: self.0.wait().unwrap(), stdout, stderr }
    }
}

impl Deref for Launcher {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Launcher {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // No error if it was waited for.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A launcher whose ranks each print one line when they are ready: the launcher, and those lines.
fn start(options: &[&str], ranks: usize, script: &str) -> (Launcher, Vec<String>, impl Read + use<>) {
    let ranks_option = format!("ranks={ranks}");
    let mut command = launcher(&[&[ranks_option.as_str()], options].concat(), script);
    let mut child = Launcher::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0));
    let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
    let lines = (0..ranks).map(|_| {
        let mut line = String::new();
        reader.read_line(&mut line).expect("text");
        line
    });
    let lines = lines.collect();
    (child, lines, reader)
}

/// The pids that lines such as `[0] 17 18` tell, opened while they are alive.
fn pidfds(lines: &[String]) -> Vec<(u32, Pidfd)> {
    let numbers = lines.iter().flat_map(|line| line.split_whitespace().skip(1));
    numbers
        .map(|number| number.parse().unwrap_or_else(|_| panic!("{lines:?}")))
        .map(|pid| (pid, Pidfd::open(pid).expect("an open pidfd")))
        .collect()
}

fn assert_all_end(pidfds: &[(u32, Pidfd)]) {
    for (pid, pidfd) in pidfds {
        assert!(pidfd.wait(Instant::now() + LONG).unwrap(), "process {pid} lives on");
    }
}

fn send(child: &Launcher, signal: Signal) {
    Pidfd::open(child.id()).unwrap().send_signal(signal).unwrap();
}

#[test]
fn lines_are_prefixed_and_otherwise_kept() {
    let script = r"printf 'one\n\n\377\376 \r\nlast without end'; printf 'error %s\n' $CAMPANILE_RANK >&2";
    let output = run(&["ranks=3"], script);
    assert_eq!(output.status.code(), Some(0));
    let mut lines: Vec<&[u8]> = output.stdout.split_inclusive(|byte| *byte == b'\n').collect();
    // Stable: the lines of a rank stay in order.
    lines.sort_by_key(|line| line[1]);
    let expected = |rank: u8| {
        let lines: [&[u8]; 4] = [b"one\n", b"\n", b"\xff\xfe \r\n", b"last without end\n"];
        lines.map(|line| [&[b'[', b'0' + rank, b']', b' '], line].concat())
    };
    assert_eq!(lines, (0..3).flat_map(expected).collect::<Vec<_>>());
    let errors: BTreeSet<String> = text(&output.stderr).lines().map(str::to_owned).collect();
    let expected = ["[0] error 0", "[1] error 1", "[2] error 2", "probe: every rank exited with code 0"];
    assert_eq!(errors, expected.map(str::to_owned).into());
}

#[test]
fn long_lines_of_many_ranks_on_both_streams_are_never_torn() {
    let script = r#"line=$(head -c 65536 /dev/zero | tr '\0' "$CAMPANILE_RANK")
        for i in 1 2 3 4 5; do printf '%s\n' "$line"; printf '%s' "$line" >&2; printf '%s\n' "$line" >&2; done"#;
    // Both streams into one pipe, as on a terminal.
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = launcher(&["ranks=4"], script);
    let mut child = Launcher::start(command.stdout(writer.try_clone().unwrap()).stderr(writer));
    drop(command);
    let mut all = Vec::new();
    reader.read_to_end(&mut all).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut seen = [[0; 2]; 4];
    for line in text(&all).lines().filter(|line| !line.starts_with("probe: ")) {
        let (prefix, rest) = line.split_at(4);
        let rank: usize = prefix[1..2].parse().unwrap();
        assert!(prefix == format!("[{rank}] ") && rest.bytes().all(|byte| byte == b'0' + rank as u8), "{prefix}");
        assert!([65536, 2 * 65536].contains(&rest.len()), "a line of {} bytes", rest.len());
        seen[rank][rest.len() / 65536 - 1] += 1;
    }
    assert_eq!(seen, [[5; 2]; 4]);
}

#[test]
fn every_rank_is_told_who_it_is_and_has_nothing_to_read() {
    let script = "echo $CAMPANILE_RANK $CAMPANILE_LOCAL_RANK $CAMPANILE_WORLD_SIZE $CAMPANILE_BIND $EXTRA ${CAMPANILE_STORE:+store}";
    let launch = Launch::new("sh", ["-c", script], 2).output(RankOutput::Captured).env("CAMPANILE_BIND", "none");
    let outcome = launch.env("EXTRA", "more").run().unwrap();
    let said: Vec<String> = outcome.ranks.iter().map(|rank| text(&rank.stdout)).collect();
    assert_eq!(said, ["0 0 2 none more store\n", "1 1 2 none more store\n"]);
    let outcome = Launch::new(PROBE, ["whoami"], 2).output(RankOutput::Captured).run().unwrap();
    assert_eq!(text(&outcome.ranks[1].stdout), "rank 1 of 2\n");
    let mut child = Launcher::start(launcher(&[], "cat; echo end").stdin(Stdio::piped()).stdout(Stdio::piped()));
    child.stdin.take().unwrap().write_all(b"of the launcher\n").unwrap();
    assert_eq!(text(&child.output().stdout), "[0] end\n");
}

#[test]
fn the_launchers_configuration_reaches_the_ranks_whatever_the_file_says() {
    let config = Config::load([("CAMPANILE_PATH", "queue")], Some("bind = \"cores\"\ntimeout = 7")).unwrap();
    let config = config.with_bind(Bind::None).unwrap().with_timeout(Duration::from_micros(1500)).unwrap();
    let script =
        "echo $CAMPANILE_PATH $CAMPANILE_BIND $CAMPANILE_TIMEOUT $CAMPANILE_CONFIG ${CAMPANILE_QUEUE_DEPTH:-default}";
    let launch = Launch::new("sh", ["-c", script], 1).output(RankOutput::Captured);
    // What is in the launcher's environment is inherited, and must not win.
    let outcome = launch.env("CAMPANILE_CONFIG", "/a/file").config(&config).run().unwrap();
    assert_eq!(text(&outcome.ranks[0].stdout), "queue none 0.0015s unset default\n");
}

#[test]
fn captured_output_is_every_byte_of_each_rank() {
    let script = "head -c 1000000 /dev/zero | tr '\\0' $CAMPANILE_RANK; printf end; exit $CAMPANILE_RANK";
    let outcome = Launch::new("sh", ["-c", script], 3).output(RankOutput::Captured).run().unwrap();
    for (rank, outcome) in outcome.ranks.iter().enumerate() {
        assert_eq!(outcome.stdout.len(), 1_000_003);
        assert!(outcome.stdout[..1_000_000].iter().all(|byte| *byte == b'0' + rank as u8));
        assert_eq!(outcome.exit, Exit::Code(rank as i32));
    }
    assert!(matches!(outcome.failure, Some(Failure::Rank { rank: Rank(1 | 2), .. })));
}

#[test]
fn one_failure_ends_all() {
    let output = run(&["ranks=3", "grace=1s"], &met("[ $CAMPANILE_RANK != 1 ] || exit 7; exec sleep 1000"));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(outcome(&output), "probe: rank 1 exited with code 7; ranks 0, 2 were killed by signal 15 (SIGTERM)");
}

#[test]
fn a_rank_that_dies_by_a_signal_is_named_with_it() {
    let output = run(&["ranks=2", "grace=100ms"], "[ $CAMPANILE_RANK != 0 ] || kill -KILL $$; exec sleep 1000");
    assert_eq!(output.status.code(), Some(1));
    assert!(outcome(&output).starts_with("probe: rank 0 was killed by signal 9 (SIGKILL); rank 1 "), "{output:?}");
}

#[test]
fn of_failures_at_the_same_time_the_one_by_a_signal_is_the_first() {
    let script = "trap 'exit 1' USR1; echo $$; while :; do sleep 0.01; done";
    let (child, lines, _rest) = start(&[], 2, script);
    let by_rank =
        |rank: u32| lines.iter().filter(|line| line.starts_with(&format!("[{rank}]"))).cloned().collect::<Vec<_>>();
    let (exits, dies) = (pidfds(&by_rank(0)), pidfds(&by_rank(1)));
    // The launcher sees neither before both.
    send(&child, Signal::STOP);
    exits[0].1.send_signal(Signal::USR1).unwrap();
    assert_all_end(&exits);
    dies[0].1.send_signal(Signal::KILL).unwrap();
    assert_all_end(&dies);
    send(&child, Signal::CONT);
    assert_eq!(outcome(&child.output()), "probe: rank 1 was killed by signal 9 (SIGKILL); rank 0 exited with code 1");
}

#[test]
fn after_a_failure_the_others_may_still_say_what_they_saw() {
    // They notice by themselves that the first has gone: once the launcher has reaped it, it is not in /proc.
    let directory = std::env::temp_dir().join(format!("campanile-launch-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let script = format!(
        "cd {}; if [ $CAMPANILE_RANK = 0 ]; then echo $$ >fifo; exit 3; fi; \
         read -r pid <fifo; while [ -d /proc/$pid ]; do sleep 0.01; done; echo rank 0 is gone; exit 4",
        directory.display()
    );
    assert!(Command::new("mkfifo").arg(directory.join("fifo")).status().unwrap().success());
    let output = run(&["ranks=2", "grace=60s"], &script);
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(text(&output.stdout), "[1] rank 0 is gone\n");
    assert_eq!(outcome(&output), "probe: rank 0 exited with code 3; rank 1 exited with code 4");
}

#[test]
fn who_ignores_sigterm_gets_sigkill() {
    let script = format!("trap '' TERM; {}", met("[ $CAMPANILE_RANK != 0 ] || exit 1; sleep 1000; sleep 1000"));
    let output = run(&["ranks=2", "grace=1s"], &script);
    assert_eq!(outcome(&output), "probe: rank 0 exited with code 1; rank 1 was killed by signal 9 (SIGKILL)");
}

#[test]
fn a_timeout_names_the_ranks_that_were_running() {
    let script = "[ $CAMPANILE_RANK != 1 ] || exit 0; echo before; exec sleep 1000";
    let output = run(&["ranks=3", "timeout=2s", "grace=60s"], script);
    assert_eq!(output.status.code(), Some(1));
    let outcome = outcome(&output);
    assert!(outcome.starts_with("probe: not done after 2.0s; still running: ranks 0, 2; "), "{outcome}");
    assert_eq!(text(&output.stdout).lines().collect::<BTreeSet<_>>(), ["[0] before", "[2] before"].into());
}

#[test]
fn a_rank_that_is_stopped_ends_with_the_job() {
    let output = run(&["ranks=2", "timeout=1s", "grace=100ms"], "kill -STOP $$");
    assert!(outcome(&output).contains("still running: ranks 0, 1; ranks 0, 1 were killed by signal 9"), "{output:?}");
}

#[test]
fn the_time_of_a_job_includes_its_start() {
    // No machine starts as many processes in that time.
    let output = run(&["ranks=200", "timeout=5ms", "grace=100ms"], "exec sleep 1000");
    assert_eq!(output.status.code(), Some(1));
    let said = outcome(&output);
    assert!(
        said.contains("not done after 5.0ms; still running: ranks 0, 1") && said.contains("were not started"),
        "{said}"
    );
}

#[test]
fn signals_to_the_launcher_reach_the_ranks() {
    for (signal, name, number) in [(Signal::INT, "INT", 2), (Signal::TERM, "TERM", 15), (Signal::HUP, "HUP", 1)] {
        let script = format!("trap 'echo got {name}; exit 0' {name}; echo ready; while :; do sleep 0.01; done");
        let (child, lines, mut rest) = start(&["signals", "grace=60s"], 2, &script);
        assert!(lines.iter().all(|line| line.ends_with("ready\n")), "{lines:?}");
        send(&child, signal);
        let mut said = String::new();
        rest.read_to_string(&mut said).unwrap();
        let expected = [format!("[0] got {name}"), format!("[1] got {name}")];
        assert_eq!(said.lines().collect::<BTreeSet<_>>(), expected.iter().map(String::as_str).collect());
        let output = child.output();
        assert_eq!(output.status.code(), Some(1));
        let expected = format!("probe: interrupted by signal {number} (SIG{name}); ranks 0, 1 exited with code 0");
        assert_eq!(outcome(&output), expected);
    }
}

#[test]
fn a_second_signal_does_not_wait() {
    let script = "trap 'echo asked' INT; trap '' TERM; echo ready; while :; do sleep 0.01; done";
    let (child, _, rest) = start(&["signals", "grace=1000s"], 1, script);
    send(&child, Signal::INT);
    let mut line = String::new();
    BufReader::new(rest).read_line(&mut line).unwrap();
    assert_eq!(line, "[0] asked\n");
    send(&child, Signal::INT);
    let output = child.output();
    assert_eq!(outcome(&output), "probe: interrupted by signal 2 (SIGINT); rank 0 was killed by signal 9 (SIGKILL)");
}

#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    // As under nohup.
    let script = format!("trap '' HUP; exec {PROBE} launch signals -- sh -c 'kill -HUP $PPID; echo still here'");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "[0] still here\n".to_owned()));
}

/// Each rank is a shell with a child and a grandchild, and prints all three pids.
const FAMILY: &str = "sh -c 'sleep 1000 & echo $PPID $$ $!; wait' & wait";

#[test]
fn a_launcher_killed_by_sigkill_takes_whole_families_with_it() {
    let (mut child, lines, _rest) = start(&[], 3, FAMILY);
    let family = pidfds(&lines);
    assert_eq!(family.len(), 9);
    // With its whole process group, as a shell or a batch system kills.
    let group = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process_group(group, Signal::KILL).unwrap();
    assert_all_end(&family);
    child.wait().unwrap();
}

#[test]
fn without_its_guardian_too_the_ranks_die_with_the_launcher() {
    let (mut child, lines, _rest) = start(&[], 3, "echo $$; exec sleep 1000");
    let ranks = pidfds(&lines);
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    let mut children = children.split_whitespace().map(|pid| pid.parse().unwrap());
    let guardian = children.find(|child| ranks.iter().all(|(rank, _)| rank != child));
    let guardian = Pidfd::open(guardian.expect("a guardian")).unwrap();
    guardian.send_signal(Signal::KILL).unwrap();
    assert!(guardian.wait(Instant::now() + LONG).unwrap());
    child.kill().unwrap();
    assert_all_end(&ranks);
    child.wait().unwrap();
}

#[test]
fn the_guardian_goes_with_the_launcher_and_holds_nothing_open() {
    let (mut child, _, mut rest) = start(&[], 1, "echo ready; exec sleep 1000");
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    let family: Vec<_> = children
        .split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .map(|pid| (pid, Pidfd::open(pid).unwrap()))
        .collect();
    assert_eq!(family.len(), 2);
    child.kill().unwrap();
    // The end of the launcher's stdout, which a guardian with a copy of it would keep open for as long as it lives.
    rest.read_to_end(&mut Vec::new()).unwrap();
    assert_all_end(&family);
    child.wait().unwrap();
}

#[test]
fn what_a_rank_leaves_running_does_not_outlive_it() {
    let output = run(&["ranks=2"], "sleep 1000 & echo $!");
    assert_eq!(output.status.code(), Some(0));
    for line in text(&output.stdout).lines() {
        let pid = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        // It was killed, and may take a moment to die.
        match Pidfd::open(pid) {
            Ok(pidfd) => assert_all_end(&[(pid, pidfd)]),
            Err(error) => assert!(matches!(error, ProcessError::NotFound { .. }), "{error}"),
        }
    }
}

#[test]
fn who_leaves_the_group_cannot_hold_up_the_job() {
    // A daemon that keeps the rank's stdout open and would write to it for ever.
    let script = "setsid sh -c 'echo $$; exec yes' & read -r _ <fifo";
    let directory = std::env::temp_dir().join(format!("campanile-daemon-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    assert!(Command::new("mkfifo").arg(directory.join("fifo")).status().unwrap().success());
    let mut command = launcher(&["timeout=30s"], script);
    command.current_dir(&directory).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = Launcher::start(&mut command);
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let daemon = pidfds(&[line]);
    std::fs::write(directory.join("fifo"), "end\n").unwrap();
    reader.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    std::fs::remove_dir_all(&directory).unwrap();
    // Its pipe has no reader any more.
    assert_all_end(&daemon);
}

#[test]
fn a_slow_reader_holds_the_ranks_up_and_misses_nothing() {
    let script = "for i in $(seq 2000); do printf '%01000d\\n' $i; done; echo written >&2; exit $CAMPANILE_RANK";
    let mut command = launcher(&["ranks=2", "grace=50ms"], script);
    let mut child = Launcher::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    // Nothing is read yet, and the launcher, which holds 1 MiB, and the pipes have no room for all.
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let mut written = [PollFd::new(&stderr, PollFlags::IN)];
    assert_eq!(poll(&mut written, Some(&Timespec { tv_sec: 0, tv_nsec: 500_000_000 })).unwrap(), 0);
    let mut all = String::new();
    stdout.read_to_string(&mut all).unwrap();
    for rank in 0..2 {
        let lines: Vec<&str> = all.lines().filter(|line| line.starts_with(&format!("[{rank}] "))).collect();
        assert_eq!(lines.len(), 2000);
        assert!(lines.iter().zip(1..).all(|(line, i)| *line == format!("[{rank}] {i:01000}")));
    }
    let mut errors = String::new();
    stderr.read_to_string(&mut errors).unwrap();
    assert!(errors.contains("[0] written\n") && errors.contains("[1] written\n"), "{errors}");
    assert!(errors.ends_with("probe: rank 1 exited with code 1; rank 0 exited with code 0\n"), "{errors}");
}

#[test]
fn a_reader_that_does_not_read_cannot_defeat_the_timeout() {
    let options = ["ranks=2", "timeout=2s", "grace=100ms"];
    let mut child = Launcher::start(launcher(&options, "exec yes").stdout(Stdio::piped()).stderr(Stdio::piped()));
    let _stdout = child.stdout.take();
    let output = child.output();
    assert_eq!(output.status.code(), Some(1));
    assert!(outcome(&output).contains("still running: ranks 0, 1"), "{output:?}");
    // The ranks have ended, only their output is left.
    let mut child = Launcher::start(launcher(&options, "seq 20000").stdout(Stdio::piped()).stderr(Stdio::piped()));
    let _stdout = child.stdout.take();
    let output = child.output();
    assert!(outcome(&output).contains("nobody had read all that they wrote"), "{output:?}");
}

#[test]
fn a_reader_that_goes_away_ends_the_job() {
    let (child, _, rest) = start(&[], 2, "exec yes");
    drop(rest);
    let output = child.output();
    assert_eq!(output.status.code(), Some(1));
    assert!(outcome(&output).starts_with("probe: cannot write to standard output: Broken pipe"), "{output:?}");
}

#[test]
fn what_cannot_be_started_is_named_and_is_usage() {
    for program in ["no-such-program-here", "./no/such/path", "/etc/passwd", "/"] {
        let output = Command::new(PROBE).args(["launch", "ranks=2", "--", program]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(outcome(&output).contains(&format!("cannot start {program:?}")), "{output:?}");
    }
    let nothing: [&str; 0] = [];
    assert!(matches!(Launch::new("true", nothing, 0).run(), Err(LaunchError::Ranks { given: 0 })));
    assert!(matches!(Launch::new("a\0b", nothing, 1).run(), Err(LaunchError::Program { .. })));
}

#[test]
fn if_not_all_can_be_started_none_is_left() {
    // Each rank takes descriptors of the launcher, which may have 32.
    let script = format!("ulimit -n 32; exec {PROBE} launch ranks=20 -- sh -c 'exec sleep 1000'");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(outcome(&output).contains("cannot start rank "), "{output:?}");
}

#[test]
fn a_process_learns_its_place_from_its_environment() {
    let whoami = |variables: &[(&str, &str)]| {
        let output = Command::new(PROBE).arg("whoami").envs(variables.iter().copied()).output().unwrap();
        text(&output.stdout) + &text(&output.stderr)
    };
    assert_eq!(whoami(&[]), "rank 0 of 1\n");
    let partial = whoami(&[("CAMPANILE_RANK", "0"), ("CAMPANILE_STORE", "x")]);
    assert!(
        partial.contains("CAMPANILE_RANK, CAMPANILE_STORE set, but CAMPANILE_WORLD_SIZE, CAMPANILE_LOCAL_RANK not"),
        "{partial}"
    );
    let all = |rank, store| {
        whoami(&[
            ("CAMPANILE_RANK", rank),
            ("CAMPANILE_LOCAL_RANK", "0"),
            ("CAMPANILE_WORLD_SIZE", "2"),
            ("CAMPANILE_STORE", store),
        ])
    };
    assert!(all("2", "x").contains("CAMPANILE_RANK=2 is not below CAMPANILE_WORLD_SIZE=2"));
    assert!(all("0", "no-such-store").contains("nobody listens there"));
    assert!(whoami(&[("CAMPANILE_RANKS", "1")]).contains("did you mean CAMPANILE_RANK?"));
    assert!(
        whoami(&[("CAMPANILE_CONFIG", "/no/such/file")])
            .contains("CAMPANILE_CONFIG = \"/no/such/file\" cannot be read")
    );
}
