//! The process that started the ranks of a job, found from one of them.

use std::fs;

/// What tells the launcher of this process from every other process of the machine, alive or dead: its number, the time
/// of its start and the boot. It is the nearest ancestor that has not the `rank` variables of this process with the same
/// values: between a rank and its launcher there may be shells that inherited them.
pub(crate) fn launcher(rank: &[(&str, &str)]) -> String {
    let mut process = std::os::unix::process::parent_id();
    loop {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        let has = |(name, value): &(&str, &str)| {
            environment.split(|byte| *byte == 0).any(|entry| entry == format!("{name}={value}").as_bytes())
        };
        let (parent, start) = stat(process).unwrap_or_default();
        // What has ended, cannot be read, or is the first process of all, is taken for the launcher.
        if rank.is_empty() || !rank.iter().all(has) || parent == 0 {
            let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
            return format!("{}-{start}-{process}", boot.trim().get(..8).unwrap_or("boot"));
        }
        process = parent;
    }
}

/// Parent and time of start, in clock ticks since boot (`proc_pid_stat(5)`, fields 4 and 22).
fn stat(process: u32) -> Option<(u32, u64)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name may hold anything, parentheses too.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    Some((parent, fields.nth(17)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_the_launcher_where_nothing_else_is_known() {
        let parent = std::os::unix::process::parent_id();
        let (_, start) = stat(parent).unwrap();
        assert!(launcher(&[]).ends_with(&format!("-{start}-{parent}")));
        assert_eq!(launcher(&[("CAMPANILE_NO_SUCH_RANK", "1")]), launcher(&[]));
        assert_eq!(stat(std::process::id()).unwrap().0, parent);
    }
}
