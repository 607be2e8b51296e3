//! Where the CPUs of a machine are: [`Topology`], and which of them each rank gets: [`Topology::placement`].
//!
//! **Model.** A CPU (hardware thread) belongs to a physical core, and a core to a NUMA node. Only CPUs that this
//! process may use are seen: a core whose other thread belongs to another container has one CPU here. All is read
//! from `/sys` below a root that is an argument; what is not told there (some virtual machines and sandboxes hide it)
//! is taken to be the plainest thing, one CPU a core and one node.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::affinity::{AffinityError, CpuSet};

/// A physical core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Core {
    /// Its NUMA node.
    pub node: usize,
    /// Its hardware threads that may be used; at least one.
    pub cpus: CpuSet,
}

/// The cores that a process may use, by NUMA node, then by number of their first CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    cores: Vec<Core>,
}

impl Topology {
    /// The topology of this machine, as far as the calling thread [may use it](crate::affinity::allowed). Call it
    /// before binding.
    ///
    /// # Errors
    /// [`AffinityError::Read`].
    pub fn of_machine() -> Result<Self, AffinityError> {
        Ok(Self::read(Path::new("/"), &crate::affinity::allowed()?))
    }

    /// The topology of the CPUs `allowed`, read from `sys/devices/system` below `root`.
    #[must_use]
    pub fn read(root: &Path, allowed: &CpuSet) -> Self {
        let system = root.join("sys/devices/system");
        let nodes = numa_nodes(&system.join("node"));
        let mut seen = BTreeSet::new();
        let mut cores = Vec::new();
        for cpu in allowed.iter() {
            if seen.contains(&cpu) {
                continue;
            }
            // The name of Linux 5.3 and later is core_cpus_list; the older one is still there.
            let siblings = system.join(format!("cpu/cpu{cpu}/topology/thread_siblings_list"));
            let siblings = read_list(&siblings).unwrap_or_default();
            let mut cpus = siblings.iter().filter(|&sibling| allowed.contains(sibling)).collect::<CpuSet>();
            cpus.insert(cpu);
            seen.extend(cpus.iter());
            let node = nodes.get(&cpu).copied().unwrap_or(0);
            cores.push(Core { node, cpus });
        }
        // Stable: within a node the order of first CPUs stays.
        cores.sort_by_key(|core| core.node);
        Self { cores }
    }

    /// The cores, by node, then by number.
    #[must_use]
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// How many CPUs may be used.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.cores.iter().map(|core| core.cpus.len()).sum()
    }

    /// The NUMA node of a CPU that may be used.
    #[must_use]
    pub fn node_of(&self, cpu: usize) -> Option<usize> {
        let core = self.cores.iter().find(|core| core.cpus.contains(cpu))?;
        Some(core.node)
    }

    /// The CPUs of each of `ranks` ranks on this machine, by local rank. Empty sets if no CPU may be used.
    ///
    /// - As many cores as ranks, or more: each rank gets whole cores of its own, with all their threads, the same
    ///   number for each rank, on one NUMA node. Ranks are spread over the nodes in proportion to their cores, so
    ///   that all memory controllers work; neighbouring ranks are on the same node.
    /// - More ranks than cores: one CPU each; first one CPU of every core, then the second ones; and when these are
    ///   used up, round robin. It is fixed to one so that ranks that share a core hand it to each other with
    ///   `sched_yield`, instead of crowding on one core while another idles.
    #[must_use]
    pub fn placement(&self, ranks: usize) -> Vec<CpuSet> {
        if self.cores.is_empty() {
            return vec![CpuSet::new(); ranks];
        }
        if ranks > self.cores.len() {
            let cpus = self.cpus_siblings_last();
            return (0..ranks).map(|rank| CpuSet::from_iter([cpus[rank % cpus.len()]])).collect();
        }
        let nodes = self.cores.chunk_by(|one, other| one.node == other.node).collect::<Vec<_>>();
        let sizes = nodes.iter().map(|cores| cores.len()).collect::<Vec<_>>();
        let ranks_of = apportion(ranks, &sizes);
        let share = std::iter::zip(&sizes, &ranks_of)
            .filter(|&(_, &ranks)| ranks > 0)
            .map(|(cores, ranks)| cores / ranks)
            .min()
            .unwrap_or(0);
        let mut sets = Vec::with_capacity(ranks);
        for (cores, ranks) in std::iter::zip(nodes, ranks_of) {
            for local in 0..ranks {
                // Evenly over the node's cores, where the share leaves some over.
                let first = local * cores.len() / ranks;
                let own = &cores[first..first + share];
                sets.push(own.iter().flat_map(|core| core.cpus.iter()).collect());
            }
        }
        sets
    }

    /// All CPUs: the first thread of each core, then the second of each that has one, and so on.
    fn cpus_siblings_last(&self) -> Vec<usize> {
        let threads = self.cores.iter().map(|core| core.cpus.len()).max();
        (0..threads.unwrap_or(0))
            .flat_map(|thread| self.cores.iter().filter_map(move |core| core.cpus.iter().nth(thread)))
            .collect()
    }
}

/// Divides `ranks` over nodes of `sizes` cores in proportion, none more than it has cores. `ranks` is at most their
/// sum.
///
/// By largest remainders; of equal ones the lower node first. A quota of `ranks * size / sum` rounded up never exceeds
/// `size`, as `ranks <= sum`.
fn apportion(ranks: usize, sizes: &[usize]) -> Vec<usize> {
    let sum = sizes.iter().sum::<usize>().max(1);
    let mut shares = sizes.iter().map(|size| ranks * size / sum).collect::<Vec<_>>();
    let mut order = (0..sizes.len()).collect::<Vec<_>>();
    order.sort_by_key(|&node| std::cmp::Reverse(ranks * sizes[node] % sum));
    let left = ranks - shares.iter().sum::<usize>();
    for node in order.into_iter().take(left) {
        shares[node] += 1;
    }
    shares
}

/// The node of each CPU, from `node*/cpulist` in `directory`.
fn numa_nodes(directory: &Path) -> BTreeMap<usize, usize> {
    let mut nodes = BTreeMap::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node"));
        let Some(node) = number.and_then(|number| number.parse().ok()) else {
            continue;
        };
        let cpus = read_list(&entry.path().join("cpulist")).unwrap_or_default();
        nodes.extend(cpus.iter().map(|cpu| (cpu, node)));
    }
    nodes
}

fn read_list(path: &Path) -> Option<CpuSet> {
    std::fs::read_to_string(path).ok()?.parse().ok()
}
