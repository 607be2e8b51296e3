//! Placement on machines that are not this one, described by small trees like `/sys/devices/system`.

use std::fs;
use std::path::Path;

use campanile_host::affinity::CpuSet;
use campanile_host::cache::Caches;
use campanile_host::topology::Topology;

/// A machine: per NUMA node, the cores, each by the list of its CPUs.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new(nodes: &[&[&str]]) -> Self {
        let machine = Self(tempfile::tempdir().expect("a temporary directory"));
        for (number, cores) in nodes.iter().enumerate() {
            machine.write(&format!("node/node{number}/cpulist"), &cores.join(","));
            for core in *cores {
                for cpu in set(core).iter() {
                    machine.write(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"), core);
                }
            }
        }
        machine
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root().join("sys/devices/system").join(path);
        fs::create_dir_all(path.parent().expect("has a parent")).expect("writable");
        fs::write(path, format!("{text}\n")).expect("writable");
    }

    /// The CPUs of each of `ranks` ranks, where only `allowed` may be used.
    fn placement(&self, allowed: &str, ranks: usize) -> Vec<String> {
        let topology = Topology::read(self.root(), &set(allowed));
        topology.placement(ranks).iter().map(CpuSet::to_string).collect()
    }
}

fn set(list: &str) -> CpuSet {
    list.parse().expect("a list of CPUs")
}

/// Two sockets of four cores of two threads, siblings far apart, as Intel machines number them.
fn two_nodes() -> Machine {
    Machine::new(&[&["0,8", "1,9", "2,10", "3,11"], &["4,12", "5,13", "6,14", "7,15"]])
}

#[test]
fn cores_are_found_with_their_threads_and_nodes() {
    let topology = Topology::read(two_nodes().root(), &set("0-15"));
    let cores = topology.cores().iter().map(|core| (core.node, core.cpus.to_string())).collect::<Vec<_>>();
    let expected = ["0,8", "1,9", "2,10", "3,11", "4,12", "5,13", "6,14", "7,15"];
    assert_eq!(cores, std::array::from_fn::<_, 8, _>(|core| (core / 4, expected[core].to_owned())));
    assert_eq!(topology.cpus(), 16);
    assert_eq!((topology.node_of(3), topology.node_of(12), topology.node_of(99)), (Some(0), Some(1), None));
}

#[test]
fn each_rank_gets_a_core_of_its_own_with_both_threads() {
    let machine = two_nodes();
    assert_eq!(machine.placement("0-15", 8), ["0,8", "1,9", "2,10", "3,11", "4,12", "5,13", "6,14", "7,15"]);
}

#[test]
fn few_ranks_share_out_the_cores_and_are_spread_over_the_nodes() {
    let machine = two_nodes();
    assert_eq!(machine.placement("0-15", 1), ["0-3,8-11"]);
    assert_eq!(machine.placement("0-15", 2), ["0-3,8-11", "4-7,12-15"]);
    assert_eq!(machine.placement("0-15", 4), ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]);
    // The third is alone on its node; all have as many cores.
    assert_eq!(machine.placement("0-15", 3), ["0-1,8-9", "2-3,10-11", "4-5,12-13"]);
    // Three and two on four cores: one each, as far apart as they come.
    assert_eq!(machine.placement("0-15", 5), ["0,8", "1,9", "2,10", "4,12", "6,14"]);
}

#[test]
fn more_ranks_than_cores_take_the_second_threads_last_and_then_share() {
    let machine = two_nodes();
    let first = ["0", "1", "2", "3", "4", "5", "6", "7"];
    assert_eq!(machine.placement("0-15", 10), [&first[..], &["8", "9"]].concat());
    let all = [&first[..], &["8", "9", "10", "11", "12", "13", "14", "15"]].concat();
    assert_eq!(machine.placement("0-15", 16), all);
    assert_eq!(machine.placement("0-15", 18), [&all[..], &["0", "1"]].concat());
}

#[test]
fn siblings_that_are_numbered_side_by_side_are_one_core() {
    let machine = Machine::new(&[&["0-1", "2-3"]]);
    assert_eq!(machine.placement("0-3", 2), ["0-1", "2-3"]);
    assert_eq!(machine.placement("0-3", 3), ["0", "2", "1"]);
}

#[test]
fn one_core_is_shared_by_all() {
    let machine = Machine::new(&[&["0"]]);
    assert_eq!(machine.placement("0", 1), ["0"]);
    assert_eq!(machine.placement("0", 3), ["0", "0", "0"]);
}

