//! The emulator without Rust: kernels under ThreadSanitizer, with the bugs that it has to find, and with the portable
//! switch of contexts.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use super::kernels;
use super::tools::run;

/// The exit status of ThreadSanitizer when it has found something.
const FOUND: i32 = 66;
/// What is run: programs of `kernels/emulator/`, and the options that they are built with.
const PROGRAMS: [(&str, &[&str]); 3] =
    [("smoke_test", &[]), ("moe_test", &[]), ("moe_test", &["-DCAMPANILE_MOE_QUANTIZE=Type::F8E4M3"])];
/// Bugs that each of them can be built with: a release that is left out, and a barrier.
const BUGS: [&str; 2] = ["-DCAMPANILE_BUG_NO_RELEASE", "-DCAMPANILE_BUG_NO_BARRIER"];

pub fn check() -> anyhow::Result<()> {
    if let Err(error) = Command::new("c++").arg("--version").output() {
        println!("NOT RUN: the emulator under ThreadSanitizer: c++ does not start ({error})");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let sanitized: &[&'static str] = &["-fsanitize=thread"];
    let tsan = match build(folder, PROGRAMS[0].0, 64, sanitized, &["-DCAMPANILE_TSAN"]) {
        Ok(_) => true,
        Err(error) => {
            println!("NOT RUN: the emulator under ThreadSanitizer, which this compiler does not have: {error:#}");
            false
        }
    };
    for (name, options) in PROGRAMS {
        let with = |more: &[&'static str]| [options, more].concat();
        for wave in [32, 64] {
            let program = build(folder, name, wave, options, &["-DCAMPANILE_UCONTEXT"])?;
            run(&mut Command::new(program)).with_context(|| format!("{name} {options:?} with the portable switch"))?;
            if tsan {
                let program = build(folder, name, wave, &with(sanitized), &["-DCAMPANILE_TSAN"])?;
                run(&mut watched(&program)).with_context(|| format!("ThreadSanitizer on {name} {options:?}"))?;
            }
        }
        for bug in BUGS.iter().filter(|_| tsan) {
            let program = build(folder, name, 64, &with(&["-fsanitize=thread", bug]), &["-DCAMPANILE_TSAN"])?;
            let output = watched(&program).output()?;
            if output.status.code() != Some(FOUND) {
                let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
                bail!(
                    "ThreadSanitizer did not find {bug} in {name} {options:?}, but ended with {}:\n{}",
                    output.status,
                    said.concat()
                );
            }
        }
    }
    if tsan {
        println!(
            "emulator, {} programs: portable switch at waves 32 and 64; ThreadSanitizer clean at both, and it finds {} \
             seeded bugs",
            PROGRAMS.len(),
            PROGRAMS.len() * BUGS.len()
        );
    }
    Ok(())
}

fn watched(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("TSAN_OPTIONS", "halt_on_error=1");
    command
}

/// A program with `kernel` options for what is watched and `runtime` options for the emulator.
fn build(
    folder: &Path,
    name: &str,
    wave: u32,
    kernel: &[&str],
    runtime: &[&str],
) -> anyhow::Result<std::path::PathBuf> {
    let compile = |source: &str, object: &str, options: &[&str]| {
        let mut compiler = Command::new("c++");
        compiler.args(["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-c"]).args(options);
        compiler.arg(format!("-DCAMPANILE_WAVE={wave}")).arg("-I").arg(kernels());
        compiler.arg(kernels().join("emulator").join(source)).arg("-o").arg(folder.join(object));
        run(&mut compiler)
    };
    compile(&format!("{name}.cpp"), "kernel.o", kernel)?;
    compile("runtime.cpp", "runtime.o", runtime)?;
    let program = folder.join(name);
    let sanitizer = kernel.iter().filter(|option| option.starts_with("-fsanitize"));
    let mut linker = Command::new("c++");
    linker.arg("-pthread").args(sanitizer).current_dir(folder).args(["kernel.o", "runtime.o", "-o"]).arg(&program);
    run(&mut linker)?;
    Ok(program)
}
