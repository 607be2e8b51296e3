//! Launchers: who started this process, as which rank, and where the ranks of its job meet.
//!
//! **Ranks.** The first launcher of [`LAUNCHERS`] that has set one of its variables counts; all of its variables that
//! are needed must be there. Launchers nest from the outside in: Slurm starts an `mpirun`, that a `torchrun`, that a
//! `campanile run`, and the variables of the outer ones are inherited. So inner ones come first. Slurm sets variables
//! also where it starts no ranks, in a batch script; it counts only in a step (`srun`). `RANK` and `WORLD_SIZE` are
//! anybody's names: where they are not torchrun's (`TORCHELASTIC_RUN_ID`), they must not contradict another launcher,
//! unless they tell of more ranks than that started, each of which starts some then.
//!
//! **Rendezvous.** In order: `CAMPANILE_STORE`; `MASTER_ADDR` and `MASTER_PORT`, where torchrun's agent may listen
//! already; for a job on one machine, a name in the abstract namespace of Unix sockets that is made of the user and the
//! job's identity. That is what the launcher calls the job, or else the process that started the ranks: its number and
//! the time of its start, which no other has. Such a name is gone with the process that listens, so none is ever stale.
//! For several machines two variables must be set, and the error says which.

use std::collections::HashMap;
use std::fmt;

use campanile_core::{Config, ConfigError, Rank};

use crate::ancestor;
use crate::store::{Address, MAX_NAME};

/// A launcher: a line of the table.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    /// Set by it and by nobody else: it counts where one of these is there.
    marks: &'static [&'static str],
    rank: &'static [&'static str],
    ranks: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_ranks: &'static [&'static str],
    /// How many machines, if the number of local ranks does not tell.
    nodes: &'static [&'static str],
    /// What names the job: each group whole, the first that is there.
    job: &'static [&'static [&'static str]],
    /// Whether it binds ranks to cores by itself.
    binds: bool,
}

/// The launchers, innermost first. Each entry of a list of names is another name for the same.
static LAUNCHERS: &[Kind] = &[
    Kind {
        name: "torchrun",
        marks: &["RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"],
        rank: &["RANK"],
        ranks: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_ranks: &["LOCAL_WORLD_SIZE"],
        nodes: &[],
        job: &[&["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"], &["TORCHELASTIC_RUN_ID"]],
        binds: false,
    },
    Kind {
        name: "Open MPI",
        marks: &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
        rank: &["OMPI_COMM_WORLD_RANK"],
        ranks: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_ranks: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        nodes: &[],
        // Of version 4 the first alone is a hash of a few bits.
        job: &[&["PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri"], &["PMIX_NAMESPACE"]],
        binds: true,
    },
    Kind {
        name: "PMI",
        marks: &["PMI_RANK", "PMI_SIZE"],
        rank: &["PMI_RANK"],
        ranks: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"],
        local_ranks: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        nodes: &["SLURM_STEP_NUM_NODES"],
        // What is inherited names an outer job.
        job: &[],
        binds: true,
    },
    Kind {
        name: "Slurm",
        marks: &["SLURM_STEP_ID"],
        rank: &["SLURM_PROCID"],
        ranks: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        local_ranks: &[],
        nodes: &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"],
        job: &[&["SLURM_JOB_ID", "SLURM_STEP_ID"]],
        binds: true,
    },
    Kind {
        name: "PMIx",
        marks: &["PMIX_RANK"],
        rank: &["PMIX_RANK"],
        // It tells through its library only.
        ranks: &[],
        local_rank: &["PMIX_LOCAL_RANK"],
        local_ranks: &["PMIX_LOCAL_SIZE"],
        nodes: &[],
        job: &[&["PMIX_NAMESPACE"]],
        binds: true,
    },
];

/// Most ranks of a job, whoever starts it: each of them is told of all others.
const MOST_RANKS: usize = 1 << 16;

