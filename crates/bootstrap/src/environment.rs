//! What a process was told by who started it: its configuration, and its place in a job.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;

use campanile_core::{Bootstrap, BootstrapError, Config, ConfigError};

use crate::rendezvous::Member;
use crate::{Place, PlaceError, ThreadBootstrap};

/// A process could not join its job.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// Its configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its launcher's variables make no sense.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Its job's store cannot be reached.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
}

/// The configuration of this process: its environment, and the file that `CAMPANILE_CONFIG` names.
///
/// # Errors
/// [`ConfigError`].
pub fn configuration() -> Result<Config, ConfigError> {
    let config = Config::load(std::env::vars_os(), None)?;
    let Some(path) = config.config_file() else {
        return Ok(config);
    };
    match read(Path::new(&path)) {
        Ok(text) => Config::load(std::env::vars_os(), Some(&text)),
        Err(error) => Err(ConfigError::File { path, reason: error.to_string() }),
    }
}

/// Most bytes of a configuration file.
const MAX_FILE: u64 = 1 << 20;

/// The text of a configuration file. What is no regular file is not opened: a pipe or a device may never end.
fn read(path: &Path) -> io::Result<String> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.len() > MAX_FILE {
        return Err(io::Error::other(format!(
            "it has {} bytes; a configuration has at most {MAX_FILE}",
            metadata.len()
        )));
    }
    std::fs::read_to_string(path)
}

/// The place of this process in its job, as `config` and the environment tell; `None` if nobody launched it.
///
/// # Errors
/// As [`Place::of`].
pub fn place(config: &Config) -> Result<Option<Place>, JoinError> {
    let text = |text: OsString| text.to_string_lossy().into_owned();
    Place::of(config, std::env::vars_os().map(|(name, value)| (text(name), text(value))))
}

/// Joins the job that `config` and the environment tell of (see [`Place`]). A process that was not launched is a job of
/// its own, rank 0 of 1. Each further call joins again: the ranks' n-th calls meet.
///
/// # Errors
/// [`JoinError::Config`] or [`JoinError::Place`] if the variables make no sense, [`JoinError::Bootstrap`] if the store
/// cannot be reached within the configured timeout.
pub fn join(config: &Config) -> Result<Arc<dyn Bootstrap>, JoinError> {
    let Some(place) = place(config)? else {
        let alone = ThreadBootstrap::world(1).pop();
        return Ok(Arc::new(alone.expect("a world of one rank has one member")));
    };
    Ok(Arc::new(Member::join(&place, config.timeout())?))
}

/// Joins the job that this process's environment tells of: [`configuration`], then [`join`].
///
/// # Errors
/// [`JoinError`].
pub fn from_env() -> Result<Arc<dyn Bootstrap>, JoinError> {
    join(&configuration()?)
}
