//! The transports that a program can use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use campanile_core::selection::Preference;
use campanile_core::{CommOptions, Config, ConfigError, Source, TransportPlugin};
use campanile_p2p::P2pPlugin;
use campanile_plugin::{Found, Loader};
use campanile_shm::ShmPlugin;
use campanile_testkit::decorate::Stack;

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
    name: &'static str,
    /// The transport, with its decorators.
    pub transport: Arc<dyn TransportPlugin>,
    /// Where it came from.
    pub origin: Origin,
}

impl Plugin {
    /// One without decorators.
    pub fn new(transport: Arc<dyn TransportPlugin>, origin: Origin) -> Self {
        Self { name: transport.info().name, transport, origin }
    }

    /// The name by which it is chosen: without its decorators.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// A file or folder that gives no transport that can be used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The file or folder.
    pub path: PathBuf,
    /// Why, in a sentence that names it.
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
/// assert_eq!(names, ["shm", "p2p"]);
/// ```
#[derive(Clone, Default)]
pub struct Plugins {
    plugins: Vec<Plugin>,
    refused: Vec<Refused>,
    /// Names of those that were found, and that the configuration does not name.
    not_loaded: Vec<String>,
}

impl Plugins {
    /// Those that are linked in, with the devices of a configuration that nobody has changed.
    pub fn linked() -> Self {
        Self::linked_with(&Config::default())
    }

    fn linked_with(config: &Config) -> Self {
        let transports: [Arc<dyn TransportPlugin>; 2] = [Arc::new(ShmPlugin), Arc::new(P2pPlugin::from(config))];
        let plugins = transports.into_iter().map(|transport| Plugin::new(transport, Origin::Linked));
        Self { plugins: plugins.collect(), ..Self::default() }
    }

    /// Those that a process with this configuration can use: linked in, named by the path of a file, found in the
    /// folders of `CAMPANILE_PLUGIN_PATH`; each with the decorators of `CAMPANILE_DECORATE` around it. With names in
    /// `CAMPANILE_TRANSPORT` nothing else is loaded, and nothing searched for that is not needed.
    ///
    /// # Errors
    /// As [`preference`](Self::preference): a configuration that names a transport that is not there is of no use.
    /// [`ConfigError::Value`] for decorators that are none.
    pub fn of(config: &Config) -> Result<Self, ConfigError> {
        Self::with_folders(config, false)
    }

    /// As [`of`](Self::of), but with everything that the folders hold, also what the configuration does not name: for who
    /// wants to see what there is.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn all(config: &Config) -> Result<Self, ConfigError> {
        Self::with_folders(config, true)
    }

    fn with_folders(config: &Config, everything: bool) -> Result<Self, ConfigError> {
        let mut plugins = Self::linked_with(config);
        let loader = Loader::default();
        for name in config.transport().names().iter().filter(|name| name.contains('/')) {
            let loaded = loader.load_file(Path::new(name));
            let loaded = loaded.map(|imported| Arc::new(imported) as Arc<dyn TransportPlugin>);
            plugins = plugins.with_file(PathBuf::from(name), loaded.map_err(|error| error.to_string()));
        }
        // Whoever names what is there already needs no search, and is not held up by a file that he does not use.
        let named = config.transport();
        let is_there = |name: &String| name.contains('/') || plugins.plugins.iter().any(|plugin| plugin.name == name);
        let everything = everything || named.is_auto();
        let all_there = !everything && named.names().iter().all(is_there);
        if let Some(folders) = config.plugin_path().filter(|_| !all_there) {
            let taken: Vec<_> = plugins.iter().map(Plugin::name).collect();
            let search = loader.search(&folders, &taken);
            for error in search.refused {
                plugins.refused.push(Refused { path: error.path().to_owned(), reason: error.to_string() });
            }
            let is_wanted = |found: &Found| everything || named.names().contains(&found.name);
            let (wanted, others): (Vec<_>, Vec<_>) = search.found.into_iter().partition(is_wanted);
            plugins.not_loaded = others.into_iter().map(|found| found.name).collect();
            for found in wanted {
                match loader.load(&found.path) {
                    Ok(imported) => plugins.plugins.push(Plugin::new(Arc::new(imported), Origin::File(found.path))),
                    Err(error) => plugins.refused.push(Refused { path: found.path, reason: error.to_string() }),
                }
            }
        }
        if let Some(text) = config.decorate() {
            let stack = Stack::parse(&text).map_err(|error| ConfigError::Value {
                name: "CAMPANILE_DECORATE".to_owned(),
                given: text,
                origin: config.source("CAMPANILE_DECORATE").unwrap_or(Source::Code),
                allowed: format!("decorators joined by +, as throttle(latency=5us)+stats ({error})"),
            })?;
            plugins = plugins.decorated(&stack);
        }
        plugins.preference(config)?;
        Ok(plugins)
    }