/// Where a process stands in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Who started it.
    pub launcher: &'static str,
    /// The rank.
    pub rank: Rank,
    /// Ranks of the job.
    pub ranks: usize,
    /// Number among the ranks on the same machine, if the launcher tells.
    pub local_rank: Option<usize>,
    /// Ranks on the same machine, if the launcher tells.
    pub local_ranks: Option<usize>,
    /// Whether the launcher binds ranks to cores by itself.
    pub binds: bool,
    /// Where the ranks meet.
    pub rendezvous: Rendezvous,
    /// What tells the job's keys from those of others in the same store.
    pub job: String,
}

/// Where the ranks of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// At the launcher's store.
    Launcher(Address),
    /// At a store that rank 0 hosts, unless one listens there already.
    Rank0(Address),
}

/// The launchers' variables do not tell a process its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// Some of a launcher's variables are there, some that are needed are not.
    #[error("{launcher}: {found} set, but {missing} not; set all of them or none")]
    Partial {
        /// Whose variables.
        launcher: &'static str,
        /// What is there.
        found: String,
        /// What is not.
        missing: String,
    },
    /// A value makes no sense.
    #[error("{name}={given:?} is not allowed; it takes {allowed}")]
    Value {
        /// Which variable.
        name: String,
        /// Its value.
        given: String,
        /// What it takes.
        allowed: String,
    },
    /// Variables contradict each other.
    #[error("{one} contradicts {other}; unset what is not meant")]
    Contradiction {
        /// One, with its value.
        one: String,
        /// The other.
        other: String,
    },
    /// The ranks have no place to meet.
    #[error(
        "{launcher} started {found}, but no place where its ranks meet is known: {reason}; set MASTER_ADDR to the \
        host name of rank 0's machine and MASTER_PORT to a free port there, the same on all ranks"
    )]
    NoRendezvous {
        /// Who started the job.
        launcher: &'static str,
        /// What it said.
        found: String,
        /// Why none could be found.
        reason: String,
    },
}

/// The environment.
struct Variables(HashMap<String, String>);

/// A variable and its number.
struct Number {
    name: &'static str,
    value: usize,
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

impl Variables {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The number of the first of `names` that is there.
    fn number(&self, names: &[&'static str]) -> Result<Option<Number>, PlaceError> {
        let Some((name, text)) = names.iter().find_map(|name| Some((*name, self.text(name)?))) else {
            return Ok(None);
        };
        match text.parse::<u32>() {
            Ok(value) => Ok(Some(Number { name, value: value as usize })),
            Err(_) => Err(PlaceError::Value {
                name: name.to_owned(),
                given: text.to_owned(),
                allowed: "a number from 0 to 4294967295".to_owned(),
            }),
        }
    }

    /// Those of `names` that are there, with their values.
    fn found(&self, names: impl IntoIterator<Item = &'static str>) -> String {
        let found = names.into_iter().filter_map(|name| Some(format!("{name}={}", self.text(name)?)));
        found.collect::<Vec<_>>().join(", ")
    }
}

impl Kind {
    fn is_marked(&self, variables: &Variables) -> bool {
        self.marks.iter().any(|mark| variables.text(mark).is_some())
    }

