//! How much memory this process may still take without being killed for it.
//!
//! Three things bound it: the machine (`MemAvailable`), the memory cgroups above this process, version 1 or 2, each
//! `limit - usage`, and nothing else (a memfd is on the kernel's internal mount, which has no size limit). Page cache
//! that the kernel would drop first is not counted as used: `MemAvailable` leaves it out already, and for a cgroup its
//! `active_file` and `inactive_file` are given back. Pages of shared memory are never in those two lists.
//!
//! Files are read below a root that is an argument, and their text is parsed by pure functions.

use std::path::Path;

use super::MemoryError;
use crate::cgroup::{Cgroup, Version};

/// Bytes that can still be taken before the machine or a memory cgroup of this process runs out. A snapshot.
///
/// # Errors
/// [`MemoryError::System`] if `/proc/meminfo` cannot be read or has no `MemAvailable` (Linux before 3.14).
pub fn available() -> Result<u64, MemoryError> {
    available_below(Path::new("/"))
}

/// [`available`] for the `/proc` and `/sys` below `root`.
pub(crate) fn available_below(root: &Path) -> Result<u64, MemoryError> {
    let path = root.join("proc/meminfo");
    let system = |source| MemoryError::System { operation: "reading MemAvailable of /proc/meminfo", bytes: 0, source };
    let text = std::fs::read_to_string(path).map_err(system)?;
    let machine = mem_available(&text).ok_or_else(|| system(std::io::Error::from(std::io::ErrorKind::InvalidData)))?;
    let mut least = machine;
    for group in Cgroup::of_process(root, "memory") {
        for directory in group.directories(root) {
            if let Some(left) = left(group.version, &directory) {
                least = least.min(left);
            }
        }
    }
    Ok(least)
}

/// The bytes of the `MemAvailable` line of `/proc/meminfo`.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    kilobytes.checked_mul(1024)
}

/// Bytes left in the group of `directory`, or `None` if it has no limit (or no such directory, or no memory
/// controller).
fn left(version: Version, directory: &Path) -> Option<u64> {
    // Beyond `memory.high` a process is not killed but slowed down until it hardly moves.
    let (limits, usage, prefix): (&[&str], _, _) = match version {
        Version::One => (&["memory.limit_in_bytes"], "memory.usage_in_bytes", "total_"),
        Version::Two => (&["memory.max", "memory.high"], "memory.current", ""),
    };
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).ok();
    let limit = limits.iter().filter_map(|name| limit_bytes(&read(name)?)).min()?;
    let usage = read(usage)?.trim().parse::<u64>().ok()?;
    let cache = page_cache(&read("memory.stat").unwrap_or_default(), prefix);
    Some(limit.saturating_sub(usage.saturating_sub(cache)))
}

/// A limit file's bytes; `None` for `max` (version 2). Version 1 writes the largest page-aligned i64 for none, which
/// as a number bounds nothing.
fn limit_bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Droppable page cache of `memory.stat`: the sum of its `active_file` and `inactive_file`. `prefix` is `total_` for
/// version 1, where the plain names leave out the groups below.
fn page_cache(stat: &str, prefix: &str) -> u64 {
    let value = |name: &str| {
        stat.lines()
            .find_map(|line| line.strip_prefix(prefix)?.strip_prefix(name)?.strip_prefix(' '))
            .and_then(|value| value.trim().parse::<u64>().ok())
            .unwrap_or(0)
    };
    value("active_file").saturating_add(value("inactive_file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       24684084 kB\nMemFree:        23880956 kB\nMemAvailable:   24207192 kB\n\
                           Buffers:           12668 kB\n";
    const AVAILABLE: u64 = 24_207_192 * 1024;

    /// A root with these files below it.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary directory");
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("has a parent")).expect("writable");
            std::fs::write(path, text).expect("writable");
        }
        root
    }

    fn available(files: &[(&str, &str)]) -> u64 {
        available_below(root(files).path()).expect("meminfo is there")
    }

    #[test]
    fn meminfo_is_read_in_bytes() {
        assert_eq!(mem_available(MEMINFO), Some(AVAILABLE));
        assert_eq!(mem_available("MemFree: 5 kB\n"), None);
        assert_eq!(mem_available("MemAvailable: 5 MB\n"), None);
        assert_eq!(mem_available("MemAvailable: 18446744073709551615 kB\n"), None);
    }

    #[test]
    fn no_meminfo_is_an_error() {
        let error = available_below(root(&[]).path()).expect_err("nothing there");
        assert!(error.to_string().contains("/proc/meminfo"), "{error}");
    }

    #[test]
    fn without_cgroups_the_machine_is_the_bound() {
        assert_eq!(available(&[("proc/meminfo", MEMINFO)]), AVAILABLE);
        assert_eq!(available(&[("proc/meminfo", MEMINFO), ("proc/self/cgroup", "0::/\n")]), AVAILABLE);
    }

    #[test]
    fn the_tightest_group_on_the_way_up_binds() {
        let files = |inner_max| {
            [
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "0::/outer/inner\n"),
                ("sys/fs/cgroup/outer/memory.max", "5000000\n"),
                ("sys/fs/cgroup/outer/memory.current", "1000000\n"),
                ("sys/fs/cgroup/outer/inner/memory.max", inner_max),
                ("sys/fs/cgroup/outer/inner/memory.current", "900000\n"),
            ]
        };
        assert_eq!(available(&files("max\n")), 4_000_000);
        assert_eq!(available(&files("1000000\n")), 100_000);
        // A limit that was set below what is used already.
        assert_eq!(available(&files("1000\n")), 0);
    }

    #[test]
    fn memory_high_binds_too() {
        let files = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/g\n"),
            ("sys/fs/cgroup/g/memory.max", "9000000\n"),
            ("sys/fs/cgroup/g/memory.high", "3000000\n"),
            ("sys/fs/cgroup/g/memory.current", "1000000\n"),
        ];
        assert_eq!(available(&files), 2_000_000);
    }

    #[test]
    fn page_cache_is_given_back() {
        let stat =
            "anon 100\nfile 900\ninactive_file 300\nactive_file 200\ntotal_inactive_file 30\ntotal_active_file 20\n";
        let files = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "4:memory:/one\n0::/two\n"),
            ("sys/fs/cgroup/memory/one/memory.limit_in_bytes", "10000\n"),
            ("sys/fs/cgroup/memory/one/memory.usage_in_bytes", "1000\n"),
            ("sys/fs/cgroup/memory/one/memory.stat", stat),
        ];
        assert_eq!(available(&files), 10_000 - (1000 - 50));
        let files = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/two\n"),
            ("sys/fs/cgroup/two/memory.max", "10000\n"),
            ("sys/fs/cgroup/two/memory.current", "1000\n"),
            ("sys/fs/cgroup/two/memory.stat", stat),
        ];
        assert_eq!(available(&files), 10_000 - (1000 - 500));
    }

    #[test]
    fn a_container_that_sees_only_its_own_part_has_its_limit_at_the_mount() {
        for path in ["/docker/0123", "/../other", "/"] {
            let files = [
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", &format!("0::{path}\n")),
                ("sys/fs/cgroup/memory.max", "70000\n"),
                ("sys/fs/cgroup/memory.current", "20000\n"),
                // No group: above the mount.
                ("sys/fs/other/memory.max", "5\n"),
                ("sys/fs/other/memory.current", "0\n"),
            ];
            assert_eq!(available(&files), 50_000, "{path}");
        }
    }

    #[test]
    fn version_one_without_a_limit_bounds_nothing() {
        let files = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n"),
        ];
        assert_eq!(available(&files), AVAILABLE);
    }
}
