//! Checks that are calls of cargo.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// The root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

fn cargo(arguments: &[&str], environment: &[(&str, &str)]) -> anyhow::Result<()> {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).envs(environment.iter().copied()).current_dir(root());
    let status = command.status().with_context(|| format!("cargo {}", arguments.join(" ")))?;
    if !status.success() {
        bail!("cargo {} ended with {status}", arguments.join(" "));
    }
    Ok(())
}

pub fn format() -> anyhow::Result<()> {
    cargo(&["fmt", "--all", "--check"], &[])
}

pub fn lint() -> anyhow::Result<()> {
    cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"], &[])
}

pub fn doc() -> anyhow::Result<()> {
    cargo(&["doc", "--workspace", "--no-deps", "--quiet"], &[("RUSTDOCFLAGS", "--deny warnings")])
}

/// Every case of the MoE kernels, in each type and layout, by pull and by push: `cargo test` runs a part of the layouts.
pub fn grid() -> anyhow::Result<()> {
    if let Err(error) = Command::new("c++").arg("--version").output() {
        println!("NOT RUN: the grid in the emulator: c++ does not start ({error})");
        return Ok(());
    }
    let moe_gpu = ["run", "--quiet", "--package", "campanile-moe", "--example", "moe_gpu", "--", "emulator", "check"];
    ["32", "64"].into_iter().try_for_each(|wave| cargo(&[&moe_gpu[..], &["--wave", wave]].concat(), &[]))
}

/// The models, in a target folder of their own: the cfg rebuilds everything. Bounds and run times stand in the tests.
pub fn loom() -> anyhow::Result<()> {
    let models = [("campanile-core", "doorbell_loom"), ("campanile-moe", "protocol_loom")];
    for (package, test) in models {
        cargo(
            &["test", "--release", "--quiet", "--package", package, "--test", test, "--target-dir", "target/loom"],
            &[("RUSTFLAGS", "--cfg campanile_loom")],
        )?;
    }
    Ok(())
}