    /// With another transport, in the place of one of its name.
    #[must_use]
    pub fn with(mut self, plugin: Plugin) -> Self {
        self.plugins.retain(|other| other.name != plugin.name);
        self.plugins.push(plugin);
        self
    }

    /// With decorators around every transport.
    #[must_use]
    pub fn decorated(mut self, stack: &Stack) -> Self {
        for plugin in &mut self.plugins {
            plugin.transport = stack.apply(Arc::clone(&plugin.transport));
        }
        self
    }

    /// With the transport of a file that somebody named by its path.
    fn with_file(mut self, path: PathBuf, loaded: Result<Arc<dyn TransportPlugin>, String>) -> Self {
        match loaded {
            Ok(transport) => self.with(Plugin::new(transport, Origin::File(path))),
            Err(reason) => {
                self.refused.push(Refused { path, reason });
                self
            }
        }
    }

    /// The transports.
    pub fn iter(&self) -> impl Iterator<Item = &Plugin> {
        self.plugins.iter()
    }

    /// The transport that `config` prefers, before anybody is asked whether it can run; the first if it has no preference.
    ///
    /// # Errors
    /// As [`preference`](Self::preference); also if there is none at all.
    pub fn preferred(&self, config: &Config) -> Result<&Plugin, ConfigError> {
        let preference = self.preference(config)?;
        let name = preference.names().first();
        let wanted = |plugin: &&Plugin| name.is_none_or(|name| plugin.transport.info().name == name);
        self.plugins.iter().find(wanted).ok_or_else(|| ConfigError::Value {
            name: "CAMPANILE_TRANSPORT".to_owned(),
            given: preference.to_string(),
            origin: config.source("CAMPANILE_TRANSPORT").unwrap_or(Source::Code),
            allowed: "nothing: this program has no transport".to_owned(),
        })
    }

    /// The transports, for [`Communicator::select`](crate::Communicator::select).
    pub fn transports(&self) -> Vec<&dyn TransportPlugin> {
        self.plugins.iter().map(|plugin| &*plugin.transport).collect()
    }

    /// The files that were refused.
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// The preference that `config` gives, in the names that the transports have with their decorators.
    ///
    /// # Errors
    /// [`ConfigError::Value`] if it names what is not there, with what is, and the files that were refused.
    pub fn preference(&self, config: &Config) -> Result<Preference, ConfigError> {
        let by_path = |given: &str| {
            let of = |plugin: &&Plugin| plugin.origin == Origin::File(PathBuf::from(given));
            self.plugins.iter().find(of).map(Plugin::name)
        };
        let preference = config.transport();
        let names_of = preference.names().iter().map(|given| by_path(given).unwrap_or(given));
        // None if it is auto, which has no names, or if a path and a name mean one transport, which is refused below.
        let resolved = Preference::of(names_of).unwrap_or(preference);
        let not_loaded = self.not_loaded.iter().map(String::as_str);
        let loaded = self.plugins.iter().map(|plugin| -> &str { plugin.name() });
        let names: Vec<&str> = loaded.chain(not_loaded).collect();
        match config.check_transport(&resolved, &names) {
            Ok(()) => {
                let decorated = |name: &String| {
                    let plugin = self.plugins.iter().find(|plugin| plugin.name == name);
                    plugin.map_or(name.clone(), |plugin| plugin.transport.info().name.to_owned())
                };
                Ok(Preference::of(resolved.names().iter().map(decorated)).unwrap_or(resolved))
            }
            Err(ConfigError::Value { name, given, origin, mut allowed }) => {
                allowed += ", and plugins' files (a path with a slash)";
                let refused: Vec<_> = self.refused.iter().map(|refused| refused.reason.as_str()).collect();
                if !refused.is_empty() {
                    allowed = format!("{allowed}; refused: {}", refused.join("; "));
                }
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
