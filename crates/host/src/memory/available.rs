//! How much memory this process may still take without being killed for it.
//!
//! Three things bound it: the machine (`MemAvailable`), the memory cgroups above this process, version 1 or 2, each
//! `limit - usage`, and nothing else (a memfd is on the kernel's internal mount, which has no size limit). Page cache
//! that the kernel would drop first is not counted as used: `MemAvailable` leaves it out already, and for a cgroup its
//! `active_file` and `inactive_file` are given back. Pages of shared memory are never in those two lists.
//!
//! Files are read below a root that is an argument, and their text is parsed by pure functions.

use std::path::{Path, PathBuf};

use super::MemoryError;

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
    // A process without cgroups (a kernel without them, or /proc hidden) has no limit by them.
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut least = machine;
    for group in memory_cgroups(&groups) {
        for directory in group.directories(root) {
            if let Some(left) = group.left(&directory) {
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

/// A memory cgroup of this process.
#[derive(Debug, PartialEq, Eq)]
struct MemoryCgroup {
    version: Version,
    /// As in `/proc/self/cgroup`, from the root of the hierarchy.
    path: String,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Version {
    One,
    Two,
}

/// The memory cgroups in the text of `/proc/self/cgroup`, lines of `id:controllers:path`. The line of version 2 has
/// id 0 and no controllers; it is there also on hybrid machines, whose memory controller is version 1.
fn memory_cgroups(cgroup: &str) -> Vec<MemoryCgroup> {
    let mut found = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let version = if controllers.is_empty() {
            Version::Two
        } else if controllers.split(',').any(|name| name == "memory") {
            Version::One
        } else {
            continue;
        };
        found.push(MemoryCgroup { version, path: path.to_owned() });
    }
    found
}

impl MemoryCgroup {
    /// The directories of this group and of all groups above it: a limit anywhere on the way binds. In a container
    /// whose `/sys/fs/cgroup` shows only its own part, the lower names do not exist and the last directory is its
    /// limit.
    fn directories(&self, root: &Path) -> Vec<PathBuf> {
        let mount = root.join(match self.version {
            Version::One => "sys/fs/cgroup/memory",
            Version::Two => "sys/fs/cgroup",
        });
        // A group outside the process's cgroup namespace is shown as `/../name`: nothing of it can be seen.
        let path = if self.path.contains("/..") { "" } else { self.path.trim_start_matches('/') };
        Path::new(path).ancestors().map(|group| mount.join(group)).collect()
    }

    /// Bytes left in the group of `directory`, or `None` if it has no limit (or no such directory, or no memory
    /// controller).
    fn left(&self, directory: &Path) -> Option<u64> {
        // Beyond `memory.high` a process is not killed but slowed down until it hardly moves.
        let (limits, usage, prefix): (&[&str], _, _) = match self.version {
            Version::One => (&["memory.limit_in_bytes"], "memory.usage_in_bytes", "total_"),
            Version::Two => (&["memory.max", "memory.high"], "memory.current", ""),
        };
        let read = |name: &str| std::fs::read_to_string(directory.join(name)).ok();
        let limit = limits.iter().filter_map(|name| limit_bytes(&read(name)?)).min()?;
        let usage = read(usage)?.trim().parse::<u64>().ok()?;
        let cache = page_cache(&read("memory.stat").unwrap_or_default(), prefix);
        Some(limit.saturating_sub(usage.saturating_sub(cache)))
    }
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
    fn memory_cgroups_of_both_versions_are_found() {
        let text = "9:name=systemd:/\n4:memory:/a:b/c\n3:cpuset,memory:/d\n2:cpuacct:/\nnonsense\n0::/e\n";
        let group = |version, path: &str| MemoryCgroup { version, path: path.to_owned() };
        assert_eq!(
            memory_cgroups(text),
            [group(Version::One, "/a:b/c"), group(Version::One, "/d"), group(Version::Two, "/e")]
        );
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
