//! Cores: whether each rank can have its own, all the time.

use campanile::host::topology::Topology;

use super::check::{Check, Verdict};

/// The cores that this process may use, for so many ranks.
pub fn cores(topology: &Topology, ranks: usize) -> Check {
    let (name, matters) = ("cores", "shm: a rank that waits spins on its core, and hands it over where ranks share it");
    let (cores, cpus) = (topology.cores().len(), topology.cpus());
    let nodes = topology.cores().chunk_by(|one, other| one.node == other.node).count();
    let threads = topology.cores().iter().map(|core| core.cpus.len()).max().unwrap_or(1);
    let siblings = match threads {
        0 | 1 => String::new(),
        threads => format!(", up to {threads} hardware threads (siblings) a core"),
    };
    let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let found = format!("{}, {}{siblings}, {}", plural(cores, "core"), plural(cpus, "CPU"), plural(nodes, "NUMA node"));
    match ranks {
        ranks if ranks <= cores => Check::ok(name, format!("{found}: one or more a rank for {ranks} ranks"), matters),
        ranks if ranks <= cpus => Check::not(
            name,
            Verdict::Warning,
            format!("{found}: {ranks} ranks share cores with a sibling"),
            matters,
            format!("at most {} for full speed", plural(cores, "rank")),
        ),
        ranks => Check::not(
            name,
            Verdict::Warning,
            format!("{found}: {ranks} ranks take turns"),
            matters,
            format!("at most {} for full speed; it is correct with more", plural(cores, "rank")),
        ),
    }
}

/// The CPU quota of the control groups.
pub fn quota(quota: Option<f64>, ranks: usize) -> Check {
    let (name, matters) = ("CPU quota", "all: a rank that is throttled, for up to 0.1 s, stops all that wait for it");
    match quota {
        None => Check::ok(name, "none", matters),
        Some(cpus) if cpus >= ranks as f64 => Check::ok(name, format!("{cpus:.1} CPUs for {ranks} ranks"), matters),
        Some(cpus) => Check::not(
            name,
            Verdict::Warning,
            format!("{cpus:.1} CPUs for {ranks} ranks"),
            matters,
            "raise it (docker run --cpus, Kubernetes limits.cpu), or bind to whole cores instead (--cpuset-cpus)",
        ),
    }
}
