//! What the kernel says of huge pages: transparent ones, those of shared memory, and pools.
//!
//! What a mapping really got is told by [`SharedMemory::huge_bytes`](crate::memory::SharedMemory::huge_bytes).

use std::path::Path;

/// A pool of pages that were set aside (hugetlb). Windows do not use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pool {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages.
    pub pages: u64,
    /// Of them, free.
    pub free: u64,
}

/// What the kernel says; `None` where it has no such thing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HugePages {
    /// For private memory: `always`, `madvise` or `never`.
    pub private: Option<String>,
    /// For shared memory: `always`, `within_size`, `advise`, `never`, `deny` or `force`. Only `deny` keeps windows from
    /// them.
    pub shared: Option<String>,
    /// By size of page.
    pub pools: Vec<Pool>,
}

impl HugePages {
    /// Of this machine, read below `root` (`/` on a machine).
    #[must_use]
    pub fn of_machine(root: &Path) -> Self {
        let mm = root.join("sys/kernel/mm");
        let mode = |name: &str| {
            let text = std::fs::read_to_string(mm.join("transparent_hugepage").join(name)).ok()?;
            chosen(&text).map(str::to_owned)
        };
        let entries = std::fs::read_dir(mm.join("hugepages")).into_iter().flatten().flatten();
        let pool = |entry: std::fs::DirEntry| {
            let name = entry.file_name();
            let kib: u64 = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).ok()?.trim().parse().ok();
            Some(Pool { page_bytes: kib * 1024, pages: read("nr_hugepages")?, free: read("free_hugepages")? })
        };
        let mut pools: Vec<_> = entries.filter_map(pool).collect();
        pools.sort_unstable();
        Self { private: mode("enabled"), shared: mode("shmem_enabled"), pools }
    }
}

/// The choice in brackets: `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_pools_are_read() {
        let root = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(HugePages::of_machine(root.path()), HugePages::default());
        for (path, text) in [
            ("transparent_hugepage/enabled", "always [madvise] never\n"),
            ("transparent_hugepage/shmem_enabled", "always within_size advise never [deny] force\n"),
            ("hugepages/hugepages-1048576kB/nr_hugepages", "0\n"),
            ("hugepages/hugepages-1048576kB/free_hugepages", "0\n"),
            ("hugepages/hugepages-2048kB/nr_hugepages", "512\n"),
            ("hugepages/hugepages-2048kB/free_hugepages", "500\n"),
            ("hugepages/nonsense/free_hugepages", "500\n"),
        ] {
            let path = root.path().join("sys/kernel/mm").join(path);
            std::fs::create_dir_all(path.parent().expect("has a parent")).expect("writable");
            std::fs::write(path, text).expect("writable");
        }
        assert_eq!(
            HugePages::of_machine(root.path()),
            HugePages {
                private: Some("madvise".to_owned()),
                shared: Some("deny".to_owned()),
                pools: vec![
                    Pool { page_bytes: 2 << 20, pages: 512, free: 500 },
                    Pool { page_bytes: 1 << 30, pages: 0, free: 0 },
                ],
            }
        );
        assert_eq!(chosen("always madvise never"), None);
    }
}
