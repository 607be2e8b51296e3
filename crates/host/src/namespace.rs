//! Namespaces of this process: what a container has of its own.

use std::path::Path;

/// A namespace of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Its kind: `net`, `user`, `time`, `pid`, `ipc`, `cgroup`.
    pub kind: &'static str,
    /// Its number.
    pub inode: u64,
    /// Whether it is the one that the machine started with; `None` if its number does not tell.
    pub initial: Option<bool>,
}

/// The kinds, and the number of the initial namespace of each where it has always been the same
/// (`include/linux/proc_ns.h` of Linux; network namespaces have a fixed one only since 6.18).
const KINDS: [(&str, Option<u64>); 6] = [
    ("net", None),
    ("user", Some(0xEFFF_FFFD)),
    ("time", Some(0xEFFF_FFFA)),
    ("pid", Some(0xEFFF_FFFC)),
    ("ipc", Some(0xEFFF_FFFF)),
    ("cgroup", Some(0xEFFF_FFFB)),
];

impl Namespace {
    /// The kinds that must be the same for processes that share memory through a [channel](crate::channel); they are part of
    /// [`node_identity`](crate::process::node_identity).
    pub const SHARED: [&'static str; 3] = ["net", "user", "time"];

    /// Those of this process, read below `root` (`/` on a machine). What a kernel has not is left out.
    #[must_use]
    pub fn of_process(root: &Path) -> Vec<Self> {
        let namespace = |(kind, initial): (&'static str, Option<u64>)| {
            let link = std::fs::read_link(root.join("proc/self/ns").join(kind)).ok()?;
            let inode = link.to_str()?.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok()?;
            Some(Self { kind, inode, initial: initial.map(|initial| initial == inode) })
        };
        KINDS.into_iter().filter_map(namespace).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_tell_the_initial_ones() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let directory = root.path().join("proc/self/ns");
        std::fs::create_dir_all(&directory).expect("writable");
        for (kind, target) in [("net", "net:[4026531833]"), ("user", "user:[4026531837]"), ("pid", "pid:[4026532001]")]
        {
            std::os::unix::fs::symlink(target, directory.join(kind)).expect("writable");
        }
        std::os::unix::fs::symlink("nonsense", directory.join("ipc")).expect("writable");
        let of = |kind, inode, initial| Namespace { kind, inode, initial };
        assert_eq!(
            Namespace::of_process(root.path()),
            [
                of("net", 4_026_531_833, None),
                of("user", 4_026_531_837, Some(true)),
                of("pid", 4_026_532_001, Some(false)),
            ]
        );
    }
}
