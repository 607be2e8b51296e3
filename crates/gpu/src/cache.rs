//! The cache of compiled kernels: [`Cache`], a folder.
//!
//! **Model.** An entry is a file, named by a hash of its key; it holds the key whole (compiler, target, options and
//! every source text), so that a collision is seen, and a checksum, so that a damaged entry is too: both are rebuilt.
//!
//! **Invariants.** An entry is written beside its place and renamed into it, so a reader sees all of it or none,
//! whatever dies. Processes that need the same entry at once build it once: the others wait for the builder's lock,
//! which the kernel releases when it dies, and build for themselves if that takes longer than [`BUILD_PATIENCE`]. A
//! folder that cannot be written costs a compilation, never the job.
//!
//! An entry is code that will run, so it is taken only from a regular file that this user or root owns and nobody else can
//! write; wherever the folder is, nobody plants code in it. No link is followed, and no pipe holds a job up.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::{CompileError, Settings};

/// What an entry begins with; the number is the version of the format.
const MAGIC: &[u8; 16] = b"campanile-code 1";
/// How long to wait for another process that builds the same entry.
const BUILD_PATIENCE: Duration = Duration::from_secs(60);
/// How often to look whether it is done.
const LOOK: Duration = Duration::from_millis(5);

/// Where compiled kernels are kept.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// No cache: every compilation is done.
    #[must_use]
    pub fn none() -> Self {
        Self { folder: None }
    }

    /// A folder, made when the first entry is.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    /// The folder of the settings, or `campanile/kernels` in the user's cache folder (`XDG_CACHE_HOME`, or `.cache` in
    /// `HOME`, if they are absolute); none where there is no such folder.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let user = || Some(user_folder(|name| std::env::var_os(name))?.join("campanile").join("kernels"));
        Self { folder: settings.kernel_cache.clone().or_else(user) }
    }

    /// The entry of `key`, or what `build` makes, which becomes it.
    pub(crate) fn get_or_build(
        &self,
        key: &str,
        build: impl FnOnce() -> Result<Vec<u8>, CompileError>,
    ) -> Result<Vec<u8>, CompileError> {
        let Some(folder) = &self.folder else { return build() };
        let path = folder.join(format!("{:016x}", hash(key.as_bytes())));
        if let Some(code) = read(&path, key) {
            return Ok(code);
        }
        let lock = std::fs::create_dir_all(folder)
            .and_then(|()| open(&path.with_extension("lock"), OFlags::WRONLY | OFlags::CREATE));
        let lock = match lock {
            Ok(lock) => lock,
            Err(error) => {
                tracing::warn!(folder = %folder.display(), %error, "compiled kernels cannot be kept");
                return build();
            }
        };
        if wait_for(&lock)
            && let Some(code) = read(&path, key)
        {
            return Ok(code);
        }
        let code = build()?;
        if let Err(error) = write(folder, &path, key, &code) {
            tracing::warn!(path = %path.display(), %error, "a compiled kernel was not kept");
        }
        Ok(code)
    }
}

/// The user's cache folder (XDG Base Directory Specification, which says to ignore relative paths: they would be another
/// folder in every folder that a job is started in).
fn user_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))
}

/// Takes the lock; false if it was not free within the patience, and the entry is built twice. A blocking lock has no
/// deadline, and a lock that becomes free is no event that could be polled for.
fn wait_for(lock: &File) -> bool {
    let deadline = Instant::now() + BUILD_PATIENCE;
    while Instant::now() < deadline {
        match lock.try_lock() {
            Ok(()) => return true,
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK),
            Err(TryLockError::Error(_)) => return false,
        }
    }
    false
}

