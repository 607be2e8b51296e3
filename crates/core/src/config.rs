//! Configuration: one table of variables, and the values that a process runs with.
//!
//! A value comes from, each overriding the one before: the default, the `CAMPANILE_*` environment, a TOML file, code.
//! Everything is an argument here ([`Config::load`] takes the environment and the text of the file), so nothing is read
//! behind the caller's back. Each variable is defined once, in the table below, with its name, type, default and
//! documentation; `campanile info` prints that table. In the file a variable is written without the prefix, in lower
//! case: `CAMPANILE_QUEUE_DEPTH` is `queue_depth`.
//!
//! Invariants: every value of a [`Config`] is one that its variable allows; every value knows its [`Source`]; a name or
//! value that is not known is an error, never ignored.
//!
//! ```
//! use campanile_core::{Config, Source};
//! use std::time::Duration;
//!
//! let environment = [("CAMPANILE_TIMEOUT", "5s"), ("PATH", "/bin")];
//! let config = Config::load(environment, Some("queue_depth = 1024"))?;
//! assert_eq!(config.timeout(), Duration::from_secs(5));
//! assert_eq!(config.queue_depth(), 1024);
//! assert_eq!(config.source("CAMPANILE_TIMEOUT"), Some(Source::Environment));
//!
//! let error = Config::load([("CAMPANILE_TIMEOT", "5s")], None).unwrap_err();
//! assert!(error.to_string().contains("did you mean CAMPANILE_TIMEOUT"));
//! # Ok::<(), campanile_core::ConfigError>(())
//! ```

mod choice;
mod error;
mod kind;
mod nearest;

use std::ffi::OsStr;
use std::fmt;
use std::time::Duration;

pub use choice::{Bind, GpuChoice, HugePages, LogLevel, MoeCombine, MoeMode};
pub use error::ConfigError;
pub use kind::parse_duration;
pub use nearest::suggest;

use crate::selection::{Policy, Preference};
use crate::{Path, Rank};
use kind::Kind;

/// What the name of every variable begins with.
pub const PREFIX: &str = "CAMPANILE_";

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Nobody gave one.
    Default,
    /// A `CAMPANILE_*` variable.
    Environment,
    /// The TOML file.
    File,
    /// A call.
    Code,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Environment => "environment",
            Self::File => "file",
            Self::Code => "code",
        })
    }
}

/// Where a variable may be set, beside code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The environment and the file: the same for all ranks of a job.
    Job,
    /// The environment only: different for each rank, or needed before there is a file.
    Process,
}

/// A variable: a line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name in the environment.
    pub name: &'static str,
    /// Its default, as text that it accepts.
    pub default: &'static str,
    /// Where it may be set.
    pub scope: Scope,
    doc: &'static str,
    allowed: fn() -> String,
}

impl Variable {
    /// Its name in the file.
    pub fn key(&self) -> String {
        self.name.trim_start_matches(PREFIX).to_ascii_lowercase()
    }

    /// What it does, in one line.
    pub fn doc(&self) -> String {
        self.doc.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The values that it accepts, in words.
    pub fn allowed(&self) -> String {
        (self.allowed)()
    }
}

/// A variable, its value and where that came from.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The variable.
    pub variable: &'static Variable,
    /// The value, as text that the variable accepts.
    pub value: String,
    /// Where it came from.
    pub source: Source,
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq)]
struct Sourced<T> {
    value: T,
    source: Source,
}

