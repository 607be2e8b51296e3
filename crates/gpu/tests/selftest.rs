//! The selftest, all of it, on the emulator at both waves and through the HIP side of the table.

use std::path::PathBuf;
use std::process::Command;

/// Checks that the selftest has.
const CHECKS: usize = 21;

/// What `cargo test` builds beside the tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.ancestors().nth(2).expect("tests lie in target/PROFILE/deps").join("examples");
    let path = folder.join(name);
    assert!(path.exists(), "{} is not built; run `cargo test -p campanile-gpu` without --test", path.display());
    path
}

/// Runs the selftest; all of it must pass, and nothing may be left out.
fn passes(backend: &str, environment: &[(&str, &str)]) {
    if let Err(error) = Command::new("c++").arg("--version").output() {
        println!("not run: no C++ compiler for the emulator's kernels ({error})");
        return;
    }
    let output = Command::new(example("selftest"))
        .arg(backend)
        .env("CAMPANILE_KERNEL_CACHE", PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels"))
        .envs(environment.iter().copied())
        .output()
        .expect("the selftest starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = text.lines().filter(|line| line.starts_with("passed ")).count();
    let all = output.status.success() && passed == CHECKS;
    assert!(all, "{}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
}

#[test]
fn emulator_of_wave_64() {
    passes("emulator", &[]);
}

#[test]
fn emulator_of_wave_32() {
    passes("emulator32", &[]);
}

/// The shim is test code: it stands for AMD's library, and is not it.
#[test]
fn hip_through_the_shim() {
    let shim = example("libamdhip64.so");
    passes("hip", &[("CAMPANILE_LIBAMDHIP64", shim.to_str().expect("the path of the target folder is UTF-8"))]);
}

/// Before 7.1, HIP imported descriptors by pointer; and the other GPU.
#[test]
fn older_hip_through_the_shim() {
    let shim = example("libamdhip64.so");
    let path = shim.to_str().expect("the path of the target folder is UTF-8");
    let other = [("HIP_SHIM_VERSION", "60443483"), ("HIP_SHIM_TARGET", "gfx950")];
    passes("hip", &[&other[..], &[("CAMPANILE_LIBAMDHIP64", path)]].concat());
}
