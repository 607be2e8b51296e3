//! The policy: what the configuration or a caller allows.

use std::fmt;

use super::{Preference, Way};
use crate::{Path, Source};

/// Which transports and ways may be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Which transports.
    pub transports: Preference,
    /// Which ways.
    pub path: Path,
    /// Where the two came from, where that is known.
    sources: Option<[Source; 2]>,
}

impl Policy {
    /// A policy of unknown origin.
    pub fn new(transports: Preference, path: Path) -> Self {
        Self { transports, path, sources: None }
    }

    /// With where transports and path came from, for reasons.
    #[must_use]
    pub fn sources(self, transports: Source, path: Source) -> Self {
        Self { sources: Some([transports, path]), ..self }
    }

    /// Place of a transport in the order of preference, 0 for all of them if there is none; or why it may not be used.
    pub(super) fn order_of(&self, transport: &str) -> Result<usize, String> {
        let place = self.transports.order_of(transport);
        place.ok_or_else(|| format!("{} does not name it", self.said_of_transports()))
    }

    /// Why a way may not be used, if it may not.
    pub(super) fn allows(&self, way: Way) -> Result<(), String> {
        match (self.path, way) {
            (Path::Auto, _) | (Path::LoadStore, Way::LoadStore) | (Path::Queue, Way::Queue) => Ok(()),
            _ => Err(format!("{} forbids it", self.said_of_path())),
        }
    }

    fn said_of_transports(&self) -> String {
        said("CAMPANILE_TRANSPORT", &self.transports, self.sources.map(|[transports, _]| transports))
    }

    fn said_of_path(&self) -> String {
        said("CAMPANILE_PATH", self.path.name(), self.sources.map(|[_, path]| path))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.said_of_transports(), self.said_of_path())
    }
}

fn said(variable: &str, value: impl fmt::Display, source: Option<Source>) -> String {
    let source = source.map_or_else(String::new, |source| format!(" ({source})"));
    format!("{variable}={value}{source}")
}
