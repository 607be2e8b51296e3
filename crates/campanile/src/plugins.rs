//! The transports that a program can use.

use std::path::PathBuf;
use std::sync::Arc;

use campanile_core::selection::Preference;
use campanile_core::{CommOptions, Config, ConfigError, TransportPlugin};
use campanile_shm::ShmPlugin;

/// Where a transport came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is linked in.
    Linked,
    /// It was loaded from this file.
    File(PathBuf),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Linked => f.write_str("linked in"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A transport and where it came from.
#[derive(Clone)]
pub struct Plugin {
    /// The transport.
    pub transport: Arc<dyn TransportPlugin>,
    /// Where it came from.
    pub origin: Origin,
}

impl Plugin {
    /// Name of the transport.
    pub fn name(&self) -> &'static str {
        self.transport.info().name
    }
}

/// A file that is no transport that can be used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

/// The transports that a program can use, and the files that were refused.
///
/// A value, not a global: a program may have several with different transports in them. Names are unique.
///
/// ```
/// use campanile::{Config, Plugins};
/// let plugins = Plugins::of(&Config::default()).unwrap();
/// let names: Vec<_> = plugins.iter().map(|plugin| plugin.name()).collect();
/// assert_eq!(names, ["shm"]);
/// ```
#[derive(Clone, Default)]
pub struct Plugins {
    plugins: Vec<Plugin>,
    refused: Vec<Refused>,
}

impl Plugins {
    /// Those that are linked in.
    pub fn linked() -> Self {
        Self { plugins: vec![Plugin { transport: Arc::new(ShmPlugin), origin: Origin::Linked }], refused: Vec::new() }
    }

    /// Those that a process with this configuration can use.
    ///
    /// # Errors
    /// As [`preference`](Self::preference): a configuration that names a transport that is not there is of no use.
    pub fn of(config: &Config) -> Result<Self, ConfigError> {
        let plugins = Self::linked();
        plugins.preference(config)?;
        Ok(plugins)
    }

    /// With what a search of directories found: each file's transport, or why it was refused. Of files that give one name
    /// none is used, because nobody said which; nor is a file that gives the name of a transport that is there already.
    #[must_use]
    pub fn with_found(
        mut self,
        found: impl IntoIterator<Item = (PathBuf, Result<Arc<dyn TransportPlugin>, String>)>,
    ) -> Self {
        let mut plugins: Vec<(PathBuf, Arc<dyn TransportPlugin>)> = Vec::new();
        for (path, loaded) in found {
            match loaded {
                Ok(transport) => plugins.push((path, transport)),
                Err(reason) => self.refused.push(Refused { path, reason }),
            }
        }
        let before = self.plugins.len();
        for (path, transport) in &plugins {
            let name = transport.info().name;
            let same = plugins.iter().filter(|(_, other)| other.info().name == name);
            let same: Vec<_> = same.map(|(path, _)| path.display().to_string()).collect();
            let there = self.plugins[..before].iter().find(|plugin| plugin.name() == name);
            let reason = match there {
                Some(plugin) => format!("transport {name} is there already ({})", plugin.origin),
                None if same.len() > 1 => format!("{} give transport {name}", same.join(" and ")),
                None => {
                    let origin = Origin::File(path.clone());
                    self.plugins.push(Plugin { transport: Arc::clone(transport), origin });
                    continue;
                }
            };
            let reason = format!("{reason}; set CAMPANILE_TRANSPORT to a path to choose one");
            self.refused.push(Refused { path: path.clone(), reason });
        }
        self
    }

    /// With the transport of a file that somebody named by its path: it takes the place of another one of its name.
    #[must_use]
    pub fn with_file(mut self, path: PathBuf, loaded: Result<Arc<dyn TransportPlugin>, String>) -> Self {
        self.refused.retain(|refused| refused.path != path);
        match loaded {
            Ok(transport) => {
                let name = transport.info().name;
                self.plugins.retain(|plugin| plugin.name() != name);
                self.plugins.push(Plugin { transport, origin: Origin::File(path) });
            }
            Err(reason) => self.refused.push(Refused { path, reason }),
        }
        self
    }

    /// The transports.
    pub fn iter(&self) -> impl Iterator<Item = &Plugin> {
        self.plugins.iter()
    }

    /// The transports, for [`Communicator::select`](crate::Communicator::select).
    pub fn transports(&self) -> Vec<&dyn TransportPlugin> {
        self.plugins.iter().map(|plugin| &*plugin.transport).collect()
    }

    /// The files that were refused.
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// The preference that `config` gives, with names for paths.
    ///
    /// # Errors
    /// [`ConfigError::Value`] if it names what is not there, with what is, and the files that were refused.
    pub fn preference(&self, config: &Config) -> Result<Preference, ConfigError> {
        let names: Vec<_> = self.plugins.iter().map(Plugin::name).collect();
        let by_path = |given: &str| {
            let of = |plugin: &&Plugin| plugin.origin == Origin::File(PathBuf::from(given));
            self.plugins.iter().find(of).map(Plugin::name)
        };
        let preference = config.transport();
        let names_of = preference.names().iter().map(|given| by_path(given).unwrap_or(given));
        // None if it is auto, which has no names, or if a path and a name mean one transport, which is refused below.
        let resolved = Preference::of(names_of).unwrap_or(preference);
        match config.check_transport(&resolved, &names) {
            Ok(()) => Ok(resolved),
            Err(ConfigError::Value { name, given, origin, allowed }) if !self.refused.is_empty() => {
                let refused =
                    self.refused.iter().map(|Refused { path, reason }| format!("{}: {reason}", path.display()));
                let allowed = format!("{allowed}; refused: {}", refused.collect::<Vec<_>>().join("; "));
                Err(ConfigError::Value { name, given, origin, allowed })
            }
            Err(error) => Err(error),
        }
    }

    /// What `config` says of communicators.
    ///
    /// # Errors
    /// As [`preference`](Self::preference).
    pub fn options(&self, config: &Config) -> Result<CommOptions, ConfigError> {
        Ok(CommOptions { transports: self.preference(config)?, ..crate::options(config) })
    }
}
