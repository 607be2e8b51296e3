//! The sides of the comparison. Each turns a cell into arms: programs to launch and a way to read what they print.

use std::path::PathBuf;

use serde::Serialize;

use crate::launch::Launch;

/// How an arm's output is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `ROW` lines, see [`crate::row::parse`].
    Rows,
    /// The JSON object of `campanile bench`, see [`crate::campanile::parse`].
    Campanile,
}

/// One program to launch for one cell.
#[derive(Clone, Debug)]
pub struct Arm {
    /// Name of the side.
    pub peer: String,
    /// Which form of the operation; names the arm together with the peer and the cell.
    pub variant: String,
    /// The command.
    pub launch: Launch,
    /// How its output is read.
    pub format: Format,
}

/// Something that was not measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NotRun {
    /// Name of the side, with the cell and form if only that is missing.
    pub what: String,
    /// Why.
    pub why: String,
    /// What would change that; empty if nothing would.
    pub remedy: String,
}

impl NotRun {
    /// All three in a row.
    pub fn new(what: impl Into<String>, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        NotRun { what: what.into(), why: why.into(), remedy: remedy.into() }
    }
}

/// The first of `names` that is a file on PATH.
pub fn on_path(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|file| file.is_file())
}
