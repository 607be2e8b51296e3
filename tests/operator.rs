//! Plugins and decorators as an operator meets them: `CAMPANILE_TRANSPORT`, `CAMPANILE_PLUGIN_PATH` and
//! `CAMPANILE_DECORATE` through the command line, with files that are good and files that are not.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

#[path = "plugins/compiler.rs"]
mod compiler;
#[path = "plugins/library.rs"]
mod library;

/// Runs `campanile` with these variables.
fn campanile(variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(library::campanile);
    Command::new(program).args(arguments).envs(variables.iter().copied()).output().expect("the program runs")
}

/// What it wrote to standard output, having succeeded.
#[track_caller]
fn said(variables: &[(&str, &str)], arguments: &[&str]) -> String {
    let output = campanile(variables, arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{variables:?} {arguments:?}: {}: {stderr}", output.status);
    String::from_utf8(output.stdout).expect("it writes UTF-8")
}

/// What it wrote to standard error, having failed with this code.
#[track_caller]
fn refused(code: i32, variables: &[(&str, &str)], arguments: &[&str]) -> String {
    let output = campanile(variables, arguments);
    assert_eq!(output.status.code(), Some(code), "{variables:?} {arguments:?}: {output:?}");
    String::from_utf8(output.stderr).expect("it writes UTF-8")
}

#[track_caller]
fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
}

/// The mailbox in C; `None`, and a word about it, without a compiler.
fn mailbox() -> Option<PathBuf> {
    compiler::transport("tests/mailbox")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of this workspace is UTF-8")
}

/// A folder with these files.
fn folder(files: &[(&str, &Path)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, file) in files {
        std::fs::copy(file, folder.path().join(name)).expect("a copy");
    }
    folder
}

/// Exchanges made-up tokens and checks the result.
const MOE: [&str; 3] = ["moe", "-n", "3"];

#[test]
fn a_transport_by_the_path_of_its_file() {
    let Some(file) = mailbox() else { return };
    let transport = [("CAMPANILE_TRANSPORT", text(&file))];
    has(&said(&transport, &MOE), &["transport mailbox", "bit for bit"]);
    has(&said(&transport, &["info"]), &["  shm ", "(linked in)", "  mailbox ", &format!("({})", text(&file))]);
    let explained = said(&transport, &["info", "--explain"]);
    has(&explained, &["opens mailbox for all its peers", "chosen    mailbox queue", "does not name it"]);
    let checked = said(&transport, &["check", "--case", "masks"]);
    has(&checked, &["transport mailbox ", "7 cases: 7 passed, 0 failed"]);
}

#[test]
fn a_transport_by_its_name_in_a_folder() {
    let Some(file) = mailbox() else { return };
    let nonsense = compiler::workspace().join("Cargo.toml");
    let folder = folder(&[("libcampanile_mailbox.so", &file), ("libcampanile_nonsense.so", &nonsense)]);
    let path = ("CAMPANILE_PLUGIN_PATH", text(folder.path()));
    has(&said(&[path, ("CAMPANILE_TRANSPORT", "mailbox")], &MOE), &["transport mailbox", "bit for bit"]);
    has(
        &said(&[path], &["info"]),
        &[
            "  mailbox ",
            "libcampanile_mailbox.so",
            "  refused: plugin ",
            "libcampanile_nonsense.so: not a plugin: invalid",
        ],
    );
    // Nobody asked for it, and the linked one is first.
    has(&said(&[path], &["info", "--explain", "--peer", "node"]), &["opens shm ", "mailbox queue"]);
    let error = refused(2, &[path, ("CAMPANILE_TRANSPORT", "mailboxes")], &MOE);
    has(
        &error,
        &["\"mailboxes\" (from environment) is not allowed", "any of shm, p2p, mailbox", "nonsense.so: not a plugin"],
    );
}

