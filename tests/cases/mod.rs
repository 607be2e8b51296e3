//! Cases of a program that starts itself as the ranks of its jobs, and so is its own harness.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A name, and what is run; it fails by a panic.
pub type Case = (String, Box<dyn Fn() + Send + Sync>);

/// A case.
pub fn case(name: impl Into<String>, run: impl Fn() + Send + Sync + 'static) -> Case {
    (name.into(), Box::new(run))
}

/// Runs the cases whose names hold an argument of this program, or all, so many `at_once`. They leave nothing in /dev/shm.
pub fn run(mut cases: Vec<Case>, at_once: usize) -> ExitCode {
    let filter: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    cases.retain(|(name, _)| filter.is_empty() || filter.iter().any(|part| name.contains(part)));
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let before = shared_memory_files();
    let work = || {
        while let Some((name, case)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let good = catch_unwind(AssertUnwindSafe(case)).is_ok();
            println!("test {name} ... {}", if good { "ok" } else { "FAILED" });
            failed.fetch_add(usize::from(!good), Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        (0..at_once).for_each(|_| {
            scope.spawn(work);
        });
    });
    // Files of other programs may go away meanwhile.
    let left: Vec<_> = shared_memory_files().difference(&before).cloned().collect();
    if !left.is_empty() {
        eprintln!("left in /dev/shm: {left:?}");
    }
    let failed = failed.into_inner();
    let good = failed == 0 && left.is_empty();
    println!("\ntest result: {}. {} passed; {failed} failed", if good { "ok" } else { "FAILED" }, cases.len() - failed);
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn shared_memory_files() -> BTreeSet<std::ffi::OsString> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).collect()
}
