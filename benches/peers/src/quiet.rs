//! Whether the machine is ours: the CPU that other programs use.
//!
//! A spinning rank that loses its core to another program waits for the next scheduler tick, so a disturbed launch is
//! wrong by a factor, not by a few percent. Before a launch the runner waits, for a bounded time, for a quiet quarter
//! second; afterwards it works out what others used meanwhile.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::core_set::CoreSet;

/// Others may use this much of the cores, in percent, before a launch counts as disturbed.
pub const LIMIT_PERCENT: f64 = 10.0;

/// Ticks per second of /proc: USER_HZ, 100 on every architecture that Rust's standard library knows.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU time so far.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    at: Instant,
    /// Ticks the cores were busy, whoever was it.
    busy: u64,
    /// Ticks that this process and its ended descendants used.
    own: u64,
    steal: u64,
    cores: usize,
}

/// CPU time between two readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// Share of the cores' time that others used, in percent.
    pub others_percent: f64,
    /// Ticks that the hypervisor gave to other guests.
    pub steal_ticks: u64,
}

impl Clock {
    /// Reads the clocks of the cores of the set.
    pub fn now(cores: &CoreSet) -> Result<Clock> {
        let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let own = fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
        let (busy, steal) = busy_and_steal(&stat, &cores.cpus);
        let own = own_ticks(&own).context("/proc/self/stat has an unknown form")?;
        Ok(Clock { at: Instant::now(), busy, own, steal, cores: cores.len() })
    }

    /// What happened from `self` to `later`.
    pub fn until(&self, later: &Clock) -> Usage {
        let ticks = (later.at - self.at).as_secs_f64() * TICKS_PER_SECOND * self.cores as f64;
        let busy = later.busy.saturating_sub(self.busy);
        let others = busy.saturating_sub(later.own.saturating_sub(self.own));
        Usage {
            others_percent: (others as f64 / ticks.max(1.0) * 100.0).min(100.0),
            steal_ticks: later.steal.saturating_sub(self.steal),
        }
    }
}

/// Waits, at most `patience`, until the cores were quiet for a quarter second; whether they were.
pub fn wait(cores: &CoreSet, patience: Duration) -> Result<bool> {
    let start = Instant::now();
    loop {
        let before = Clock::now(cores)?;
        // Not a wait for an event: the quarter second is what is measured.
        std::thread::sleep(Duration::from_millis(250));
        if before.until(&Clock::now(cores)?).others_percent <= LIMIT_PERCENT {
            return Ok(true);
        }
        if start.elapsed() >= patience {
            return Ok(false);
        }
    }
}

/// Sums over `cpus`, from the text of /proc/stat (see proc_stat(5)).
fn busy_and_steal(stat: &str, cpus: &[usize]) -> (u64, u64) {
    let mut sums = (0, 0);
    for line in stat.lines() {
        let Some((name, fields)) = line.split_once(' ') else { continue };
        let Some(cpu) = name.strip_prefix("cpu").and_then(|n| n.parse().ok()) else { continue };
        if !cpus.contains(&cpu) {
            continue;
        }
        let ticks: Vec<u64> = fields.split_whitespace().map_while(|f| f.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal
        let field = |index: usize| ticks.get(index).copied().unwrap_or(0);
        sums.0 += field(0) + field(1) + field(2) + field(5) + field(6);
        sums.1 += field(7);
    }
    sums
}

/// utime + stime + cutime + cstime, from the text of /proc/self/stat (see proc_pid_stat(5)).
fn own_ticks(stat: &str) -> Option<u64> {
    // The second field is the program's name in parentheses, which may hold anything.
    let (_, after_name) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    // The first field here is number 3 of the manual page; utime is number 14.
    fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  99 99 99 99 99 99 99 99\n\
        cpu0 10 1 5 100 7 2 3 4 0 0\ncpu1 1000 0 0 0 0 0 0 50 0 0\ncpu2 20 0 0 0 0 0 0 1 0 0\nintr 5\n";

    #[test]
    fn only_the_cores_of_the_set_count() {
        assert_eq!(busy_and_steal(STAT, &[0, 2]), (10 + 1 + 5 + 2 + 3 + 20, 5));
        assert_eq!(busy_and_steal(STAT, &[7]), (0, 0));
    }

    #[test]
    fn a_name_with_blanks_and_parentheses() {
        let stat = "42 (a) b c) S 1 2 3 4 5 6 7 8 9 10 100 20 3000 400 20 0";
        assert_eq!(own_ticks(stat), Some(3520));
        assert_eq!(own_ticks("42 (a) S 1"), None);
    }

    #[test]
    fn own_work_is_not_others_work() {
        let at = Instant::now();
        let first = Clock { at, busy: 1000, own: 100, steal: 7, cores: 2 };
        let later = Clock { at: at + Duration::from_secs(1), busy: 1150, own: 240, steal: 9, cores: 2 };
        let usage = first.until(&later);
        assert!((usage.others_percent - 5.0).abs() < 1e-6, "{usage:?}");
        assert_eq!(usage.steal_ticks, 2);
    }
}
