//! Control groups: what bounds this process beside the machine. Version 1 and 2.
//!
//! A limit of a group binds all groups below it, so every group from this process's own up to the root of the hierarchy is
//! looked at. Files are read below a root that is an argument.

use std::path::{Path, PathBuf};

/// The version of a hierarchy.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Version {
    One,
    Two,
}

/// A group of this process in the hierarchy of one controller.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cgroup {
    pub(crate) version: Version,
    controller: &'static str,
    /// As in `/proc/self/cgroup`, from the root of the hierarchy.
    path: String,
}

impl Cgroup {
    /// The groups of this process for a controller. None without cgroups (a kernel without them, or `/proc` hidden).
    pub(crate) fn of_process(root: &Path, controller: &'static str) -> Vec<Self> {
        Self::parse(&std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default(), controller)
    }

    /// The groups in the text of `/proc/self/cgroup`, lines of `id:controllers:path`. The line of version 2 has id 0 and
    /// no controllers; it is there also on hybrid machines, whose controllers are version 1.
    fn parse(cgroup: &str, controller: &'static str) -> Vec<Self> {
        let mut found = Vec::new();
        for line in cgroup.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let version = if controllers.is_empty() {
                Version::Two
            } else if controllers.split(',').any(|name| name == controller) {
                Version::One
            } else {
                continue;
            };
            found.push(Self { version, controller, path: path.to_owned() });
        }
        found
    }

    /// The directories of this group and of all groups above it. In a container whose `/sys/fs/cgroup` shows only its own
    /// part, the lower names do not exist and the last directory is its limit.
    pub(crate) fn directories(&self, root: &Path) -> Vec<PathBuf> {
        let mount = root.join("sys/fs/cgroup");
        let mount = match self.version {
            Version::One => mount.join(self.controller),
            Version::Two => mount,
        };
        // A group outside the process's cgroup namespace is shown as `/../name`: nothing of it can be seen.
        let path = if self.path.contains("/..") { "" } else { self.path.trim_start_matches('/') };
        Path::new(path).ancestors().map(|group| mount.join(group)).collect()
    }
}

/// How many CPUs' worth of time this process may use, by the tightest quota of its groups; `None` if there is none.
/// Whoever has used it up is stopped until the period is over, 100 ms as a rule.
#[must_use]
pub fn cpu_quota(root: &Path) -> Option<f64> {
    let groups = Cgroup::of_process(root, "cpu");
    let quotas = groups.iter().flat_map(|group| {
        let quota = |directory: PathBuf| {
            let read = |name: &str| std::fs::read_to_string(directory.join(name)).ok();
            match group.version {
                Version::One => quota(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?),
                Version::Two => {
                    let text = read("cpu.max")?;
                    let (quota_us, period_us) = text.trim().split_once(' ')?;
                    quota(quota_us, period_us)
                }
            }
        };
        group.directories(root).into_iter().filter_map(quota)
    });
    quotas.min_by(f64::total_cmp)
}

/// The quota that two files say; `max` (version 2) and -1 (version 1) say none.
fn quota(quota_us: &str, period_us: &str) -> Option<f64> {
    let (quota, period) = (quota_us.trim().parse::<u64>().ok()?, period_us.trim().parse::<u64>().ok()?);
    (period > 0).then(|| quota as f64 / period as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_both_versions_are_found() {
        let text = "9:name=systemd:/\n4:memory:/a:b/c\n3:cpuset,memory:/d\n2:cpuacct:/\nnonsense\n0::/e\n";
        let group = |version, path: &str| Cgroup { version, controller: "memory", path: path.to_owned() };
        assert_eq!(
            Cgroup::parse(text, "memory"),
            [group(Version::One, "/a:b/c"), group(Version::One, "/d"), group(Version::Two, "/e")]
        );
        assert_eq!(Cgroup::parse("2:cpuacct:/\n1:cpu:/x\n", "cpu").len(), 1);
    }

    fn quota_below(files: &[(&str, &str)]) -> Option<f64> {
        let root = tempfile::tempdir().expect("a temporary directory");
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("has a parent")).expect("writable");
            std::fs::write(path, text).expect("writable");
        }
        cpu_quota(root.path())
    }

    #[test]
    fn the_tightest_cpu_quota_on_the_way_up_binds() {
        let two = |inner| {
            [
                ("proc/self/cgroup", "0::/outer/inner\n"),
                ("sys/fs/cgroup/outer/cpu.max", "400000 100000\n"),
                ("sys/fs/cgroup/outer/inner/cpu.max", inner),
            ]
        };
        assert_eq!(quota_below(&two("max 100000\n")), Some(4.0));
        assert_eq!(quota_below(&two("150000 100000\n")), Some(1.5));
        assert_eq!(quota_below(&two("nonsense\n")), Some(4.0));
        let one = |quota| {
            [
                ("proc/self/cgroup", "1:cpu:/\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ]
        };
        assert_eq!(quota_below(&one("-1\n")), None);
        assert_eq!(quota_below(&one("50000\n")), Some(0.5));
        assert_eq!(quota_below(&[]), None);
    }
}
