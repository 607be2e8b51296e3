//! Which CPUs a thread may run on: [`CpuSet`], [`allowed`], [`bind_current_thread`].
//!
//! CPUs are the kernel's logical CPUs, by number. Which of them share a core or a NUMA node, and which a rank should
//! get, is [`topology`](crate::topology)'s business.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::str::FromStr;

use rustix::thread::{sched_getaffinity, sched_setaffinity};

/// A set of CPUs. Reads and writes the kernel's list format, such as `0-3,8`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct CpuSet(BTreeSet<usize>);

impl CpuSet {
    /// No CPU.
    #[must_use]
    pub const fn new() -> Self {
        Self(BTreeSet::new())
    }

    /// Adds a CPU.
    pub fn insert(&mut self, cpu: usize) {
        self.0.insert(cpu);
    }

    /// Whether `cpu` is in it.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// The lowest CPU.
    #[must_use]
    pub fn first(&self) -> Option<usize> {
        self.0.first().copied()
    }

    /// How many CPUs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl Extend<usize> for CpuSet {
    fn extend<I: IntoIterator<Item = usize>>(&mut self, cpus: I) {
        self.0.extend(cpus);
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            match first == last {
                true => write!(f, "{separator}{first}")?,
                false => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl FromStr for CpuSet {
    type Err = AffinityError;

    /// Reads a list of CPUs and ranges, ends included, separated by commas: `0-3,8`. Space around it is ignored; an
    /// empty list is the empty set.
    fn from_str(list: &str) -> Result<Self, AffinityError> {
        let refused = || AffinityError::List { list: list.trim().to_owned() };
        let number = |text: &str| match text.parse::<usize>() {
            Ok(cpu) if cpu <= LARGEST_CPU => Ok(cpu),
            _ => Err(refused()),
        };
        let mut set = Self::new();
        for range in list.trim().split(',').filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(refused());
            }
            set.extend(first..=last);
        }
        Ok(set)
    }
}

/// No kernel has a CPU beyond: eight times the largest `CONFIG_NR_CPUS` of Linux, 8192. Bounds what a list can make
/// us hold.
const LARGEST_CPU: usize = (1 << 16) - 1;

/// Why CPUs could not be read or bound to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AffinityError {
    /// The text is no list of CPUs.
    #[error("\"{list}\" is no list of CPUs; one is written like 0-3,8, with numbers up to {LARGEST_CPU}")]
    List {
        /// The text that was given.
        list: String,
    },
    /// A thread must have a CPU to run on.
    #[error("cannot bind a thread to no CPU; give at least one of those allowed, {allowed}")]
    Empty {
        /// The CPUs that the thread may be bound to.
        allowed: CpuSet,
    },
    /// The set can have no allowed CPU in it, or has one beyond what the system call can name.
    #[error("cannot bind to CPUs {cpus}: {source}; this process may use CPUs {allowed}")]
    Bind {
        /// The CPUs that were given.
        cpus: CpuSet,
        /// The CPUs that the thread may use now.
        allowed: CpuSet,
        /// Why it failed.
        source: io::Error,
    },
    /// The operating system does not tell.
    #[error("cannot read which CPUs this thread may use: {source}")]
    Read {
        /// Why it failed.
        source: io::Error,
    },
}

/// The CPUs that the calling thread may run on: its own binding, within the cpuset of its cgroup.
///
/// Read it before any thread is bound, to learn what the process was given. A quota of CPU time is another matter:
/// [`std::thread::available_parallelism`] takes it into account.
///
/// # Errors
/// [`AffinityError::Read`], also on a machine of more than 1024 CPUs.
pub fn allowed() -> Result<CpuSet, AffinityError> {
    let set = sched_getaffinity(None).map_err(|errno| AffinityError::Read { source: errno.into() })?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Binds the calling thread, and the threads and processes that it starts from now on, to `cpus`. CPUs outside the
/// cgroup's cpuset are ignored by the kernel as long as one is inside.
///
/// # Errors
/// [`AffinityError::Empty`], [`AffinityError::Bind`].
pub fn bind_current_thread(cpus: &CpuSet) -> Result<(), AffinityError> {
    if cpus.is_empty() {
        return Err(AffinityError::Empty { allowed: allowed()? });
    }
    let mut set = rustix::thread::CpuSet::new();
    for cpu in cpus.iter().filter(|&cpu| cpu < rustix::thread::CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    sched_setaffinity(None, &set).map_err(|errno| AffinityError::Bind {
        cpus: cpus.clone(),
        allowed: allowed().unwrap_or_default(),
        source: errno.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(list: &str) -> CpuSet {
        list.parse().expect("a list")
    }

    #[test]
    fn lists_are_read() {
        assert_eq!(set("0-3,8\n").iter().collect::<Vec<_>>(), [0, 1, 2, 3, 8]);
        assert_eq!(set("5").iter().collect::<Vec<_>>(), [5]);
        assert_eq!(set("\n"), CpuSet::new());
        assert_eq!(set("2,0-2"), set("0-2"));
    }

    #[test]
    fn what_is_no_list_is_refused_by_name() {
        for bad in ["a", "3-1", "1-", "-1", "0-65536", "0-99999999999999999999", "1 2"] {
            let error = bad.parse::<CpuSet>().expect_err(bad).to_string();
            assert!(error.contains(bad), "{error}");
        }
    }

    #[test]
    fn lists_are_written_as_they_are_read() {
        for list in ["", "0", "0-1", "0-3,8", "1,3,5-7"] {
            assert_eq!(set(list).to_string(), list);
        }
    }

    #[test]
    fn a_thread_is_bound_and_its_children_with_it() {
        let allowed_before = allowed().expect("readable");
        let last = allowed_before.iter().last().expect("at least one CPU");
        let one = CpuSet::from_iter([last]);
        let (bound, child) = std::thread::spawn({
            let one = one.clone();
            move || {
                bind_current_thread(&one).expect("an allowed CPU");
                let child = std::thread::spawn(allowed).join().expect("only reads");
                (allowed().expect("readable"), child.expect("readable"))
            }
        })
        .join()
        .expect("bound");
        assert_eq!((bound, child), (one.clone(), one));
        // Only that thread.
        assert_eq!(allowed().expect("readable"), allowed_before);
    }

    #[test]
    fn binding_to_what_there_is_not_names_what_there_is() {
        let allowed = allowed().expect("readable");
        let error = bind_current_thread(&CpuSet::new()).expect_err("empty");
        assert!(error.to_string().contains(&allowed.to_string()), "{error}");
        // 1023 is the last that can be named; a machine that has it would bind, so take one that cannot be named.
        let error = bind_current_thread(&set("60000")).expect_err("no such CPU");
        assert!(matches!(error, AffinityError::Bind { .. }), "{error:?}");
        assert!(error.to_string().contains(&allowed.to_string()), "{error}");
    }
}