/// Makes the table, the struct of typed values, and what walks over both.
macro_rules! variables {
    ($(
        $(#[doc = $doc:literal])+
        $name:literal: $scope:ident, $get:ident, $with:ident: $type:ty = $default:literal, $kind:expr;
    )+) => {
        /// The variables, in the order in which they are printed.
        pub static VARIABLES: &[Variable] = &[$(
            Variable {
                name: $name,
                default: $default,
                scope: Scope::$scope,
                doc: concat!($($doc, "\n"),+),
                allowed: || $kind.allowed(),
            },
        )+];

        /// The values that a process runs with.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($get: Sourced<$type>,)+
        }

        impl Default for Config {
            /// The defaults, without environment or file.
            fn default() -> Self {
                Self {$(
                    $get: Sourced {
                        value: $kind.parse($default).expect("the table gives each variable a default that it accepts"),
                        source: Source::Default,
                    },
                )+}
            }
        }

        impl Config {
            $(
                $(#[doc = $doc])+
                #[doc = concat!("\n\nVariable `", $name, "`, default ", $default, ".")]
                pub fn $get(&self) -> $type {
                    self.$get.value.clone()
                }

                #[doc = concat!("Sets `", $name, "` by code, which overrides every other source.")]
                ///
                /// # Errors
                /// [`ConfigError::Value`] if the variable does not allow that value.
                pub fn $with(mut self, value: $type) -> Result<Self, ConfigError> {
                    let text = $kind.show(&value);
                    self.assign($name, $name, &text, Source::Code)?;
                    Ok(self)
                }
            )+

            /// Every variable with its value, in the order of [`VARIABLES`].
            pub fn settings(&self) -> Vec<Setting> {
                let values = [$(($kind.show(&self.$get.value), self.$get.source)),+];
                VARIABLES
                    .iter()
                    .zip(values)
                    .map(|(variable, (value, source))| Setting { variable, value, source })
                    .collect()
            }

            /// Gives the variable `name` the value that `text` says; `Ok(false)` if there is no such variable.
            /// Errors call it `written`, as it was called where it was set.
            fn assign(&mut self, name: &str, written: &str, text: &str, source: Source) -> Result<bool, ConfigError> {
                match name {
                    $($name => {
                        let value = $kind.parse(text).ok_or_else(|| ConfigError::Value {
                            name: written.to_owned(),
                            given: text.to_owned(),
                            origin: source,
                            allowed: $kind.allowed(),
                        })?;
                        self.$get = Sourced { value, source };
                    })+
                    _ => return Ok(false),
                }
                Ok(true)
            }
        }
    };
}

variables! {
    /// Path of a TOML file with more settings, which override the environment.
    "CAMPANILE_CONFIG": Process, config_file, with_config_file: Option<String> = "unset", Kind::OPTIONAL_TEXT;

    /// Which transports may connect the ranks, of those that `campanile info` lists. With auto it is the one that reaches
    /// all ranks at the least cost, with names the first one that can run.
    "CAMPANILE_TRANSPORT": Job, transport, with_transport: Preference = "auto", Kind::PREFERENCE;

    /// Folders that are searched for plugins, files named `libcampanile_*.so`; with colons in between.
    "CAMPANILE_PLUGIN_PATH": Job, plugin_path, with_plugin_path: Option<String> = "unset", Kind::OPTIONAL_TEXT;

    /// Decorators around the transport, innermost first, as throttle(latency=5us, bandwidth=1GB/s)+stats.
    "CAMPANILE_DECORATE": Job, decorate, with_decorate: Option<String> = "unset", Kind::OPTIONAL_TEXT;

    /// How much the program tells of itself on standard error. A program of one's own installs its own subscriber.
    "CAMPANILE_LOG": Job, log, with_log: LogLevel = "warn", Kind::<LogLevel>::CHOICE;

    /// Upper bound of every wait, on the host and on devices; when it is reached the wait ends in an error that names
    /// the peer.
    "CAMPANILE_TIMEOUT": Job, timeout, with_timeout: Duration = "30s", Kind::DURATION;

    /// How windows reach peers: load / store where it reaches and queues elsewhere, or one of them forced.
    "CAMPANILE_PATH": Job, path, with_path: Path = "auto", Kind::<Path>::CHOICE;

    /// Slots of each queue.
    "CAMPANILE_QUEUE_DEPTH": Job, queue_depth, with_queue_depth: usize = "256", Kind::DEPTH;

    /// Whether each launched rank is bound to its own physical cores. Ranks that are threads of a program are not,
    /// unless it asks.
    "CAMPANILE_BIND": Job, bind, with_bind: Bind = "cores", Kind::<Bind>::CHOICE;

    /// Whether windows are put on huge pages, where the machine gives them.
    "CAMPANILE_HUGE_PAGES": Job, huge_pages, with_huge_pages: HugePages = "auto", Kind::<HugePages>::CHOICE;

    /// Whose devices are used: those of CUDA and HIP, of one of them, or devices that the CPU emulates, which are not used
    /// unless asked for.
    "CAMPANILE_GPU": Job, gpu, with_gpu: GpuChoice = "auto", Kind::<GpuChoice>::CHOICE;

    /// Schedule of MoE dispatch and combine; the results are the same bits.
    "CAMPANILE_MOE_MODE": Job, moe_mode, with_moe_mode: MoeMode = "auto", Kind::<MoeMode>::CHOICE;

    /// Who moves the results of MoE combine: the source pulls them, or the owner pushes them; the results are the same
    /// bits.
    "CAMPANILE_MOE_COMBINE": Job, moe_combine, with_moe_combine: MoeCombine = "auto", Kind::<MoeCombine>::CHOICE;

    /// Path of the CUDA driver, instead of `libcuda.so.1` where the loader finds it.
    "CAMPANILE_LIBCUDA": Job, libcuda, with_libcuda: Option<String> = "unset", Kind::OPTIONAL_TEXT;

    /// Path of NVRTC, instead of `libnvrtc.so` of the driver's major version.
    "CAMPANILE_LIBNVRTC": Job, libnvrtc, with_libnvrtc: Option<String> = "unset", Kind::OPTIONAL_TEXT;

    /// Path of the HIP runtime, instead of `libamdhip64.so` where the loader or `/opt/rocm/lib` has it.
    "CAMPANILE_LIBAMDHIP64": Job, libamdhip64, with_libamdhip64: Option<String> = "unset", Kind::OPTIONAL_TEXT;

    /// Path of hipRTC, instead of `libhiprtc.so` or the HIP runtime itself.
    "CAMPANILE_LIBHIPRTC": Job, libhiprtc, with_libhiprtc: Option<String> = "unset", Kind::OPTIONAL_TEXT;

    /// C++ compiler that builds kernels for the emulator; `c++` if unset.
    "CAMPANILE_CXX": Job, cxx, with_cxx: Option<String> = "unset", Kind::OPTIONAL_TEXT;

    /// Folder of compiled kernels; `campanile/kernels` in the user's cache folder if unset.
    "CAMPANILE_KERNEL_CACHE": Job, kernel_cache, with_kernel_cache: Option<String> = "unset", Kind::OPTIONAL_TEXT;

    /// This process's rank in its job. Set by the launcher.
    "CAMPANILE_RANK": Process, rank, with_rank: Option<u32> = "unset", Kind::RANK;

    /// Ranks of the job. Set by the launcher.
    "CAMPANILE_WORLD_SIZE": Process, world_size, with_world_size: Option<u32> = "unset", Kind::RANKS;

    /// This process's number among the ranks on its machine. Set by the launcher.
    "CAMPANILE_LOCAL_RANK": Process, local_rank, with_local_rank: Option<u32> = "unset", Kind::RANK;

    /// Address of the job's store: tcp://HOST:PORT, or a name in the abstract namespace of Unix sockets. Set by
    /// `campanile run`; under another launcher it says where the ranks meet, and rank 0 hosts the store.
    "CAMPANILE_STORE": Process, store, with_store: Option<String> = "unset", Kind::OPTIONAL_TEXT;
}

/// What `campanile run` tells a rank that it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// The rank.
    pub rank: Rank,
    /// Ranks of the job.
    pub ranks: usize,
    /// Number among the ranks on the same machine.
    pub local_rank: usize,
    /// Address of the job's store.
    pub store: String,
}

