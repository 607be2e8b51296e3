//! The cores that all sides use: one hardware thread of each physical core that this process may use.
//!
//! The runner restricts itself to them once, and everything it starts inherits that. Within it each side binds rank r
//! to the (r modulo n)-th core: the C programs by themselves (`programs/core.h`, the launchers' own binding is
//! switched off), `campanile` by its own rule.

use std::collections::HashSet;
use std::fs;

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPU numbers, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreSet {
    /// The CPUs as the kernel numbers them.
    pub cpus: Vec<usize>,
}

impl CoreSet {
    /// Chooses the cores and restricts this process to them.
    pub fn bind() -> Result<CoreSet> {
        let allowed = sched_getaffinity(None).context("cannot read the CPU affinity")?;
        let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
        let cpus = first_of_each_core(&allowed, |cpu| {
            fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")).ok()
        });
        let mut set = CpuSet::new();
        cpus.iter().for_each(|&cpu| set.set(cpu));
        sched_setaffinity(None, &set).context("cannot set the CPU affinity")?;
        Ok(CoreSet { cpus })
    }

    /// Number of cores.
    pub fn len(&self) -> usize {
        self.cpus.len()
    }
}

/// `siblings(cpu)` names the core of a CPU; without a name the CPU is taken as a core.
fn first_of_each_core(allowed: &[usize], siblings: impl Fn(usize) -> Option<String>) -> Vec<usize> {
    let mut seen = HashSet::new();
    allowed.iter().copied().filter(|&cpu| siblings(cpu).is_none_or(|core| seen.insert(core))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_a_core() {
        let smt = |cpu: usize| Some(format!("{},{}", cpu % 4, cpu % 4 + 4));
        assert_eq!(first_of_each_core(&[0, 1, 2, 3, 4, 5, 6, 7], smt), [0, 1, 2, 3]);
        assert_eq!(first_of_each_core(&[1, 4, 5, 6], smt), [1, 4, 6]);
        assert_eq!(first_of_each_core(&[0, 1], |_| None), [0, 1]);
    }
}