    /// All its variables, each once.
    fn names(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        for name in [self.rank, self.ranks, self.local_rank, self.local_ranks, self.nodes, self.marks].concat() {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Rank and ranks.
    fn rank_of(&self, variables: &Variables) -> Result<(Number, Number), PlaceError> {
        let (rank, ranks) = (variables.number(self.rank)?, variables.number(self.ranks)?);
        match (rank, ranks) {
            (Some(rank), Some(ranks)) => Ok((rank, ranks)),
            (rank, _) => Err(PlaceError::Partial {
                launcher: self.name,
                found: variables.found(self.names()),
                missing: match if rank.is_none() { self.rank } else { self.ranks } {
                    [] => "the number of ranks; set RANK and WORLD_SIZE".to_owned(),
                    names => names.join(" or "),
                },
            }),
        }
    }

    fn place(&self, variables: &Variables, store: Option<&str>) -> Result<Place, PlaceError> {
        let (rank, ranks) = self.rank_of(variables)?;
        let local_rank = variables.number(self.local_rank)?;
        let local_ranks = variables.number(self.local_ranks)?;
        let nodes = variables.number(self.nodes)?;
        let below = |one: &Number, other: &Number| match one.value < other.value {
            true => Ok(()),
            false => Err(PlaceError::Contradiction { one: one.to_string(), other: other.to_string() }),
        };
        if !(1..=MOST_RANKS).contains(&ranks.value) {
            return Err(PlaceError::Value {
                name: ranks.name.to_owned(),
                given: ranks.value.to_string(),
                allowed: format!("a number from 1 to {MOST_RANKS}"),
            });
        }
        below(&rank, &ranks)?;
        if let Some(local_rank) = &local_rank {
            below(local_rank, local_ranks.as_ref().unwrap_or(&ranks))?;
        }
        if let Some(local_ranks) = local_ranks.as_ref().filter(|local| local.value > ranks.value) {
            return Err(PlaceError::Contradiction { one: local_ranks.to_string(), other: ranks.to_string() });
        }
        let one_node = local_ranks.as_ref().map(|local| local.value == ranks.value);
        let one_node = one_node.or(nodes.map(|nodes| nodes.value == 1));
        let job = self.job(variables);
        let rendezvous = match rendezvous(variables, store)? {
            Some(rendezvous) => rendezvous,
            None => {
                let reason = match (self.binds, one_node) {
                    (true, Some(true)) => None,
                    (false, _) => Some("MASTER_ADDR and MASTER_PORT are not set"),
                    (_, Some(false)) => Some("it runs on several machines"),
                    (_, None) => Some("it does not tell whether it runs on one machine"),
                };
                if let Some(reason) = reason {
                    return Err(PlaceError::NoRendezvous {
                        launcher: self.name,
                        found: variables.found(self.names()),
                        reason: reason.to_owned(),
                    });
                }
                Rendezvous::Rank0(Address::Abstract(self.abstract_name(variables, job.as_deref())))
            }
        };
        Ok(Place {
            launcher: self.name,
            rank: Rank::new(rank.value),
            ranks: ranks.value,
            local_rank: local_rank.map(|local| local.value),
            local_ranks: local_ranks.map(|local| local.value).or((one_node == Some(true)).then_some(ranks.value)),
            binds: self.binds,
            rendezvous,
            job: job.unwrap_or_else(|| "job".to_owned()),
        })
    }

    /// What the launcher calls the job.
    fn job(&self, variables: &Variables) -> Option<String> {
        self.job.iter().find_map(|group| {
            let parts: Option<Vec<&str>> = group.iter().map(|name| variables.text(name)).collect();
            parts.map(|parts| parts.join("."))
        })
    }

    /// A name that the ranks of this job come to, and no others.
    fn abstract_name(&self, variables: &Variables, job: Option<&str>) -> String {
        let job = job.map(str::to_owned).unwrap_or_else(|| {
            let rank: Vec<_> = self.rank.iter().filter_map(|name| Some((*name, variables.text(name)?))).collect();
            ancestor::launcher(&rank)
        });
        let user = rustix::process::geteuid().as_raw();
        let start = format!("campanile-{user}-{}-", self.name.replace(' ', "-"));
        // The end of a long name is what tells jobs apart: numbers of processes, steps.
        let printable: String = job.chars().map(|it| if it.is_ascii_graphic() { it } else { '_' }).collect();
        let cut = printable.len().saturating_sub(MAX_NAME - start.len());
        start + &printable[cut..]
    }
}

/// Where the ranks were told to meet.
fn rendezvous(variables: &Variables, store: Option<&str>) -> Result<Option<Rendezvous>, PlaceError> {
    if let Some(text) = store {
        return Ok(Some(Rendezvous::Rank0(store_address(text)?)));
    }
    let (host, port) = (variables.text("MASTER_ADDR"), variables.number(&["MASTER_PORT"])?);
    match (host, port) {
        (None, None) => Ok(None),
        (Some(host), Some(port)) => {
            let port = u16::try_from(port.value).ok().filter(|port| *port > 0).ok_or_else(|| PlaceError::Value {
                name: port.name.to_owned(),
                given: port.value.to_string(),
                allowed: "a port from 1 to 65535".to_owned(),
            })?;
            let host = host.trim_matches(['[', ']']).to_owned();
            let address = Address::Tcp { host, port };
            let agent =
                variables.text("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|it| it.eq_ignore_ascii_case("true"));
            Ok(Some(if agent { Rendezvous::Launcher(address) } else { Rendezvous::Rank0(address) }))
        }
        (host, _) => {
            let (found, missing) = match host {
                Some(_) => ("MASTER_ADDR", "MASTER_PORT"),
                None => ("MASTER_PORT", "MASTER_ADDR"),
            };
            Err(PlaceError::Partial {
                launcher: "rendezvous",
                found: variables.found([found]),
                missing: missing.to_owned(),
            })
        }
    }
}

fn store_address(text: &str) -> Result<Address, PlaceError> {
    text.parse().map_err(|reason| PlaceError::Value {
        name: "CAMPANILE_STORE".to_owned(),
        given: text.to_owned(),
        allowed: format!("tcp://HOST:PORT or the name of a Unix socket ({reason})"),
    })
}

impl Place {
    /// The place of a process with this configuration and environment; `None` if nobody launched it.
    ///
    /// ```
    /// use campanile_bootstrap::{Address, Place, Rendezvous};
    /// use campanile_core::{Config, Rank};
    ///
    /// let variables = [("RANK", "3"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "node1"), ("MASTER_PORT", "29500")];
    /// let place = Place::of(&Config::default(), variables)?.expect("a launcher's variables");
    /// assert_eq!((place.launcher, place.rank, place.ranks), ("torchrun", Rank(3), 4));
    /// assert_eq!(place.rendezvous, Rendezvous::Rank0(Address::Tcp { host: "node1".to_owned(), port: 29500 }));
    ///
    /// let partial = Place::of(&Config::default(), [("RANK", "3")]).unwrap_err();
    /// assert!(partial.to_string().contains("RANK=3 set, but WORLD_SIZE not"));
    /// # Ok::<(), campanile_bootstrap::JoinError>(())
    /// ```
    ///
    /// # Errors
    /// [`PlaceError`] if variables are missing or contradict each other, [`ConfigError::Launch`] for those of
    /// `campanile run`.
    pub fn of<N: Into<String>, V: Into<String>>(
        config: &Config,
        environment: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Option<Self>, crate::JoinError> {
        let pairs = environment.into_iter().map(|(name, value)| (name.into(), value.into()));
        let variables = Variables(pairs.collect());
        if let Some(launched) = config.launched()? {
            return Ok(Some(Self {
                launcher: "campanile run",
                rank: launched.rank,
                ranks: launched.ranks,
                local_rank: Some(launched.local_rank),
                // It starts all ranks of a job on one machine.
                local_ranks: Some(launched.ranks),
                binds: false,
                rendezvous: Rendezvous::Launcher(store_address(&launched.store)?),
                job: "run".to_owned(),
            }));
        }
        let store = config.store();
        let marked: Vec<&Kind> = LAUNCHERS.iter().filter(|kind| kind.is_marked(&variables)).collect();
        let Some((first, others)) = marked.split_first() else {
            return match store {
                None => Ok(None),
                Some(_) => Err(ConfigError::Launch {
                    reason: "CAMPANILE_STORE set, but no launcher's rank and number of ranks".to_owned(),
                }
                .into()),
            };
        };
        let place = first.place(&variables, store.as_deref())?;
        if first.name == "torchrun" && variables.text("TORCHELASTIC_RUN_ID").is_none() {
            for other in others.iter().filter(|other| other.rank_of(&variables).is_ok()) {
                let (rank, ranks) = other.rank_of(&variables)?;
                if place.ranks <= ranks.value && (rank.value, ranks.value) != (place.rank.index(), place.ranks) {
                    return Err(PlaceError::Contradiction {
                        one: variables.found(["RANK", "WORLD_SIZE"]),
                        other: format!("{rank}, {ranks} of {}", other.name),
                    }
                    .into());
                }
            }
        }
        Ok(Some(place))
    }

    /// Whether all ranks are known to be on one machine.
    pub fn one_node(&self) -> bool {
        self.local_ranks == Some(self.ranks)
    }
}
