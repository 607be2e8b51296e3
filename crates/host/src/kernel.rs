//! The kernel: its version, its clock, and what it lets processes see of each other.

use std::path::Path;

/// A version of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second.
    pub minor: u32,
}

impl Version {
    /// From the text of a release, such as `6.8.0-45-generic`.
    #[must_use]
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit()).map(str::parse);
        Some(Self { major: numbers.next()?.ok()?, minor: numbers.next()?.ok()? })
    }
}

/// What the kernel says of itself; `None` where it does not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kernel {
    /// Its release.
    pub release: Option<String>,
    /// What it counts time with, such as `tsc`.
    pub clock_source: Option<String>,
    /// Yama's restriction of ptrace, from 0 to 3; `None` without Yama.
    pub ptrace_scope: Option<u32>,
}

impl Kernel {
    /// The running one, read below `root` (`/` on a machine).
    #[must_use]
    pub fn running(root: &Path) -> Self {
        let read = |path: &str| std::fs::read_to_string(root.join(path)).ok().map(|text| text.trim().to_owned());
        Self {
            release: read("proc/sys/kernel/osrelease"),
            clock_source: read("sys/devices/system/clocksource/clocksource0/current_clocksource"),
            ptrace_scope: read("proc/sys/kernel/yama/ptrace_scope").and_then(|scope| scope.parse().ok()),
        }
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        Version::parse(self.release.as_deref()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let version = |release| Version::parse(release).expect("a version");
        assert_eq!(version("6.8.0-45-generic"), Version { major: 6, minor: 8 });
        assert_eq!(version("5.15+\n"), Version { major: 5, minor: 15 });
        assert!(version("5.10.1") > version("5.3"));
        assert!(Version::parse("").is_none() && Version::parse("6").is_none() && Version::parse("v6.1").is_none());
    }

    #[test]
    fn what_is_not_there_is_none() {
        let root = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(Kernel::running(root.path()), Kernel::default());
        let directory = root.path().join("proc/sys/kernel/yama");
        std::fs::create_dir_all(&directory).expect("writable");
        std::fs::write(directory.join("ptrace_scope"), "1\n").expect("writable");
        std::fs::write(root.path().join("proc/sys/kernel/osrelease"), "6.1.2\n").expect("writable");
        let kernel = Kernel::running(root.path());
        assert_eq!((kernel.ptrace_scope, kernel.version()), (Some(1), Some(Version { major: 6, minor: 1 })));
    }
}