impl Config {
    /// The configuration that the environment (all of it; other names are left alone) and the text of a TOML file give.
    ///
    /// Which file is itself a variable: load without one, read the file that [`config_file`](Self::config_file) names,
    /// load again with its text.
    ///
    /// # Errors
    /// [`ConfigError`] names the first name or value that is not allowed, what is, and the nearest known names.
    pub fn load<N, V>(environment: impl IntoIterator<Item = (N, V)>, file: Option<&str>) -> Result<Self, ConfigError>
    where
        N: AsRef<OsStr>,
        V: AsRef<OsStr>,
    {
        let mut config = Self::default();
        for (name, value) in environment {
            config.read_environment(name.as_ref(), value.as_ref())?;
        }
        if let Some(text) = file {
            config.read_file(text)?;
        }
        Ok(config)
    }

    /// Where the value of a variable came from; `None` if there is no variable of that name.
    pub fn source(&self, name: &str) -> Option<Source> {
        self.settings().into_iter().find(|setting| setting.variable.name == name).map(|setting| setting.source)
    }

    /// What `campanile run` told this process, `None` if it did not start it. (Other launchers' variables are no part of
    /// the configuration.)
    ///
    /// # Errors
    /// [`ConfigError::Launch`] if only some of the launcher's variables are set, or they contradict each other.
    pub fn launched(&self) -> Result<Option<Launched>, ConfigError> {
        let given = [
            ("CAMPANILE_RANK", self.rank().is_some()),
            ("CAMPANILE_WORLD_SIZE", self.world_size().is_some()),
            ("CAMPANILE_LOCAL_RANK", self.local_rank().is_some()),
            ("CAMPANILE_STORE", self.store().is_some()),
        ];
        let (Some(rank), Some(ranks), Some(local_rank), Some(store)) =
            (self.rank(), self.world_size(), self.local_rank(), self.store())
        else {
            let named = |set: bool| {
                let names = given.iter().filter(|(_, is_set)| *is_set == set).map(|(name, _)| *name);
                names.collect::<Vec<_>>().join(", ")
            };
            // The address alone is for the ranks of another launcher.
            if given[..3].iter().all(|(_, is_set)| !is_set) {
                return Ok(None);
            }
            return Err(ConfigError::Launch { reason: format!("{} set, but {} not", named(true), named(false)) });
        };
        for (name, number) in [("CAMPANILE_RANK", rank), ("CAMPANILE_LOCAL_RANK", local_rank)] {
            if number >= ranks {
                let reason = format!("{name}={number} is not below CAMPANILE_WORLD_SIZE={ranks}");
                return Err(ConfigError::Launch { reason });
            }
        }
        Ok(Some(Launched { rank: Rank(rank), ranks: ranks as usize, local_rank: local_rank as usize, store }))
    }

