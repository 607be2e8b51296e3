//! The directories in which plugins are searched for.

use super::check::{Check, Verdict};

/// `CAMPANILE_PLUGIN_PATH`, and for each directory the number of libraries in it, or why it cannot be read.
pub fn plugin_path(directories: &[(String, Result<usize, String>)]) -> Check {
    let (name, matters) = ("plugin path", "transports that are not linked in");
    if directories.is_empty() {
        return Check::ok(name, "CAMPANILE_PLUGIN_PATH is not set; nothing is searched", matters);
    }
    let found = directories.iter().map(|(directory, libraries)| match libraries {
        Ok(count) => format!("{directory}: {count} files named .so"),
        Err(error) => format!("{directory}: {error}"),
    });
    let found = found.collect::<Vec<_>>().join("; ");
    match directories.iter().all(|(_, libraries)| libraries.is_ok()) {
        true => Check::ok(name, found, matters),
        false => {
            Check::not(name, Verdict::Warning, found, matters, "correct CAMPANILE_PLUGIN_PATH, or make it readable")
        }
    }
}

/// What there is in a directory: how many libraries, by their names.
pub fn libraries_in(directory: &str) -> Result<usize, String> {
    let entries = std::fs::read_dir(directory).map_err(|error| error.to_string())?;
    let is_library = |entry: &std::fs::DirEntry| entry.path().extension().is_some_and(|extension| extension == "so");
    Ok(entries.flatten().filter(is_library).count())
}
