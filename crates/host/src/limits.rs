//! Resource limits of this process, as `/proc/self/limits` tells them.

use std::path::Path;

/// A limit; `None` is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// What binds now.
    pub soft: Option<u64>,
    /// Up to where this process may raise it.
    pub hard: Option<u64>,
}

/// The limits that matter to transports. `None` where the kernel does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Bytes of memory that may be locked, which registration with a NIC does.
    pub locked_memory: Option<Limit>,
    /// Open descriptors.
    pub open_files: Option<Limit>,
}

impl Limits {
    /// Those of this process, read below `root` (`/` on a machine).
    #[must_use]
    pub fn of_process(root: &Path) -> Self {
        Self::parse(&std::fs::read_to_string(root.join("proc/self/limits")).unwrap_or_default())
    }

    /// From the text of `/proc/self/limits`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let limit = |name: &str| {
            let mut words = text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace();
            let mut bound = || match words.next()? {
                "unlimited" => Some(None),
                number => number.parse().ok().map(Some),
            };
            Some(Limit { soft: bound()?, hard: bound()? })
        };
        Self { locked_memory: limit("Max locked memory "), open_files: limit("Max open files ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_by_name() {
        let text = "\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            1024                 524288               files
Max locked memory         8388608              unlimited            bytes
";
        assert_eq!(
            Limits::parse(text),
            Limits {
                locked_memory: Some(Limit { soft: Some(8 << 20), hard: None }),
                open_files: Some(Limit { soft: Some(1024), hard: Some(524_288) }),
            }
        );
        assert_eq!(Limits::parse("Max open files  many\n"), Limits::default());
        assert_eq!(Limits::parse(""), Limits::default());
    }
}
