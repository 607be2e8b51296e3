//! Checks on machines that are not this one.

use campanile::host::affinity::CpuSet;
use campanile::host::huge_pages::Pool;
use campanile::host::limits::Limit;

use super::*;

/// Verdict and what was found; that there is something to do exactly if it is not as it should be is checked here.
fn judged(check: &Check) -> (Verdict, &str) {
    assert_eq!(check.todo.is_none(), check.verdict == Verdict::Ok, "{check:?}");
    assert!(!check.matters.is_empty());
    (check.verdict, &check.found)
}

fn kernel(release: &str, clock_source: &str) -> Kernel {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Kernel { release: text(release), clock_source: text(clock_source), ptrace_scope: Some(2) }
}

#[test]
fn old_kernels_and_slow_clocks() {
    for (release, verdict) in [
        ("6.8.0-45-generic", Verdict::Ok),
        ("6.1.0", Verdict::Ok),
        ("5.15.0-91", Verdict::Note),
        ("5.3.0", Verdict::Note),
        ("4.18.0-553.el8", Verdict::Broken),
        ("", Verdict::Warning),
    ] {
        assert_eq!(judged(&system::version(&kernel(release, ""))).0, verdict, "{release}");
    }
    assert_eq!(judged(&system::clock(&kernel("", "tsc"))), (Verdict::Ok, "tsc"));
    assert_eq!(judged(&system::clock(&kernel("", "hpet"))), (Verdict::Warning, "hpet"));
    assert_eq!(judged(&system::clock(&kernel("", ""))).0, Verdict::Ok);
    let yama = system::yama(&kernel("", ""));
    assert_eq!(yama.verdict, Verdict::Note);
    assert!(yama.found.starts_with("ptrace_scope 2: "), "{}", yama.found);
    assert_eq!(
        judged(&system::yama(&Kernel { ptrace_scope: Some(0), ..kernel("", "") })),
        (Verdict::Ok, "ptrace_scope 0")
    );
}

#[test]
fn limits_of_the_process() {
    let limit = |soft| Some(Limit { soft, hard: Some(4096) });
    let limits = |locked, files| Limits { locked_memory: limit(locked), open_files: limit(files) };
    let check = memory_pages::locked(&limits(Some(64 << 10), None));
    assert_eq!(judged(&check), (Verdict::Note, "64.0 KiB may be locked"));
    assert_eq!(judged(&memory_pages::locked(&limits(None, None))), (Verdict::Ok, "unlimited"));
    assert_eq!(judged(&memory_pages::locked(&Limits::default())).0, Verdict::Ok);
    let check = system::open_files(&limits(None, Some(1024)), 60);
    assert_eq!(judged(&check), (Verdict::Ok, "1024; 60 ranks need some 1024"));
    let check = system::open_files(&limits(None, Some(1024)), 61);
    assert_eq!(judged(&check), (Verdict::Warning, "1024; 61 ranks need some 1040"));
    assert_eq!(check.todo.as_deref(), Some("ulimit -n 1040, up to the hard limit of 4096"));
    assert_eq!(judged(&system::open_files(&limits(None, None), 1000)).0, Verdict::Ok);
}

#[test]
fn cores_for_ranks() {
    let root = tempfile::tempdir().expect("a temporary directory");
    for cpu in 0..4 {
        let directory = root.path().join(format!("sys/devices/system/cpu/cpu{cpu}/topology"));
        std::fs::create_dir_all(&directory).expect("writable");
        std::fs::write(directory.join("thread_siblings_list"), if cpu % 2 == 0 { "0,2" } else { "1,3" })
            .expect("writable");
    }
    let allowed: CpuSet = "0-3".parse().expect("a list");
    let siblings = Topology::read(root.path(), &allowed);
    let machine = "2 cores, 4 CPUs, up to 2 hardware threads (siblings) a core, 1 NUMA node";
    for (ranks, verdict, found) in [
        (2, Verdict::Ok, "one or more a rank for 2 ranks"),
        (3, Verdict::Warning, "3 ranks share cores with a sibling"),
        (5, Verdict::Warning, "5 ranks take turns"),
    ] {
        let check = cores::cores(&siblings, ranks);
        assert_eq!(judged(&check), (verdict, &*format!("{machine}: {found}")));
    }
    assert_eq!(judged(&cores::quota(None, 4)), (Verdict::Ok, "none"));
    assert_eq!(judged(&cores::quota(Some(4.0), 4)).0, Verdict::Ok);
    assert_eq!(judged(&cores::quota(Some(1.5), 2)), (Verdict::Warning, "1.5 CPUs for 2 ranks"));
}

