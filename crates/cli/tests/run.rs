//! `campanile run`: its command line and exit codes. What a launcher does is tested in `campanile-bootstrap`.

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.arg("run").args(arguments).env_remove("CAMPANILE_CONFIG").output().expect("campanile starts")
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn good_ranks_are_passed_on_and_exit_code_0() {
    let script = "echo rank $CAMPANILE_RANK of $CAMPANILE_WORLD_SIZE, $1, bound to ${CAMPANILE_BIND:-default}";
    for (options, bind) in [(&["-n", "2", "--"][..], "default"), (&["--ranks=2", "--bind", "none"][..], "none")] {
        let output = run(&[options, &["sh", "-c", script, "sh", "--ranks=7"]].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let stdout = String::from_utf8(output.stdout).unwrap();
        let mut lines: Vec<&str> = stdout.lines().collect();
        lines.sort_unstable();
        let expected = |rank| format!("[{rank}] rank {rank} of 2, --ranks=7, bound to {bind}");
        assert_eq!(lines, [expected(0), expected(1)]);
        assert!(output.stderr.is_empty());
    }
}

#[test]
fn a_rank_that_fails_is_named_with_exit_code_1() {
    let output = run(&["-n", "2", "--", "sh", "-c", "exit $((5 * CAMPANILE_RANK))"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(error(&output), "error: rank 1 exited with code 5; rank 0 exited with code 0\n");
    let output = run(&["-n", "1", "--timeout", "200ms", "--", "sleep", "1000"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(error(&output).starts_with("error: not done after 200.0ms; still running: rank 0"), "{output:?}");
}

#[test]
fn what_makes_no_sense_is_named_with_exit_code_2() {
    for (arguments, named) in [
        (&["-n", "0", "--", "true"][..], "0 ranks"),
        (&["-n", "two", "--", "true"], "two"),
        (&["--", "true"], "--ranks"),
        (&["-n", "1"], "COMMAND"),
        (&["-n", "1", "--", "no-such-program"], "\"no-such-program\""),
        (&["-n", "1", "--timeout", "0", "--", "true"], "more than 0"),
        (&["-n", "1", "--timeout", "soon", "--", "true"], "soon"),
        (&["-n", "1", "--bind", "sockets", "--", "true"], "cores, none"),
        (&["-n", "1", "--frobnicate", "true"], "--frobnicate"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(error(&output).contains(named), "{output:?}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    let output = command.args(["run", "-n", "1", "--", "true"]).env("CAMPANILE_TIMEOT", "1").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error(&output).contains("did you mean CAMPANILE_TIMEOUT?"), "{output:?}");
}
