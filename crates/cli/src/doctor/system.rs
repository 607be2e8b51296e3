//! The kernel, the namespaces and the limits of this process.

use campanile::host::kernel::{Kernel, Version};
use campanile::host::limits::Limits;
use campanile::host::namespace::Namespace;

use super::check::{Check, Verdict};

/// `pidfd_open`, without which a death is not seen at once.
const NEEDED: Version = Version { major: 5, minor: 3 };
/// `MADV_COLLAPSE`, with which windows get huge pages.
const WANTED: Version = Version { major: 6, minor: 1 };

/// Descriptors of a rank that knows no peer.
const OPEN_FILES: u64 = 64;
/// Descriptors for each peer: a channel, its control block, and its part of every window; of those a job has a dozen.
const OPEN_FILES_A_PEER: u64 = 16;

/// The version of the kernel.
pub fn version(kernel: &Kernel) -> Check {
    let (name, matters) = ("kernel", "shm: Linux 5.3 is needed, 6.1 gives windows huge pages");
    let found = kernel.release.clone().unwrap_or_else(|| "unknown".to_owned());
    match kernel.version() {
        None => Check::not(name, Verdict::Warning, found, matters, "mount /proc"),
        Some(version) if version < NEEDED => {
            Check::not(name, Verdict::Broken, found, matters, "run a newer kernel; a container has that of its host")
        }
        Some(version) if version < WANTED => {
            Check::not(name, Verdict::Note, found, matters, "nothing, unless the huge pages are wanted")
        }
        Some(_) => Check::ok(name, found, matters),
    }
}

/// What time is counted with.
pub fn clock(kernel: &Kernel) -> Check {
    let (name, matters) =
        ("clock source", "all: deadlines and measurements; one that needs a system call costs 1 µs a look");
    match kernel.clock_source.as_deref() {
        // Read without a system call: see `clock_mode` of the vDSO.
        Some(fast @ ("tsc" | "kvm-clock" | "arch_sys_counter" | "hyperv_clocksource_tsc_page")) => {
            Check::ok(name, fast, matters)
        }
        Some(slow) => Check::not(
            name,
            Verdict::Warning,
            slow,
            matters,
            "find out why the kernel gave up on the CPU's counter (dmesg, clocksource)",
        ),
        None => Check::ok(name, "the kernel does not tell", matters),
    }
}

/// Whether other processes can be traced.
pub fn yama(kernel: &Kernel) -> Check {
    let matters = "two ranks that gather large blocks in memory of their own: shm has the kernel copy them (CMA)";
    match kernel.ptrace_scope {
        None => Check::ok("ptrace", "no Yama", matters),
        Some(0) => Check::ok("ptrace", "ptrace_scope 0", matters),
        Some(scope) => Check::not(
            "ptrace",
            Verdict::Note,
            format!(
                "ptrace_scope {scope}: ranks may not read each other's private memory; blocks go through shared memory"
            ),
            matters,
            "put blocks into the collective's input, or set kernel.yama.ptrace_scope to 0 if this machine allows it",
        ),
    }
}

/// What this process has of its own.
pub fn namespaces(namespaces: &[Namespace]) -> Check {
    let matters = "shm: ranks share memory only where net, user and time are the same; pid and ipc do not matter";
    let of = |initial: Option<bool>| {
        let names = namespaces.iter().filter(|namespace| namespace.initial == initial);
        names.map(|namespace| format!("{} {}", namespace.kind, namespace.inode)).collect::<Vec<_>>()
    };
    let (own, unknown) = (of(Some(false)), of(None));
    let own_text = match own.as_slice() {
        [] => "those of the machine".to_owned(),
        own => format!("its own (a container): {}", own.join(", ")),
    };
    let found = match unknown.as_slice() {
        [] => own_text,
        unknown => format!("{own_text}; {}", unknown.join(", ")),
    };
    let apart = namespaces.iter().any(|it| Namespace::SHARED.contains(&it.kind) && it.initial == Some(false));
    if !apart {
        return Check::ok("namespaces", found, matters);
    }
    let todo = "for ranks in several containers of this machine: docker run --network=host, and no user namespace each";
    Check::not("namespaces", Verdict::Note, found, matters, todo)
}

/// Descriptors that this process may have.
pub fn open_files(limits: &Limits, ranks: usize) -> Check {
    let (name, matters) = ("open files", "shm: some 16 descriptors a peer: channel, control block, windows");
    let needed = OPEN_FILES + OPEN_FILES_A_PEER * ranks as u64;
    let Some(limit) = limits.open_files else { return Check::ok(name, "the kernel does not tell", matters) };
    match limit.soft {
        None => Check::ok(name, "unlimited", matters),
        Some(soft) if soft >= needed => Check::ok(name, format!("{soft}; {ranks} ranks need some {needed}"), matters),
        Some(soft) => Check::not(
            name,
            Verdict::Warning,
            format!("{soft}; {ranks} ranks need some {needed}"),
            matters,
            format!("ulimit -n {needed}, up to the hard limit of {}", hard(limit.hard)),
        ),
    }
}

fn hard(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}
