//! What the plugin boundary costs: the shared-memory transport linked in, and the same as a file.
//!
//! ```text
//! cargo build --release --package campanile-shm-plugin
//! cargo run --release --package campanile-plugin --example boundary_cost
//! ```
//!
//! One thread posts to itself: `post` of a list, `ring`, `progress`, `test`; figures are for one operation of it.
//! Instructions are counted by letting a
//! copy of this program go one at a time (`PTRACE_SINGLESTEP`), as the difference of two runs of different length, so that
//! what is around the loop cancels out: they are the same at every run of one build. Nanoseconds are medians of batches, the
//! two arms taking turns in one process.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use campanile_bootstrap::ThreadBootstrap;
use campanile_core::{
    CommOptions, Communicator, Completion, LocalAddress, MemoryKind, Op, Queue, QueueOptions, QueueTarget, Rank,
    RemoteAddress, SignalAction, SignalUpdate, Strength, TransportPlugin, Window,
};
use campanile_plugin::Loader;
use campanile_shm::ShmPlugin;

/// Lists of a short counted run; a long one has five times as many.
const COUNTED: usize = 5;
/// Batches of each arm, and lists of a batch.
const BATCHES: usize = 201;
const BATCH: usize = 500;

/// What is posted: name, bytes, with a signal or not, operations of a list.
type Case = (&'static str, u64, bool, usize);
const CASES: [Case; 6] = [
    ("put, 0 B", 0, false, 1),
    ("put, 64 B", 64, false, 1),
    ("put, 4 KiB", 4096, false, 1),
    ("put-signal, 64 B", 64, true, 1),
    ("32 × put, 64 B", 64, false, 32),
    ("32 × put-signal", 64, true, 32),
];
const ARMS: [&str; 2] = ["linked", "file"];

/// One rank, connected to itself.
struct Loopback {
    queue: Arc<dyn Queue>,
    window: Window,
    _comm: Communicator,
}

impl Loopback {
    fn new(arm: &str) -> anyhow::Result<Self> {
        let plugin: &dyn TransportPlugin = match arm {
            "linked" => &ShmPlugin,
            _ => Loader::default().load(&file()?)?,
        };
        let bootstrap = Arc::new(ThreadBootstrap::world(1).remove(0));
        let comm = Communicator::new(bootstrap, plugin, CommOptions::default())?;
        let queue = comm.transport().queue(QueueTarget::Peer(Rank(0)), QueueOptions::default())?;
        Ok(Self { queue, window: comm.window(1 << 16, MemoryKind::Host)?, _comm: comm })
    }

    fn list(&self, (_, bytes, signal, ops): Case) -> Vec<Op> {
        let source = LocalAddress { region: self.window.region().key(), offset: 0 };
        let remote = |offset| RemoteAddress { region: self.window.remote(0).key(), offset };
        let target = remote(1 << 15);
        if !signal {
            return vec![Op::Put { source, target, bytes }; ops];
        }
        let update =
            SignalUpdate { target: remote(1 << 14), value: 1, action: SignalAction::Add, strength: Strength::Strong };
        vec![Op::PutSignal { source, target, bytes, signal: update }; ops]
    }

    /// Posts that list so often.
    fn post(&self, list: &[Op], count: usize) -> anyhow::Result<()> {
        for _ in 0..count {
            let ticket = self.queue.post(list)?;
            self.queue.ring()?;
            self.queue.progress()?;
            anyhow::ensure!(self.queue.test(ticket, Completion::Local)?, "not complete after progress");
        }
        Ok(())
    }
}

/// The library, beside the folder of this program.
fn file() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.parent().and_then(|examples| examples.parent());
    let file = folder.map(|folder| folder.join("libcampanile_shm.so")).filter(|file| file.exists());
    file.ok_or_else(|| anyhow::anyhow!("build the library first: cargo build --release --package campanile-shm-plugin"))
}

