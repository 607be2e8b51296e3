//! The emulator without Rust: kernels under ThreadSanitizer, with the bugs that it has to find, and with the portable
//! switch of contexts.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use super::kernels;
use super::tools::run;

/// The exit status of ThreadSanitizer when it has found something.
const FOUND: i32 = 66;
/// A program of `kernels/emulator/`, and the options that it is built with.
struct Program {
    name: &'static str,
    options: &'static [&'static str],
    /// What each can be built with to be wrong: a release that is left out, a barrier, an acquire.
    bugs: &'static [&'static str],
}

const fn program(name: &'static str, options: &'static [&'static str], bugs: &'static [&'static str]) -> Program {
    Program { name, options, bugs }
}

const NO_RELEASE: &str = "-DCAMPANILE_BUG_NO_RELEASE";
const NO_BARRIER: &str = "-DCAMPANILE_BUG_NO_BARRIER";
const NO_ACQUIRE: &str = "-DCAMPANILE_BUG_NO_ACQUIRE";
const PUSH_BUGS: &[&str] = &["-DCAMPANILE_BUG_NO_RETURN_RELEASE", "-DCAMPANILE_BUG_NO_RETURN_BARRIER"];

const PROGRAMS: [Program; 7] = [
    program("smoke_test", &[], &[NO_RELEASE, NO_BARRIER]),
    program("device_test", &[], &[NO_RELEASE, NO_BARRIER]),
    program("litmus_test", &[], &[NO_RELEASE, NO_BARRIER, NO_ACQUIRE]),
    program("moe_test", &[], &[NO_RELEASE, NO_BARRIER]),
    program("moe_test", &["-DCAMPANILE_LOW_LATENCY"], &[NO_RELEASE, NO_BARRIER]),
    program("moe_test", &["-DCAMPANILE_MOE_QUANTIZE=Type::F8E4M3"], &[NO_RELEASE, NO_BARRIER]),
    program("push_test", &[], PUSH_BUGS),
];

pub fn check() -> anyhow::Result<()> {
    if let Err(error) = Command::new("c++").arg("--version").output() {
        println!("NOT RUN: the emulator under ThreadSanitizer: c++ does not start ({error})");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let sanitized: &[&'static str] = &["-fsanitize=thread"];
    let tsan = match build(folder, PROGRAMS[0].name, 64, sanitized, &["-DCAMPANILE_TSAN"]) {
        Ok(_) => true,
        Err(error) => {
            println!("NOT RUN: the emulator under ThreadSanitizer, which this compiler does not have: {error:#}");
            false
        }
    };
    for Program { name, options, bugs } in PROGRAMS {
        let with = |more: &[&'static str]| [options, more].concat();
        for wave in [32, 64] {
            let program = build(folder, name, wave, options, &["-DCAMPANILE_UCONTEXT"])?;
            run(&mut Command::new(program)).with_context(|| format!("{name} {options:?} with the portable switch"))?;
            if tsan {
                let program = build(folder, name, wave, &with(sanitized), &["-DCAMPANILE_TSAN"])?;
                run(&mut watched(&program)).with_context(|| format!("ThreadSanitizer on {name} {options:?}"))?;
            }
        }
        for bug in bugs.iter().filter(|_| tsan) {
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
            "emulator, {}: portable switch at waves 32 and 64; ThreadSanitizer clean at both, and it finds {} seeded bugs",
            PROGRAMS.map(|program| [&[program.name], program.options].concat().join(" ")).join(", "),
            PROGRAMS.iter().map(|program| program.bugs.len()).sum::<usize>()
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
