//! Data caches of a core: [`Caches`], from `/sys/devices/system/cpu`.

use std::path::Path;

use crate::affinity::CpuSet;

/// Sizes of the caches that a core sees, in bytes, and how many CPUs share the last one. 0 where unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Caches {
    /// Level 1, data.
    pub l1: usize,
    /// Level 2.
    pub l2: usize,
    /// The last level, shared by [`last_sharers`](Self::last_sharers); equal to `l2` where there is no third.
    pub last: usize,
    /// CPUs that share the last level; at least 1.
    pub last_sharers: usize,
}

impl Caches {
    /// The caches of `cpu`, read below `root` (`/` on a machine).
    #[must_use]
    pub fn of_cpu(root: &Path, cpu: usize) -> Self {
        let directory = root.join(format!("sys/devices/system/cpu/cpu{cpu}/cache"));
        let mut caches = Self { last_sharers: 1, ..Self::default() };
        let mut last_level = 0;
        for index in 0.. {
            let cache = directory.join(format!("index{index}"));
            let read = |name: &str| std::fs::read_to_string(cache.join(name)).map(|text| text.trim().to_owned());
            let (Ok(level), Ok(kind), Ok(size)) = (read("level"), read("type"), read("size")) else {
                break;
            };
            let (Ok(level), Some(size)) = (level.parse::<u32>(), cache_bytes(&size)) else {
                continue;
            };
            if kind == "Instruction" {
                continue;
            }
            match level {
                1 => caches.l1 = size,
                2 => caches.l2 = size,
                _ => {}
            }
            if level > last_level {
                last_level = level;
                caches.last = size;
                caches.last_sharers = read("shared_cpu_list")
                    .ok()
                    .and_then(|list| list.parse::<CpuSet>().ok())
                    .map_or(1, |cpus| cpus.len().max(1));
            }
        }
        caches
    }
}

/// Bytes of a size such as `32K`, `1024K` or `2M`.
fn cache_bytes(text: &str) -> Option<usize> {
    let (number, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    number.parse::<usize>().ok()?.checked_mul(unit)
}
