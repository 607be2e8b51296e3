//! Launchers: processes with no other variables than a launcher's find each other, and nobody else.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use campanile_bootstrap::{Place, Rendezvous, StoreClient, StoreServer};
use campanile_core::{Bootstrap, Config, Rank};

const PROBE: &str = env!("CARGO_BIN_EXE_campanile-launch-probe");

type Variables = Vec<(&'static str, String)>;

/// A process with these variables and no others that a launcher could have set.
fn probe(arguments: &[&str], variables: &[(&str, String)]) -> Command {
    let mut command = Command::new(PROBE);
    command.args(arguments).env_clear().envs(variables.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn spawn(variables: &[(&str, String)], timeout: &str) -> Child {
    let mut command = probe(&["gather", timeout], variables);
    command.env("CAMPANILE_TIMEOUT", timeout).spawn().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Starts a rank for each set of variables; what each said.
fn run(ranks: &[Variables], timeout: &str) -> Vec<String> {
    let children: Vec<Child> = ranks.iter().map(|variables| spawn(variables, timeout)).collect();
    children.into_iter().map(|child| said(&child.wait_with_output().unwrap())).collect()
}

fn assert_met(said: &[String]) {
    let numbers: Vec<usize> = (0..said.len()).map(|rank| 10 * rank).collect();
    for (rank, said) in said.iter().enumerate() {
        assert_eq!(*said, format!("rank {rank}: {numbers:?} on one node\n"));
    }
}

/// A port that was free a moment ago.
fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

/// A job that no other test has.
fn job() -> String {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    format!("{}{:03}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed))
}

fn ranks(count: usize, variables: impl Fn(usize) -> Variables) -> Vec<Variables> {
    (0..count).map(variables).collect()
}

fn torchrun(rank: usize, ranks: usize, port: &str) -> Variables {
    vec![
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", ranks.to_string()),
        ("LOCAL_RANK", rank.to_string()),
        ("LOCAL_WORLD_SIZE", ranks.to_string()),
        ("MASTER_ADDR", "localhost".to_owned()),
        ("MASTER_PORT", port.to_owned()),
    ]
}

fn open_mpi(rank: usize, ranks: usize, job: &str) -> Variables {
    vec![
        ("OMPI_COMM_WORLD_RANK", rank.to_string()),
        ("OMPI_COMM_WORLD_SIZE", ranks.to_string()),
        ("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string()),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", ranks.to_string()),
        ("PMIX_NAMESPACE", job.to_owned()),
        ("PMIX_RANK", rank.to_string()),
    ]
}

fn slurm(rank: usize, ranks: usize, job: &str) -> Variables {
    vec![
        ("SLURM_JOB_ID", job.to_owned()),
        ("SLURM_STEP_ID", "0".to_owned()),
        ("SLURM_PROCID", rank.to_string()),
        ("SLURM_NTASKS", ranks.to_string()),
        ("SLURM_LOCALID", rank.to_string()),
        ("SLURM_STEP_NUM_NODES", "1".to_owned()),
        ("SLURM_STEP_NODELIST", "node1".to_owned()),
    ]
}

fn pmi(rank: usize, ranks: usize) -> Variables {
    vec![
        ("PMI_RANK", rank.to_string()),
        ("PMI_SIZE", ranks.to_string()),
        ("MPI_LOCALRANKID", rank.to_string()),
        ("MPI_LOCALNRANKS", ranks.to_string()),
    ]
}

#[test]
fn torchrun_whose_agent_listens() {
    let agent = StoreServer::listen("tcp://localhost:0").unwrap();
    let port = agent.address().rsplit_once(':').unwrap().1.to_owned();
    let elastic = |rank, restart: &str| {
        let mut variables = torchrun(rank, 3, &port);
        variables.push(("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()));
        variables.push(("TORCHELASTIC_RUN_ID", "run".to_owned()));
        variables.push(("TORCHELASTIC_RESTART_COUNT", restart.to_owned()));
        variables
    };
    // The same store serves one program after the other, and a restart.
    for restart in ["0", "0", "1"] {
        assert_met(&run(&ranks(3, |rank| elastic(rank, restart)), "60s"));
    }
    // One that not all ranks come to is no trouble for the next.
    assert!(run(&[elastic(0, "2")], "200ms")[0].contains("numbers: missing ranks 1, 2 after"));
    assert_met(&run(&ranks(3, |rank| elastic(rank, "3")), "60s"));
    // All of it is under a prefix; what torch keeps there is left alone.
    let client = StoreClient::connect(agent.address(), Rank(0), 1, Duration::from_secs(60)).unwrap();
    assert_eq!(client.get("/campanile/run.0/2/numbers/1", Duration::ZERO).unwrap(), Some(vec![10]));
    assert_eq!(client.add("/campanile/run.0/joins/1", 0).unwrap(), 2);
}

#[test]
fn torchrun_where_nobody_listens() {
    let port = free_port();
    let all = ranks(3, |rank| torchrun(rank, 3, &port));
    // Rank 0 comes last, most likely: whether it does changes which way is tried, not the result.
    let others: Vec<Child> = all[1..].iter().map(|variables| spawn(variables, "60s")).collect();
    std::thread::sleep(Duration::from_millis(200));
    let mut said_by = vec![said(&spawn(&all[0], "60s").wait_with_output().unwrap())];
    said_by.extend(others.into_iter().map(|child| said(&child.wait_with_output().unwrap())));
    assert_met(&said_by);
    // The port is free for the next.
    assert_met(&run(&all, "60s"));
}

#[test]
fn open_mpi_slurm_and_pmi_need_no_configuration_on_one_machine() {
    let name = job();
    assert_met(&run(&ranks(3, |rank| open_mpi(rank, 3, &name)), "60s"));
    assert_met(&run(&ranks(3, |rank| slurm(rank, 3, &name)), "60s"));
    assert_met(&run(&ranks(3, |rank| pmi(rank, 3)), "60s"));
}

#[test]
fn pmi_jobs_are_told_apart_by_who_started_them() {
    // A wrapper between launcher and rank is no launcher; two launchers at once are two jobs.
    let rank = |rank: usize| {
        format!(
            "PMI_RANK={rank} PMI_SIZE=2 MPI_LOCALRANKID={rank} MPI_LOCALNRANKS=2 sh -c '{PROBE} whoami && {PROBE} gather 60s'"
        )
    };
    let launcher = format!("{} & {}; wait", rank(0), rank(1));
    let start = || Command::new("sh").args(["-c", &launcher]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let jobs = [start().unwrap(), start().unwrap()];
    for job in jobs {
        let output = job.wait_with_output().unwrap();
        let text = said(&output);
        let lines: BTreeSet<&str> = text.lines().collect();
        let expected = ["rank 0 of 2", "rank 1 of 2", "rank 0: [0, 10] on one node", "rank 1: [0, 10] on one node"];
        assert_eq!(lines, BTreeSet::from(expected), "{text}");
    }
}

#[test]
fn ranks_of_different_pmi_launchers_do_not_meet() {
    let start = |rank: usize| {
        let mut launcher = Command::new("sh");
        launcher.stdout(Stdio::piped()).stderr(Stdio::piped());
        // The launcher of a rank has not its variables.
        let script =
            "env PMI_RANK=$1 PMI_SIZE=2 MPI_LOCALRANKID=$1 MPI_LOCALNRANKS=2 CAMPANILE_TIMEOUT=500ms $0 gather 1s; :";
        launcher.args(["-c", script, PROBE, &rank.to_string()]);
        launcher.spawn().unwrap()
    };
    let children = [start(0), start(1)];
    for (rank, child) in children.into_iter().enumerate() {
        let said = said(&child.wait_with_output().unwrap());
        assert!(said.contains(&format!("joining the job: missing rank {}", 1 - rank)), "{said}");
    }
}

#[test]
fn two_jobs_at_once_do_not_meet() {
    let (one, other) = (job(), job());
    // Half of each: neither may make up the other's missing ranks.
    let mixed = [slurm(0, 2, &one), slurm(1, 2, &other), open_mpi(0, 2, &one), open_mpi(1, 2, &other)];
    let said = run(&mixed, "500ms");
    for (rank, said) in said.iter().enumerate() {
        assert!(said.contains(&format!("joining the job: missing rank {}", 1 - rank % 2)), "{said}");
    }
    let mut both = ranks(2, |rank| slurm(rank, 2, &one));
    both.extend(ranks(2, |rank| slurm(rank, 2, &other)));
    let said = run(&both, "60s");
    assert_met(&said[..2]);
    assert_met(&said[2..]);
    // Two jobs of one port: the second says so.
    let port = free_port();
    let holder = spawn(&torchrun(0, 2, &port), "4s");
    let deadline = Instant::now() + Duration::from_secs(60);
    while StoreClient::connect(&format!("tcp://localhost:{port}"), Rank(0), 1, Duration::from_secs(9)).is_err() {
        assert!(Instant::now() < deadline, "rank 0 does not host");
    }
    let late = &run(&[torchrun(0, 2, &port)], "300ms")[0];
    assert!(late.contains("rank 0 of another job, process") && late.contains("another MASTER_PORT"), "{late}");
    assert!(self::said(&holder.wait_with_output().unwrap()).contains("missing rank 1"));
}

/// A program that follows another one in the same job, without a word between them, finds its own ranks only.
#[test]
fn programs_of_one_job_follow_each_other() {
    let (name, port) = (job(), free_port());
    // Rank 0 is slow to leave the third, so that the others come to its store for their fourth.
    let stay = "[ $i$RANK$SLURM_PROCID = 30 ] && stay=200ms";
    let script = format!("for i in 1 2 3 4; do stay=; {stay}; {PROBE} gather 10s $stay || exit; done");
    for rank_of in [&(|rank| slurm(rank, 3, &name)) as &dyn Fn(usize) -> Variables, &|rank| torchrun(rank, 3, &port)] {
        let start = |rank: usize| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", &script]).env_clear().envs(rank_of(rank)).env("CAMPANILE_TIMEOUT", "10s");
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let children: Vec<Child> = (0..3).map(start).collect();
        for (rank, child) in children.into_iter().enumerate() {
            let said = said(&child.wait_with_output().unwrap());
            assert_eq!(said, format!("rank {rank}: [0, 10, 20] on one node\n").repeat(4));
        }
    }
}

#[test]
fn a_process_may_join_more_than_once() {
    let name = job();
    let children: Vec<Child> =
        (0..3).map(|rank| probe(&["gather-again", "60s"], &slurm(rank, 3, &name)).spawn().unwrap()).collect();
    for (rank, child) in children.into_iter().enumerate() {
        let said = said(&child.wait_with_output().unwrap());
        assert_eq!(said, format!("rank {rank}: [0, 10, 20], then [1, 11, 21]\n"));
    }
}

#[test]
fn a_rank_0_that_dies_is_a_lost_store_and_no_obstacle() {
    let name = job();
    let mut first = spawn(&slurm(0, 3, &name), "60s");
    let second = spawn(&slurm(1, 3, &name), "60s");
    // They have met, and wait for the third.
    let Some(Place { rendezvous: Rendezvous::Rank0(address), .. }) =
        Place::of(&Config::default(), slurm(0, 3, &name)).unwrap()
    else {
        panic!("rank 0 hosts");
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let store = StoreClient::connect(&address.to_string(), Rank(0), 1, Duration::from_secs(60));
        if store.is_ok_and(|store| store.check(&format!("/campanile/{name}.0/1/joined/1")).unwrap_or(false)) {
            break;
        }
        assert!(Instant::now() < deadline, "they do not meet");
    }
    first.kill().unwrap();
    first.wait().unwrap();
    let error = said(&second.wait_with_output().unwrap());
    assert!(error.contains("the store is gone"), "{error}");
    assert_met(&run(&ranks(3, |rank| slurm(rank, 3, &name)), "60s"));
}

#[test]
fn missing_ranks_are_named_by_all_who_came() {
    let name = job();
    for said in run(&[slurm(0, 4, &name), slurm(2, 4, &name)], "500ms") {
        assert!(said.contains("joining the job: missing ranks 1, 3 after 5"), "{said}");
    }
}

#[test]
fn the_store_outlives_rank_0s_work_until_all_have_read() {
    let name = job();
    let start = |rank: usize, arguments: &[&str]| probe(arguments, &slurm(rank, 2, &name)).spawn().unwrap();
    let (host, reader) = (start(0, &["put-and-leave"]), start(1, &["read-late"]));
    let (host, reader) = (host.wait_with_output().unwrap(), reader.wait_with_output().unwrap());
    assert_eq!((said(&host).as_str(), said(&reader).as_str()), ("left\n", "value\n"));
}

#[test]
fn whoever_squats_on_the_address_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    // Somebody who accepts and says nothing.
    let mute = &run(&[torchrun(0, 2, &port)], "300ms")[0];
    assert!(mute.contains(&port) && mute.contains("did not answer within"), "{mute}");
}

/// What a process with these variables says of its place.
fn refused(variables: &[(&'static str, &str)]) -> String {
    let variables: Variables = variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Place::of(&Config::default(), variables).unwrap_err().to_string()
}

#[test]
fn missing_pieces_and_contradictions_say_what_was_found() {
    let master = [("MASTER_ADDR", "node1"), ("MASTER_PORT", "1")];
    let with_master = |variables: &[(&'static str, &'static str)]| [variables, &master].concat();
    for (variables, expected) in [
        (vec![("RANK", "3")], "torchrun: RANK=3 set, but WORLD_SIZE not"),
        (vec![("WORLD_SIZE", "3"), ("LOCAL_RANK", "0")], "WORLD_SIZE=3, LOCAL_RANK=0 set, but RANK not"),
        (vec![("OMPI_COMM_WORLD_RANK", "0")], "Open MPI: OMPI_COMM_WORLD_RANK=0 set, but OMPI_COMM_WORLD_SIZE not"),
        (vec![("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "1")], "but SLURM_STEP_NUM_TASKS or SLURM_NTASKS not"),
        (vec![("PMI_SIZE", "2")], "PMI: PMI_SIZE=2 set, but PMI_RANK not"),
        (vec![("PMIX_RANK", "2")], "PMIx: PMIX_RANK=2 set, but the number of ranks; set RANK and WORLD_SIZE not"),
        (with_master(&[("RANK", "4"), ("WORLD_SIZE", "4")]), "RANK=4 contradicts WORLD_SIZE=4"),
        (
            with_master(&[("RANK", "0"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "2"), ("LOCAL_WORLD_SIZE", "2")]),
            "LOCAL_RANK=2 contradicts LOCAL_WORLD_SIZE=2",
        ),
        (
            with_master(&[("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_WORLD_SIZE", "2")]),
            "LOCAL_WORLD_SIZE=2 contradicts WORLD_SIZE=1",
        ),
        (
            with_master(&[("RANK", "0"), ("WORLD_SIZE", "1"), ("PMI_RANK", "2"), ("PMI_SIZE", "4")]),
            "RANK=0, WORLD_SIZE=1 contradicts PMI_RANK=2, PMI_SIZE=4 of PMI",
        ),
        (with_master(&[("RANK", "-1"), ("WORLD_SIZE", "4")]), "RANK=\"-1\" is not allowed"),
        (vec![("RANK", "0"), ("WORLD_SIZE", "4")], "MASTER_ADDR and MASTER_PORT are not set"),
        (
            vec![("RANK", "0"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "node1")],
            "MASTER_ADDR=node1 set, but MASTER_PORT not",
        ),
        (
            vec![("RANK", "0"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "node1"), ("MASTER_PORT", "70000")],
            "MASTER_PORT=\"70000\" is not allowed; it takes a port from 1 to 65535",
        ),
        (
            vec![("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "1"), ("SLURM_NTASKS", "4"), ("SLURM_STEP_NUM_NODES", "2")],
            "it runs on several machines; set MASTER_ADDR to the host name of rank 0's machine and MASTER_PORT",
        ),
        (vec![("PMI_RANK", "1"), ("PMI_SIZE", "4")], "it does not tell whether it runs on one machine"),
    ] {
        let error = refused(&variables);
        assert!(error.contains(expected), "{variables:?}: {error}");
    }
    // In a process, too, and at once.
    let output = probe(&["whoami"], &[("RANK", "3".to_owned())]).output().unwrap();
    assert_eq!(said(&output), "torchrun: RANK=3 set, but WORLD_SIZE not; set all of them or none\n");
}

fn place(variables: &[Variables]) -> Option<Place> {
    Place::of(&Config::default(), variables.concat()).unwrap()
}

#[test]
fn inner_launchers_come_before_outer_ones() {
    let launcher = |variables: &[Variables]| place(variables).map(|place| (place.launcher, place.rank.0));
    assert_eq!(launcher(&[]), None);
    let (inner, outer) = (torchrun(5, 8, "1"), slurm(1, 2, "1"));
    // A launcher of its own under srun: more ranks than that started.
    assert_eq!(launcher(&[inner, outer.clone()]), Some(("torchrun", 5)));
    assert_eq!(launcher(&[open_mpi(3, 4, "1"), outer.clone()]), Some(("Open MPI", 3)));
    assert_eq!(launcher(&[pmi(3, 4), outer.clone()]), Some(("PMI", 3)));
    assert_eq!(launcher(std::slice::from_ref(&outer)), Some(("Slurm", 1)));
    // A batch script is no rank.
    let batch = outer.into_iter().filter(|(name, _)| !name.contains("STEP")).collect();
    assert_eq!(launcher(&[batch]), None);
    let run: Vec<(&str, &str)> = vec![
        ("CAMPANILE_RANK", "1"),
        ("CAMPANILE_WORLD_SIZE", "3"),
        ("CAMPANILE_LOCAL_RANK", "1"),
        ("CAMPANILE_STORE", "name"),
    ];
    let config = Config::load(run, None).unwrap();
    let place = Place::of(&config, torchrun(0, 2, "1")).unwrap().unwrap();
    assert_eq!((place.launcher, place.rank, place.local_ranks), ("campanile run", Rank(1), Some(3)));
    // The address alone moves the rendezvous of another launcher.
    let config = Config::load([("CAMPANILE_STORE", "tcp://[::1]:9")], None).unwrap();
    let place = Place::of(&config, slurm(1, 2, "1")).unwrap().unwrap();
    assert_eq!(place.rendezvous, Rendezvous::Rank0("tcp://[::1]:9".parse().unwrap()));
    let alone = Place::of(&config, [("PATH", "/bin")]).unwrap_err().to_string();
    assert!(alone.contains("CAMPANILE_STORE set, but no launcher's rank"), "{alone}");
}

#[test]
fn a_world_without_end_is_refused() {
    for ranks in ["0", "65537", "4294967295"] {
        let error = refused(&[("RANK", "0"), ("WORLD_SIZE", ranks), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")]);
        assert!(
            error.contains(&format!("WORLD_SIZE=\"{ranks}\" is not allowed")) && error.contains("65536"),
            "{error}"
        );
    }
}