#[test]
fn memory_and_its_pages() {
    let available = |bytes| memory_pages::available(bytes, 4);
    assert_eq!(judged(&available(Ok(256 << 20))).0, Verdict::Ok);
    assert_eq!(judged(&available(Ok((256 << 20) - 1))).0, Verdict::Warning);
    assert_eq!(judged(&available(Err("no /proc".to_owned()))), (Verdict::Warning, "no /proc"));

    let docker = Space { total: 64 << 20, free: 10 << 20 };
    assert_eq!(judged(&memory_pages::dev_shm(Ok(docker))), (Verdict::Note, "64.0 MiB, 10.0 MiB free"));
    assert_eq!(judged(&memory_pages::dev_shm(Err("no such file".to_owned()))).0, Verdict::Note);

    let says = HugePages {
        private: Some("always".to_owned()),
        shared: Some("deny".to_owned()),
        pools: vec![Pool { page_bytes: 2 << 20, pages: 8, free: 3 }, Pool { page_bytes: 1 << 30, pages: 0, free: 0 }],
    };
    let said =
        "transparent always, for shared memory deny; hugetlb pools 8 of 2.0 MiB (3 free) (windows do not use them)";
    let check = memory_pages::huge_pages(&says, Ok([2 << 20, 0]));
    assert_eq!(judged(&check), (Verdict::Warning, &*format!("windows do not get them; {said}")));
    let check = memory_pages::huge_pages(&HugePages::default(), Ok([2 << 20, 2 << 20]));
    assert!(judged(&check).1.starts_with("windows get them; transparent not there"), "{check:?}");
    assert_eq!(judged(&memory_pages::huge_pages(&says, Err("too little".to_owned()))).0, Verdict::Warning);
}

#[test]
fn containers_are_told_what_they_can_share() {
    let of = |kind, initial| Namespace { kind, inode: 7, initial };
    let machine = [of("net", None), of("user", Some(true)), of("pid", Some(true))];
    assert_eq!(judged(&system::namespaces(&machine)), (Verdict::Ok, "those of the machine; net 7"));
    let container = [of("net", None), of("user", Some(true)), of("pid", Some(false)), of("ipc", Some(false))];
    let check = system::namespaces(&container);
    assert_eq!(judged(&check), (Verdict::Ok, "its own (a container): pid 7, ipc 7; net 7"));
    let rootless = [of("user", Some(false)), of("time", Some(true))];
    assert_eq!(judged(&system::namespaces(&rootless)).0, Verdict::Note);
}

#[test]
fn directories_of_plugins() {
    assert_eq!(judged(&plugin_path::plugin_path(&[])).0, Verdict::Ok);
    let good = ("/opt/p".to_owned(), Ok(2));
    assert_eq!(
        judged(&plugin_path::plugin_path(std::slice::from_ref(&good))),
        (Verdict::Ok, "/opt/p: 2 files named .so")
    );
    let bad = ("/q".to_owned(), Err("Permission denied (os error 13)".to_owned()));
    let check = plugin_path::plugin_path(&[good, bad]);
    assert_eq!(judged(&check), (Verdict::Warning, "/opt/p: 2 files named .so; /q: Permission denied (os error 13)"));
    let directory = tempfile::tempdir().expect("a temporary directory");
    for name in ["liba.so", "libb.so", "readme.md", "libc.so.6"] {
        std::fs::write(directory.path().join(name), "").expect("writable");
    }
    assert_eq!(plugin_path::libraries_in(directory.path().to_str().expect("UTF-8")), Ok(2));
    assert!(plugin_path::libraries_in("/no/such/directory").unwrap_err().contains("No such file"));
}

#[test]
fn only_what_the_job_needs_is_broken() {
    assert_eq!(judged(&transport(Ok("shm".to_owned()), 4)), (Verdict::Ok, "shm for 4 ranks"));
    assert_eq!(judged(&transport(Err("shm: why".to_owned()), 4)), (Verdict::Broken, "shm: why"));
    assert_eq!(judged(&exchange(Ok(()))).0, Verdict::Ok);
    assert_eq!(judged(&exchange(Err("rank 1: why".to_owned()))), (Verdict::Broken, "rank 1: why"));
}

#[test]
fn the_report_has_what_was_found_for_whom_and_what_to_do() {
    let checks = [
        Check::ok("kernel", "6.8", "shm: 5.3 is needed"),
        Check::not("/dev/shm", Verdict::Note, "64.0 MiB", "not shm", "nothing"),
    ];
    assert_eq!(
        check::text(&checks),
        "\
ok       kernel    6.8
                     shm: 5.3 is needed
note     /dev/shm  64.0 MiB
                     not shm
                     to do: nothing
"
    );
    assert_eq!([0, 1023, 1 << 10, 3 << 29].map(check::size), ["0 B", "1023 B", "1.0 KiB", "1.5 GiB"]);
}

#[test]
fn two_ranks_of_this_process_exchange_a_page_by_each_path() {
    for path in ["auto", "load-store", "queue"] {
        let config = Config::load([("CAMPANILE_PATH", path)], None).expect("a path");
        assert_eq!(two_ranks(&Plugins::linked(), &config), Ok(()), "{path}");
    }
    assert!(two_ranks(&Plugins::default(), &Config::default()).unwrap_err().contains("no transport"));
}
