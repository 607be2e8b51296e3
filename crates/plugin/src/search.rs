//! The search: plugins in the folders of `CAMPANILE_PLUGIN_PATH`.
//!
//! Files named `libcampanile_*.so` are probed, each in a child; the rest of a folder is left alone. Nothing that is found is
//! loaded, and nothing that is refused goes unsaid. A name that two plugins have is nobody's: which of them a job
//! meant must not depend on the order of folders.

use std::path::{Path, PathBuf};

use crate::loader::{LoadError, Loader};
use crate::probe::Found;

/// What a search found.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// Plugins that can be loaded, by folder, then by file name.
    pub found: Vec<Found>,
    /// Folders and files that cannot be used.
    pub refused: Vec<SearchError>,
}

/// A folder or file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SearchError {
    /// The folder cannot be read.
    #[error("folder {} of CAMPANILE_PLUGIN_PATH: {reason}", path.display())]
    Folder {
        /// Which folder.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The folder has libraries, but none with the name of a plugin.
    #[error(
        "folder {} of CAMPANILE_PLUGIN_PATH: of its .so files ({libraries}) none is named libcampanile_*.so; rename the \
         plugin, or give its path to CAMPANILE_TRANSPORT",
        path.display()
    )]
    OtherNames {
        /// Which folder.
        path: PathBuf,
        /// How many files end in `.so`.
        libraries: usize,
    },
    /// The file is no plugin that can be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Other files are plugins of the same name.
    #[error(
        "plugin {}: {} also has the name {name:?}; remove all but one, or name a file with CAMPANILE_TRANSPORT",
        path.display(),
        list(others)
    )]
    SameName {
        /// The name.
        name: String,
        /// Which file.
        path: PathBuf,
        /// The other files.
        others: Vec<PathBuf>,
    },
    /// A transport that is linked in has the same name.
    #[error(
        "plugin {}: the name {name:?} is that of a transport that is linked in; to use the file say \
         CAMPANILE_TRANSPORT={}",
        path.display(),
        path.display()
    )]
    NameTaken {
        /// The name.
        name: String,
        /// Which file.
        path: PathBuf,
    },
}

impl SearchError {
    /// The name of the transport, where that is why it was refused.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::SameName { name, .. } | Self::NameTaken { name, .. } => Some(name),
            Self::Folder { .. } | Self::OtherNames { .. } | Self::Load(_) => None,
        }
    }

    /// The folder or file.
    pub fn path(&self) -> &Path {
        match self {
            Self::Folder { path, .. }
            | Self::OtherNames { path, .. }
            | Self::SameName { path, .. }
            | Self::NameTaken { path, .. } => path,
            Self::Load(
                LoadError::Refused { path, .. }
                | LoadError::Crashed { path, .. }
                | LoadError::Hung { path, .. }
                | LoadError::System { path, .. },
            ) => path,
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl Loader<'_> {
    /// Searches folders, with colons in between, for plugins whose names are not `taken`.
    pub fn search(&self, folders: &str, taken: &[&str]) -> Search {
        let mut search = Search::default();
        let mut found: Vec<Found> = Vec::new();
        for folder in folders.split(':').filter(|folder| !folder.is_empty()).map(Path::new) {
            let files = match files_of(folder) {
                Ok(files) => files,
                Err(error) => {
                    let (path, reason) = (folder.to_owned(), error.to_string());
                    search.refused.push(SearchError::Folder { path, reason });
                    continue;
                }
            };
            let (plugins, libraries): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| is_plugin(file));
            if plugins.is_empty() && !libraries.is_empty() {
                let (path, libraries) = (folder.to_owned(), libraries.len());
                search.refused.push(SearchError::OtherNames { path, libraries });
            }
            for file in plugins {
                match self.probe(&file) {
                    // A folder that is named twice, or a link to a file that was seen, is not another plugin.
                    Ok(plugin) if found.iter().any(|other| other.path == plugin.path) => {}
                    Ok(plugin) => found.push(plugin),
                    Err(error) => search.refused.push(error.into()),
                }
            }
        }
        for plugin in &found {
            let (name, path) = (plugin.name.clone(), plugin.path.clone());
            let same = found.iter().filter(|other| other.name == name && other.path != path);
            let others: Vec<_> = same.map(|other| other.path.clone()).collect();
            if taken.contains(&name.as_str()) {
                search.refused.push(SearchError::NameTaken { name, path });
            } else if !others.is_empty() {
                search.refused.push(SearchError::SameName { name, path, others });
            } else {
                search.found.push(plugin.clone());
            }
        }
        search
    }
}

/// The libraries of a folder, by name, in order.
fn files_of(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let paths = std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    let mut files = paths.collect::<std::io::Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "so"));
    files.sort();
    Ok(files)
}

/// Whether a library is named as plugins are.
fn is_plugin(library: &Path) -> bool {
    library.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcampanile_"))
}