#[test]
fn eight_ranks_on_two_cores_are_four_on_each() {
    let machine = Machine::new(&[&["0", "1"]]);
    assert_eq!(machine.placement("0-1", 8), ["0", "1", "0", "1", "0", "1", "0", "1"]);
}

#[test]
fn only_allowed_cpus_are_used() {
    let machine = two_nodes();
    // A cpuset with one thread of core 2, both of core 3, and one of core 7.
    assert_eq!(machine.placement("2-3,11,15", 3), ["2", "3,11", "15"]);
    assert_eq!(machine.placement("2-3,11,15", 2), ["2", "15"]);
    assert_eq!(machine.placement("2-3,11,15", 4), ["2", "3", "15", "11"]);
    assert_eq!(machine.placement("9", 2), ["9", "9"]);
}

#[test]
fn ranks_follow_uneven_nodes() {
    let machine = Machine::new(&[&["0"], &["1", "2", "3"], &[]]);
    assert_eq!(machine.placement("0-3", 1), ["1-3"]);
    assert_eq!(machine.placement("0-3", 2), ["0", "1"]);
    assert_eq!(machine.placement("0-3", 3), ["0", "1", "2"]);
    assert_eq!(machine.placement("0-3", 4), ["0", "1", "2", "3"]);
}

#[test]
fn a_machine_that_tells_nothing_has_a_core_for_each_cpu() {
    let machine = Machine::new(&[]);
    assert_eq!(machine.placement("0-3", 4), ["0", "1", "2", "3"]);
    let topology = Topology::read(machine.root(), &set("0-3"));
    assert!(topology.cores().iter().all(|core| core.node == 0 && core.cpus.len() == 1));
}

#[test]
fn nowhere_to_run_is_nowhere() {
    assert_eq!(two_nodes().placement("", 2), ["", ""]);
    assert!(two_nodes().placement("0", 0).is_empty());
}

#[test]
fn every_rank_has_as_many_cores_as_any_other_and_none_is_used_twice() {
    let machine = Machine::new(&[&["0", "1", "2"], &["3", "4", "5", "6", "7"], &["8"], &["9", "10", "11", "12"]]);
    let topology = Topology::read(machine.root(), &set("0-12"));
    for ranks in 1..=13 {
        let sets = topology.placement(ranks);
        assert_eq!(sets.len(), ranks);
        let share = sets[0].len();
        assert!(share > 0);
        let mut used = CpuSet::new();
        for set in &sets {
            assert_eq!(set.len(), share, "{ranks} ranks: {sets:?}");
            assert!(set.iter().all(|cpu| topology.node_of(cpu) == topology.node_of(set.first().expect("not empty"))));
            used.extend(set.iter());
        }
        assert_eq!(used.len(), ranks * share, "{ranks} ranks: {sets:?}");
    }
}

#[test]
fn this_machine_has_a_place_for_each_rank() {
    let allowed = campanile_host::affinity::allowed().expect("readable");
    let topology = Topology::of_machine().expect("readable");
    assert_eq!(topology.cpus(), allowed.len());
    for ranks in [1, 2, 7, 64] {
        for set in topology.placement(ranks) {
            assert!(!set.is_empty() && set.iter().all(|cpu| allowed.contains(cpu)));
        }
    }
}

fn cache(machine: &Machine, index: usize, level: &str, kind: &str, size: &str, shared: &str) {
    for (name, text) in [("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)] {
        machine.write(&format!("cpu/cpu0/cache/index{index}/{name}"), text);
    }
}

#[test]
fn caches_are_read_with_their_units_and_sharers() {
    let machine = Machine::new(&[]);
    assert_eq!(Caches::of_cpu(machine.root(), 0), Caches { last_sharers: 1, ..Caches::default() });
    cache(&machine, 0, "1", "Data", "32K", "0");
    cache(&machine, 1, "1", "Instruction", "64K", "0");
    cache(&machine, 2, "2", "Unified", "2M", "0-1");
    let small = Caches { l1: 32 << 10, l2: 2 << 20, last: 2 << 20, last_sharers: 2 };
    assert_eq!(Caches::of_cpu(machine.root(), 0), small);
    cache(&machine, 3, "3", "Unified", "32768K", "0-7,16-23");
    assert_eq!(Caches::of_cpu(machine.root(), 0), Caches { last: 32 << 20, last_sharers: 16, ..small });
}