/// Opens a file of the cache, which is no link, and at once, whatever it is.
fn open(path: &Path, how: OFlags) -> io::Result<File> {
    let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// The bytes of an entry that nobody else can have written.
fn read_own(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open(path, OFlags::RDONLY)?;
    let found = file.metadata()?;
    let owned = [0, rustix::process::geteuid().as_raw()].contains(&found.uid());
    if !found.is_file() || !owned || found.mode() & 0o022 != 0 {
        tracing::warn!(path = %path.display(), "an entry of the kernel cache that others can write is built anew");
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut entry = Vec::new();
    file.read_to_end(&mut entry)?;
    Ok(entry)
}

/// The code of an entry that is whole and of this key.
fn read(path: &Path, key: &str) -> Option<Vec<u8>> {
    let entry = read_own(path).ok()?;
    let rest = entry.strip_prefix(MAGIC)?;
    let (sum, rest) = rest.split_first_chunk()?;
    if u64::from_le_bytes(*sum) != hash(rest) {
        tracing::warn!(path = %path.display(), "a damaged entry of the kernel cache is built anew");
        return None;
    }
    let (length, rest) = rest.split_first_chunk()?;
    let (found, code) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    (found == key.as_bytes()).then(|| code.to_vec())
}

fn write(folder: &Path, path: &Path, key: &str, code: &[u8]) -> std::io::Result<()> {
    let mut rest = (key.len() as u64).to_le_bytes().to_vec();
    rest.extend_from_slice(key.as_bytes());
    rest.extend_from_slice(code);
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(MAGIC)?;
    file.write_all(&hash(&rest).to_le_bytes())?;
    file.write_all(&rest)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// FNV-1a, 64 bits (Fowler, Noll, Vo; offset basis and prime from their page). It finds and checks; what it finds is
/// compared whole.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entry, and whether it was built.
    fn get(cache: &Cache, key: &str, code: &[u8]) -> (Vec<u8>, bool) {
        let mut built = false;
        let found = cache.get_or_build(key, || {
            built = true;
            Ok(code.to_vec())
        });
        (found.unwrap(), built)
    }

    fn only_entry(folder: &Path) -> PathBuf {
        let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.retain(|path| path.extension().is_none());
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries.remove(0)
    }

    #[test]
    fn an_entry_is_built_once() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("new"));
        assert_eq!(get(&cache, "key", b"code"), (b"code".to_vec(), true));
        assert_eq!(get(&cache, "key", b"other"), (b"code".to_vec(), false));
        assert_eq!(get(&cache, "another key", b""), (Vec::new(), true));
        assert_eq!(get(&Cache::none(), "key", b"other"), (b"other".to_vec(), true));
    }

    #[test]
    fn a_relative_folder_of_the_user_is_none() {
        let folder = |xdg: Option<&str>, home: Option<&str>| {
            user_folder(|name| if name == "HOME" { home } else { xdg }.map(OsString::from))
        };
        assert_eq!(folder(Some("/cache"), Some("/home")), Some("/cache".into()));
        for none in [None, Some(""), Some("cache")] {
            assert_eq!(folder(none, Some("/home")), Some("/home/.cache".into()));
            assert_eq!(folder(none, none), None);
        }
    }

    #[test]
    fn a_damaged_entry_is_built_anew() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        get(&cache, "key", b"code");
        let path = only_entry(folder.path());
        let whole = std::fs::read(&path).unwrap();
        for damaged in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[damaged] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(get(&cache, "key", b"code"), (b"code".to_vec(), true), "byte {damaged}");
            std::fs::write(&path, &whole[..damaged]).unwrap();
            assert_eq!(get(&cache, "key", b"code"), (b"code".to_vec(), true), "cut at {damaged}");
            assert_eq!(get(&cache, "key", b"other"), (b"code".to_vec(), false), "mended at {damaged}");
        }
    }

    #[test]
    fn a_collision_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        get(&cache, "key", b"code");
        let path = only_entry(folder.path());
        let other = folder.path().join(format!("{:016x}", hash(b"other key")));
        std::fs::rename(path, other).unwrap();
        assert_eq!(get(&cache, "other key", b"other code"), (b"other code".to_vec(), true));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(get(&Cache::at(file.path()), "key", b"code"), (b"code".to_vec(), true));
    }

    #[test]
    fn what_others_can_write_is_built_anew() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        get(&cache, "key", b"code");
        let path = only_entry(folder.path());
        for mode in [0o620, 0o602] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(get(&cache, "key", b"own"), (b"own".to_vec(), true), "mode {mode:o}");
            assert_eq!(get(&cache, "key", b"other"), (b"own".to_vec(), false), "mended");
        }
    }

    #[test]
    fn links_are_not_followed_and_pipes_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, victim) = (Cache::at(folder.path()), folder.path().join("victim.txt"));
        get(&cache, "key", b"code");
        let path = only_entry(folder.path());
        let (lock, whole) = (path.with_extension("lock"), std::fs::read(&path).unwrap());
        let pipe = |path: &Path| {
            std::fs::remove_file(path).unwrap();
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        };
        let link = |path: &Path| {
            std::fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink(&victim, path).unwrap();
        };
        pipe(&path);
        assert_eq!(get(&cache, "key", b"own"), (b"own".to_vec(), true), "a pipe for an entry");
        std::fs::write(&victim, &whole).unwrap();
        link(&path);
        assert_eq!(get(&cache, "key", b"own"), (b"own".to_vec(), true), "a link for an entry");
        assert!(path.symlink_metadata().unwrap().is_file(), "the entry replaces the link");
        std::fs::remove_file(&path).unwrap();
        pipe(&lock);
        assert_eq!(get(&cache, "key", b"own"), (b"own".to_vec(), true), "a pipe for a lock");
        link(&lock);
        let _ = std::fs::remove_file(&path);
        assert_eq!(get(&cache, "key", b"own"), (b"own".to_vec(), true), "a link for a lock");
        assert_eq!(std::fs::read(&victim).unwrap(), whole, "what the link leads to is as it was");
    }

    #[test]
    fn many_at_once_build_once() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let built = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let code = cache.get_or_build("key", || {
                        built.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        Ok(b"code".to_vec())
                    });
                    assert_eq!(code.unwrap(), b"code");
                });
            }
        });
        assert_eq!(built.into_inner(), 1);
    }
}