/// Instructions between the two stops of a copy of this program that posts `count` operations.
fn instructions(arm: &str, case: usize, count: usize) -> anyhow::Result<u64> {
    let mut child =
        Command::new(std::env::current_exe()?).args([arm, &case.to_string(), &count.to_string()]).spawn()?;
    let pid = i32::try_from(child.id())?;
    let null = std::ptr::null_mut::<libc::c_void>();
    let mut steps = 0;
    for (request, wanted) in [(None, 1), (Some(libc::PTRACE_SINGLESTEP), 2)] {
        loop {
            if let Some(request) = request {
                // SAFETY: the child asked to be traced and is stopped; the arguments are those of the request.
                let done = unsafe { libc::ptrace(request, pid, null, null) };
                anyhow::ensure!(done == 0, "ptrace: {}", std::io::Error::last_os_error());
            }
            let mut status = 0;
            // SAFETY: a child of this process, and a place for its status.
            let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            anyhow::ensure!(waited == pid && libc::WIFSTOPPED(status), "stop {wanted}: the copy ended: {status:#x}");
            match libc::WSTOPSIG(status) {
                libc::SIGSTOP => break,
                _ => steps += 1,
            }
        }
    }
    // SAFETY: as above; the copy goes on to its end.
    unsafe { libc::ptrace(libc::PTRACE_CONT, pid, null, null) };
    anyhow::ensure!(child.wait()?.success(), "the copy failed");
    Ok(steps)
}

/// In the copy: stops until the tracer lets it go on.
fn stop() {
    // SAFETY: a signal to this thread.
    unsafe { libc::raise(libc::SIGSTOP) };
}

fn per_op(arm: &str, case: usize) -> anyhow::Result<f64> {
    let (short, long) = (instructions(arm, case, COUNTED)?, instructions(arm, case, 5 * COUNTED)?);
    Ok((long - short) as f64 / (4 * COUNTED * CASES[case].3) as f64)
}

/// Nanoseconds an operation.
fn median(mut times: Vec<Duration>, ops: usize) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e9 / (BATCH * ops) as f64
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [arm, case, count] = &arguments[..] {
        let (loopback, count) = (Loopback::new(arm)?, count.parse()?);
        let list = loopback.list(CASES[case.parse::<usize>()?]);
        // What is done once, such as binding a symbol, is done.
        loopback.post(&list, COUNTED)?;
        // SAFETY: the parent traces this process.
        unsafe { libc::ptrace(libc::PTRACE_TRACEME) };
        stop();
        loopback.post(&list, count)?;
        stop();
        return Ok(());
    }
    let arms = [Loopback::new(ARMS[0])?, Loopback::new(ARMS[1])?];
    println!("{:18} {:>21} {:>8}   {:>17} {:>8}", "post ring", "instructions", "", "ns", "");
    println!(
        "{:18} {:>10} {:>10} {:>8}   {:>8} {:>8} {:>8}",
        "progress test", "linked", "file", "", "linked", "file", ""
    );
    for (number, case) in CASES.into_iter().enumerate() {
        let (name, _, _, ops) = case;
        print!("{name:18} ");
        let [linked, file] = [per_op(ARMS[0], number)?, per_op(ARMS[1], number)?];
        print!("{linked:10.1} {file:10.1} {:+7.1}%   ", (file / linked - 1.0) * 100.0);
        let lists = [arms[0].list(case), arms[1].list(case)];
        let mut times = [Vec::new(), Vec::new()];
        for batch in 0..2 * BATCHES {
            let (arm, start) = (batch % 2, Instant::now());
            arms[arm].post(&lists[arm], BATCH)?;
            times[arm].push(start.elapsed());
        }
        let [linked, file] = times.map(|times| median(times, ops));
        println!("{linked:8.1} {file:8.1} {:+7.1}%", (file / linked - 1.0) * 100.0);
    }
    Ok(())
}
