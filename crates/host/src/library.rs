//! Libraries: whether one can be loaded, by name.
//!
//! To load a library is to run its constructors, which may hang or crash; whoever only wants to know loads it in a process
//! that may die of it.

use std::error::Error;
use std::path::PathBuf;

/// Loads a library by its file name or path, for good, and returns the file that it is in.
///
/// # Errors
/// What `dlopen` says: that there is no such file, or which library or symbol it misses.
///
/// # Safety
/// The library's constructors run in this process. The caller knows the library, or has a process to lose.
pub unsafe fn load(name: &str) -> Result<PathBuf, String> {
    // SAFETY: the caller's promise.
    let library = unsafe { libloading::Library::new(name) }.map_err(|error| match error.source() {
        // The outer error only says that dlopen failed; what dlopen said is its source.
        Some(said) => said.to_string(),
        None => error.to_string(),
    })?;
    // Unloading what has started threads is the next danger.
    std::mem::forget(library);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    Ok(mapped(&maps, name).unwrap_or_else(|| PathBuf::from(name)))
}

/// The mapped file whose name begins as that of the library does: `libcuda.so.1` may be a link to `libcuda.so.535.104`.
fn mapped(maps: &str, name: &str) -> Option<PathBuf> {
    let file = name.rsplit('/').next()?;
    let stem = &file[..file.find(".so")?];
    let is_it = |path: &&str| {
        let file = path.rsplit('/').next().unwrap_or(path);
        file.strip_prefix(stem).is_some_and(|rest| rest.starts_with(".so") || rest.starts_with('-'))
    };
    maps.lines().filter_map(|line| Some(&line[line.find('/')?..])).find(is_it).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_there_is_found_with_its_file() {
        // SAFETY: this process runs on that library already.
        let path = unsafe { load("libc.so.6") }.expect("every process has it");
        assert!(path.is_absolute() && path.to_string_lossy().contains("libc"), "{path:?}");
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        // SAFETY: there is none.
        let error = unsafe { load("libcampanile-no-such-library.so.7") }.expect_err("there is none");
        assert!(error.contains("libcampanile-no-such-library.so.7"), "{error}");
    }

    #[test]
    fn versions_of_a_file_name_are_the_same_library() {
        let maps = "7f00-7f01 r--p 0 00:00 1   /usr/lib/libcudart.so.12\n7f02-7f03 r-xp 0 00:00 2  /opt/libcuda.so.535.1\n\
                    7f04-7f05 rw-p 0 00:00 0\n7f06-7f07 r-xp 0 00:00 3 /lib/libc-2.31.so\n";
        assert_eq!(mapped(maps, "libcuda.so.1"), Some(PathBuf::from("/opt/libcuda.so.535.1")));
        assert_eq!(mapped(maps, "libc.so.6"), Some(PathBuf::from("/lib/libc-2.31.so")));
        assert_eq!(mapped(maps, "librdmacm.so.1"), None);
    }
}