    /// What `CAMPANILE_TRANSPORT` and `CAMPANILE_PATH` say of transports.
    pub fn policy(&self) -> Policy {
        Policy::new(self.transport(), self.path()).sources(self.transport.source, self.path.source)
    }

    /// Makes sure that every transport that is named is one of `available`. `resolved` is the preference with names for
    /// paths.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn check_transport(&self, resolved: &Preference, available: &[&str]) -> Result<(), ConfigError> {
        let Sourced { value, source } = &self.transport;
        if resolved.names().iter().all(|name| available.contains(&name.as_str())) {
            return Ok(());
        }
        Err(ConfigError::Value {
            name: "CAMPANILE_TRANSPORT".to_owned(),
            given: value.to_string(),
            origin: *source,
            allowed: format!("auto or, in order of preference, any of {}", available.join(", ")),
        })
    }

    fn read_environment(&mut self, name: &OsStr, value: &OsStr) -> Result<(), ConfigError> {
        let name = name.to_string_lossy();
        if !name.starts_with(PREFIX) {
            return Ok(());
        }
        // What is not UTF-8 gets a replacement character, which only the free texts (a path, an address) would accept.
        let value = value.to_string_lossy();
        if value.contains(char::REPLACEMENT_CHARACTER) {
            return Err(ConfigError::Value {
                name: name.into_owned(),
                given: value.into_owned(),
                origin: Source::Environment,
                allowed: "UTF-8".to_owned(),
            });
        }
        if self.assign(&name, &name, &value, Source::Environment)? {
            return Ok(());
        }
        let nearest = nearest::suggest(&name, VARIABLES.iter().map(|variable| variable.name.to_owned()));
        Err(ConfigError::UnknownVariable { given: name.into_owned(), nearest })
    }

    fn read_file(&mut self, text: &str) -> Result<(), ConfigError> {
        let table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| ConfigError::Syntax { reason: error.to_string() })?;
        for (key, value) in table {
            let Some(variable) = VARIABLES.iter().find(|variable| variable.key() == key) else {
                let job = VARIABLES.iter().filter(|variable| variable.scope == Scope::Job);
                let nearest = nearest::suggest(&key, job.map(Variable::key));
                return Err(ConfigError::UnknownKey { given: key, nearest });
            };
            if variable.scope == Scope::Process {
                return Err(ConfigError::NotInFile { given: key, variable: variable.name });
            }
            let text = match value {
                toml::Value::String(text) => text,
                value @ (toml::Value::Integer(_) | toml::Value::Float(_)) => value.to_string(),
                other => {
                    return Err(ConfigError::Value {
                        name: key,
                        given: other.to_string(),
                        origin: Source::File,
                        allowed: variable.allowed(),
                    });
                }
            };
            self.assign(variable.name, &key, &text, Source::File)?;
        }
        Ok(())
    }
}
