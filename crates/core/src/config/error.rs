//! What can be wrong with a configuration.

use super::Source;

/// A configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A `CAMPANILE_*` name in the environment is no variable.
    #[error("{given} in the environment is no variable of Campanile; {nearest}")]
    UnknownVariable {
        /// What was given.
        given: String,
        /// The known names that are near, in words.
        nearest: String,
    },
    /// A key of the file is no variable.
    #[error("{given} in the configuration file is no key of Campanile; {nearest}")]
    UnknownKey {
        /// What was given.
        given: String,
        /// The known keys that are near, in words.
        nearest: String,
    },
    /// A key of the file is a variable that belongs to one process.
    #[error(
        "{given} cannot be set in the configuration file, which all ranks share; set {variable} in the environment"
    )]
    NotInFile {
        /// What was given.
        given: String,
        /// The variable.
        variable: &'static str,
    },
    /// A variable does not allow a value.
    #[error("{name} = {given:?} (from {origin}) is not allowed; it takes {allowed}")]
    Value {
        /// The variable, as it was called where it was set.
        name: String,
        /// What was given.
        given: String,
        /// Where.
        origin: Source,
        /// What is allowed, in words.
        allowed: String,
    },
    /// The file is not TOML.
    #[error("the configuration file is not TOML: {reason}")]
    Syntax {
        /// Line, column, and what was expected there.
        reason: String,
    },
    /// The file cannot be read.
    #[error("CAMPANILE_CONFIG = {path:?} cannot be read: {reason}; give the path of a TOML file, or unset it")]
    File {
        /// Its path.
        path: String,
        /// Why not.
        reason: String,
    },
    /// What the launcher set makes no sense.
    #[error("{reason}; a launcher sets all of them and nobody else does: unset them, or start with `campanile run`")]
    Launch {
        /// What is missing or contradicts.
        reason: String,
    },
}
