//! Loading a library at run time: [`Library`], found by an ordered list of names.

use std::ffi::c_int;

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW, Symbol};

use crate::LoadError;

/// Which library, under which names, in which order; a setting that names a path overrides them all.
pub(crate) struct Names {
    /// What people call it.
    pub(crate) library: &'static str,
    /// The variable that overrides the list.
    pub(crate) variable: &'static str,
    /// Sonames first, usual places after them.
    pub(crate) names: Vec<String>,
}

/// A loaded library. It is never unloaded: vendors' libraries keep threads and exit handlers.
#[derive(Debug)]
pub(crate) struct Library {
    name: String,
    handle: Handle,
}

/// Not in libc's portable set; Linux has it since glibc 2.2 and musl 1.1.
const RTLD_NODELETE: c_int = 0x1000;

impl Library {
    /// The first of `names` that opens, or the one at `path` if that is set.
    pub(crate) fn open(names: Names, path: Option<&str>) -> Result<Self, LoadError> {
        let candidates = path.map_or(names.names, |path| vec![path.to_owned()]);
        let mut tried = Vec::new();
        for name in candidates {
            // SAFETY: the initialisers of a library that the operator or the vendor put there run; that they are sound
            // is the operator's promise.
            match unsafe { Handle::open(Some(&name), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) } {
                Ok(handle) => {
                    tracing::debug!(library = name, "loaded");
                    return Ok(Self { name, handle });
                }
                Err(error) => tried.push(format!("{name} ({})", said(&error))),
            }
        }
        Err(LoadError::NotFound { library: names.library, tried, variable: names.variable })
    }

    /// The name under which it was found.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A function, `None` if the library has none of that name.
    ///
    /// # Safety
    /// `F` is the type of the function that the library exports under this name.
    pub(crate) unsafe fn function<F: Copy>(&self, symbol: &str) -> Option<F> {
        // SAFETY: the caller's promise.
        let found: Symbol<F> = unsafe { self.handle.get(symbol) }.ok()?;
        // The library stays loaded (RTLD_NODELETE), so the pointer outlives `self`.
        Some(*found)
    }
}

/// What the loader said: it is the source of the crate's error.
pub(crate) fn said(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
