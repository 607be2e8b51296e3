//! Every example runs, ends well, and says what it promises.
//!
//! `cargo test -p campanile-examples` builds the examples beside this test. Each runs as a rank of a launched job, under
//! the launcher's deadline, so that one that hangs is an error and leaves nothing behind.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use campanile::bootstrap::{Launch, Output};

#[path = "../../tests/plugins/compiler.rs"]
mod compiler;
#[path = "../../tests/plugins/library.rs"]
mod library;

/// No example needs more than a second of a machine that has time for it.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The examples and the number of processes that each runs in.
const EXAMPLES: [(&str, usize); 9] = [
    ("01_barrier", 1),
    ("02_window_put_signal", 1),
    ("03_new_collective", 1),
    ("04_moe", 1),
    ("05_moe_layouts", 1),
    ("06_moe_overlap", 1),
    ("07_launched", 3),
    ("08_failure", 1),
    ("09_moe_device", 1),
];

/// Runs the example, and returns what each of its ranks wrote.
fn run(name: &str) -> Vec<String> {
    run_with(name, &[])
}

/// As [`run`], with these variables in its environment.
fn run_with(name: &str, environment: &[(&str, &str)]) -> Vec<String> {
    let (_, ranks) = EXAMPLES.into_iter().find(|(example, _)| *example == name).expect("it is in the list");
    let test = std::env::current_exe().expect("the system tells which program this is");
    // target/PROFILE/deps/run-HASH: examples are beside deps.
    let folder = test.ancestors().nth(2).expect("a test lies in a folder of the target folder").join("examples");
    let program: PathBuf = folder.join(name);
    assert!(program.is_file(), "{program:?} is not built; `cargo build -p campanile-examples --examples` builds it");
    let launch = Launch::new(&program, [""; 0], ranks).timeout(Some(TIMEOUT)).output(Output::Captured);
    let launch = environment.iter().fold(launch, |launch, (variable, value)| launch.env(variable, value));
    let outcome = launch.run().unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(outcome.failure.is_none(), "{name}: {outcome}");
    outcome.ranks.into_iter().map(|rank| String::from_utf8(rank.stdout).expect("examples write text")).collect()
}

#[test]
fn the_list_names_every_example() {
    let folder = std::fs::read_dir(env!("CARGO_MANIFEST_DIR")).expect("the folder of this package");
    let numbered =
        folder.filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.strip_suffix(".rs").map(str::to_owned));
    let numbered: BTreeSet<_> =
        numbered.filter(|name| name.starts_with(|first: char| first.is_ascii_digit())).collect();
    assert_eq!(numbered, EXAMPLES.map(|(name, _)| name.to_owned()).into());
}

#[test]
fn barrier() {
    assert_eq!(run("01_barrier"), ["barriers passed, by rank: [100, 101, 100, 101]\n"]);
}

#[test]
fn window_put_signal() {
    let messages = r#"["a put, then a signal", "both in one operation"]"#;
    assert_eq!(run("02_window_put_signal"), [format!("path auto: {messages}\npath queue: {messages}\n")]);
}

#[test]
fn new_collective() {
    let over = |transport: &str, name: &str| {
        let all = "51 calls, the last gave [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]";
        let expected = format!("{name}, path auto: {all}\n{name}, path queue: {all}\n");
        assert_eq!(run_with("03_new_collective", &[("CAMPANILE_TRANSPORT", transport)]), [expected]);
    };
    over("shm", "shm");
    over(path(&library::Library::Shm.file()), "shm");
    if let Some(mailbox) = compiler::transport("tests/mailbox") {
        over(path(&mailbox), "mailbox");
    }
}

fn path(file: &std::path::Path) -> &str {
    file.to_str().expect("the workspace has a name in UTF-8")
}

#[test]
fn moe() {
    let said = run("04_moe").concat();
    assert!(said.starts_with("rows that came to each rank: ["), "{said}");
    assert!(said.ends_with("every result is the weighted sum of what the token's experts made of it\n"), "{said}");
}

#[test]
fn moe_layouts() {
    let rank = |rank: usize| format!("rank {rank}: 960 bytes, equal by all three layouts\n");
    assert_eq!(run("05_moe_layouts"), [[rank(0), rank(1), rank(2)].concat()]);
}

#[test]
fn moe_overlap() {
    assert_eq!(run("06_moe_overlap"), ["6 batches of 32 tokens on each of 4 ranks, two in flight\n"]);
}

#[test]
fn launched() {
    let said = run("07_launched");
    for (rank, said) in said.iter().enumerate() {
        assert!(said.starts_with(&format!("rank {rank} of 3 is process ")), "{said}");
    }
    let all = |said: &String| said.split_once("all ranks: ").map(|(_, processes)| processes.to_owned());
    assert!(said.iter().all(|rank| all(rank).is_some() && all(rank) == all(&said[0])), "{said:?}");
}

#[test]
fn failure() {
    let said = run("08_failure").concat();
    for what in ["rank 2 aborted", "rank 2 left", "rank 2 died", "rank 2 did not go on within the deadline"] {
        assert!(said.contains(what), "{what} is missing in {said}");
    }
}

#[test]
fn moe_device() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("moe-kernels");
    let cache = ("CAMPANILE_KERNEL_CACHE", path(&folder));
    let said = run_with("09_moe_device", &[cache]).concat();
    if said.starts_with("skipped: ") {
        println!("not run: no C++ compiler for the emulator's kernels");
        return;
    }
    assert!(said.starts_with("rows that came to each rank: ["), "{said}");
    assert!(said.ends_with("every result is the weighted sum of what the token's experts made of it\n"), "{said}");
    let said = run_with("09_moe_device", &[cache, ("CAMPANILE_GPU", "emulator"), ("CAMPANILE_CXX", "/nowhere/c++")]);
    assert_eq!(said, ["skipped: the emulator has no compiler for kernels on this machine\n"]);
}
