//! The loader: files as plugins.
//!
//! A file is first tried in a child process ([`probe`](Loader::probe)), then loaded into this one, for ever: with
//! `RTLD_NOW` (what is missing is missing now, not in the middle of a job), `RTLD_LOCAL` (its symbols are its own) and
//! `RTLD_NODELETE` (its code, texts and thread-locals stay). A file is loaded and initialised once a process, however
//! often it is asked for.
//!
//! A plugin is code of this process: whoever names a file, or puts one into a folder of `CAMPANILE_PLUGIN_PATH`, is
//! trusted as whoever wrote the program. The child keeps a broken file from ending the job, not a hostile one.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use campanile_abi as abi;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::import::{Host, Imported, Shim, TableError};
use crate::probe::{self, Found};

/// A file cannot be used as a plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// It was refused, here or in the child.
    #[error("plugin {}: {reason}", path.display())]
    Refused {
        /// Which file.
        path: PathBuf,
        /// What the system or the version rule says.
        reason: String,
    },
    /// The child that tried it died of it.
    #[error(
        "plugin {}: it ended the process that probed it ({status}); its constructors, `init` or `probe` are broken",
        path.display()
    )]
    Crashed {
        /// Which file.
        path: PathBuf,
        /// How the child ended.
        status: String,
    },
    /// The child that tried it did not end in time.
    #[error(
        "plugin {}: not loaded, initialised and probed after {waited:.1?}; the process that tried was killed",
        path.display()
    )]
    Hung {
        /// Which file.
        path: PathBuf,
        /// How long it was given.
        waited: Duration,
    },
    /// The system gives no child.
    #[error("plugin {}: cannot be probed: {reason}", path.display())]
    System {
        /// Which file.
        path: PathBuf,
        /// Call and cause.
        reason: String,
    },
}

/// Loads plugins.
///
/// ```
/// use campanile_plugin::Loader;
///
/// let error = Loader::default().load_file("/no/such/libcampanile_x.so".as_ref()).err().unwrap();
/// assert!(error.to_string().contains("No such file"), "{error}");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Loader<'a> {
    /// For plugins of other major versions.
    pub shims: &'a [Shim],
    /// How long a child may take to load, initialise and probe a file.
    pub deadline: Duration,
}

impl Default for Loader<'_> {
    /// No shims, ten seconds.
    fn default() -> Self {
        Self { shims: &[], deadline: Duration::from_secs(10) }
    }
}

/// The plugins of this process, by the path that has no links in it.
static LOADED: Mutex<Vec<(PathBuf, &'static Imported)>> = Mutex::new(Vec::new());

impl Loader<'_> {
    /// Tries a file in a child process: what it says about itself, and its devices. Nothing of it comes into this process.
    ///
    /// The child is a fork. It has only the thread that called, so a lock of this process that another thread held is
    /// locked in it for ever; it takes none but those of `malloc` and of the dynamic loader, which the C library makes
    /// usable again. What a plugin does in its constructors, `init` and `probe` happens in the child as well as, later,
    /// here: files that it writes are written twice.
    ///
    /// # Errors
    /// [`LoadError`] if it is refused, crashes, or does not end before the deadline.
    pub fn probe(&self, path: &Path) -> Result<Found, LoadError> {
        let path = whole(path)?;
        probe::in_child(&path, self.deadline, || {
            let imported = open(&path, self.shims)?;
            imported.init(Host::silent()).map_err(|error| refused(&path, error.to_string()))?;
            let devices = imported.devices().map_err(|reason| refused(&path, format!("probe: {reason}")))?;
            Ok(Found::new(path.clone(), &imported, devices))
        })
    }

    /// Loads a file into this process and initialises it. Without a look at it in a child: for files that passed
    /// [`probe`](Self::probe).
    ///
    /// # Errors
    /// [`LoadError::Refused`].
    pub fn load(&self, path: &Path) -> Result<&'static Imported, LoadError> {
        let path = whole(path)?;
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, imported)) = loaded.iter().find(|(other, _)| *other == path) {
            return Ok(imported);
        }
        let imported = open(&path, self.shims)?;
        imported.init(Host::logging()).map_err(|error| refused(&path, error.to_string()))?;
        let imported: &'static Imported = Box::leak(Box::new(imported));
        loaded.push((path, imported));
        Ok(imported)
    }

    /// Probes a file in a child and loads it: for a transport that is named by its path.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load_file(&self, path: &Path) -> Result<&'static Imported, LoadError> {
        self.load(&self.probe(path)?.path)
    }
}

fn refused(path: &Path, reason: String) -> LoadError {
    LoadError::Refused { path: path.to_owned(), reason }
}

/// The absolute path of a regular file: `dlopen` searches the system for a name without a slash, and waits for the writer
/// of a pipe.
fn whole(path: &Path) -> Result<PathBuf, LoadError> {
    let whole = path.canonicalize().map_err(|error| refused(path, error.to_string()))?;
    if !whole.is_file() {
        return Err(refused(path, "it is no regular file".to_owned()));
    }
    Ok(whole)
}

/// Loads a file and applies the version rule to its table.
fn open(path: &Path, shims: &[Shim]) -> Result<Imported, LoadError> {
    // What the system says is the source of what its wrapper says; it begins with the path, which is told anyway.
    let said = |error: libloading::Error| {
        let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        let named = format!("{}: ", path.display());
        refused(path, format!("not a plugin: {}", reason.strip_prefix(&named).unwrap_or(&reason)))
    };
    // SAFETY: the file's constructors run, and what they do is up to whoever named the file; see the module.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE) };
    let library = library.map_err(said)?;
    // SAFETY: a symbol of that name has that type (the boundary's contract with plugins).
    let entry = unsafe { library.get::<abi::Entry>(abi::ENTRY.to_bytes_with_nul()) };
    // SAFETY: as above; the library is never unloaded, so the function and its table stay.
    let table = unsafe { entry.map_err(said)?(abi::MAJOR) };
    std::mem::forget(library);
    // SAFETY: what the entry symbol returned.
    unsafe { Imported::new(table, shims) }.map_err(|error: TableError| refused(path, error.to_string()))
}
