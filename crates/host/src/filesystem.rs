//! File systems: how large, how full.

use std::io;
use std::path::Path;

/// Space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes.
    pub total: u64,
    /// Bytes that this process can still use.
    pub free: u64,
}

impl Space {
    /// Of the file system that `path` is on.
    ///
    /// # Errors
    /// That of `statvfs`, such as for a path that does not exist.
    pub fn of(path: &Path) -> io::Result<Self> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(Self {
            total: stat.f_blocks.saturating_mul(stat.f_frsize),
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_has_a_size() {
        let space = Space::of(&std::env::temp_dir()).expect("it is there");
        assert!(space.total > 0 && space.free <= space.total, "{space:?}");
        assert!(Space::of(Path::new("/no/such/directory")).is_err());
    }
}