#[test]
fn files_that_are_no_plugins_say_why() {
    let library = library::Library::Panicking.file();
    let folder = folder(&[("other.so", &compiler::workspace().join("Cargo.toml")), ("panicking.so", &library)]);
    let other = folder.path().join("other.so");
    for command in [&["info"][..], &["info", "--explain"], &["check"], &MOE] {
        for (given, reason) in [
            (text(&other), ": not a plugin: invalid ELF header"),
            ("/nowhere/lib.so", "plugin /nowhere/lib.so: No such file"),
            ("./mailbox.so", "plugin ./mailbox.so: No such file"),
            (text(folder.path()), "it is no regular file"),
            ("mailbox.so", "any of shm, p2p, and plugins' files (a path with a slash)"),
        ] {
            let error = refused(2, &[("CAMPANILE_TRANSPORT", given)], command);
            has(&error, &[&format!("error: CAMPANILE_TRANSPORT = {given:?} (from environment)"), reason]);
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
    let path = [text(folder.path()), "/nowhere"].join(":");
    has(
        &said(&[("CAMPANILE_PLUGIN_PATH", &path)], &["info"]),
        &[
            "of its .so files (2) none is named libcampanile_*.so",
            "refused: folder /nowhere of CAMPANILE_PLUGIN_PATH: No such",
        ],
    );
    // What would be run does not depend on a transport.
    has(&said(&[("CAMPANILE_TRANSPORT", text(&other))], &["check", "--list"]), &["puts_of_every_size"]);
}

#[test]
fn who_names_a_transport_is_not_bothered_by_others() {
    let printer = compiler::library("plugin.c", compiler::scratch("libcampanile_printer.so"), &["-DPRINT"]);
    let (Some(printer), Some(mailbox)) = (printer, mailbox()) else { return };
    let folder = folder(&[("libcampanile_printer.so", &printer), ("libcampanile_mailbox.so", &mailbox)]);
    let path = ("CAMPANILE_PLUGIN_PATH", text(folder.path()));
    for transport in ["shm", "mailbox"] {
        // The other one writes to standard output when it is loaded; there is one JSON object all the same.
        let said = said(&[path, ("CAMPANILE_TRANSPORT", transport)], &[&MOE[..], &["--json"]].concat());
        let report: serde_json::Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        assert!(report.is_object());
        // What there is is shown, whatever is chosen.
        let said = self::said(&[path, ("CAMPANILE_TRANSPORT", transport)], &["info"]);
        has(&said, &["  mailbox ", "  c 1.2 "]);
    }
}

#[test]
fn decorators_are_around_every_transport() {
    let decorators = ("CAMPANILE_DECORATE", "throttle(latency=5us)+plain");
    has(&said(&[decorators], &MOE), &["transport shm+throttle+plain", "bit for bit"]);
    has(
        &said(&[decorators], &["check", "--case", "tickets"]),
        &["transport shm+throttle+plain ", "8 passed, 0 failed"],
    );
    has(&said(&[("CAMPANILE_DECORATE", "lean")], &MOE), &["transport shm+lean", "bit for bit"]);
    if let Some(file) = mailbox() {
        let transport = ("CAMPANILE_TRANSPORT", text(&file));
        has(&said(&[decorators, transport], &MOE), &["transport mailbox+throttle+plain", "bit for bit"]);
    }
    // Who asks for counts is told them.
    let output = campanile(&[("CAMPANILE_DECORATE", "stats")], &MOE);
    assert!(output.status.success(), "{output:?}");
    has(&String::from_utf8_lossy(&output.stderr), &["stats of rank 0: ", "stats of rank 1: "]);
    let error = refused(2, &[("CAMPANILE_DECORATE", "throtle")], &MOE);
    has(&error, &["CAMPANILE_DECORATE = \"throtle\"", "did you mean throttle?"]);
    // What a decorator breaks is told by whose transport it is, and by the rank that met it.
    let error = refused(1, &[("CAMPANILE_DECORATE", "fault(rank=1, fail_post=5)")], &MOE);
    has(&error, &["[1] error: ", "the fault decorator fails post 5 of rank 1", "[0] error: ", "rank 1"]);
}
