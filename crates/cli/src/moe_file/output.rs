//! A [`Solution`] into a file.
//!
//! The file is written without a name where the file system can do that (`O_TMPFILE`), so that nothing is left behind
//! even when this process is killed; else under a temporary name beside its place. Whole and on the disk, it takes its
//! name in one step: readers see the old file or the new one.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use campanile::moe::{DType, Problem, Solution};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use rustix::io::Errno;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use tempfile::{Builder, NamedTempFile};

use super::{ROW_TYPES, WriteError};

/// Rights of a new file, less the umask.
const MODE: u32 = 0o666;

/// Sees to it that [`write()`] will find a place for its file, so that a long exchange is not made for nothing.
///
/// Creates a file there, without the name, and removes it again.
///
/// # Errors
/// [`WriteError`] if the directory does not exist or cannot be written, or there is something at `path` that is not a
/// regular file.
pub fn check_writable(path: &Path) -> Result<(), WriteError> {
    Place::find(path)?.draft().map(drop).map_err(failed(path, "creating it"))
}

/// Writes what the ranks ended with to the file at `path`; with `dump_recv` also what dispatch brought them.
///
/// The bytes are those of `problem`'s shape and `solution`'s values, and nothing else.
///
/// # Errors
/// [`WriteError`] as in [`check_writable`], or when the disk is full or fails. A file that was at `path` is as it was,
/// and there is no other.
///
/// # Panics
/// If `solution` has not the shape of a solution of `problem`.
pub fn write(path: &Path, problem: &Problem, solution: &Solution, dump_recv: bool) -> Result<(), WriteError> {
    let tensors = tensors(problem, solution, dump_recv);
    let header = header(&tensors, problem.experts()).map_err(failed(path, "making its header"))?;
    replace(path, |file| {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(&header)?;
        for tensor in &tensors {
            tensor.data.write(&mut file)?;
        }
        file.flush()
    })
}

/// Puts what `contents` writes at `path`, whole or not at all.
fn replace(path: &Path, contents: impl FnOnce(&File) -> io::Result<()>) -> Result<(), WriteError> {
    let place = Place::find(path)?;
    let draft = place.draft().map_err(failed(path, "creating it"))?;
    contents(draft.file()).map_err(failed(path, "writing it"))?;
    draft.file().sync_all().map_err(failed(path, "writing it to the disk"))?;
    draft.publish(&place).map_err(failed(path, "giving it its name"))
}

/// An error of the operating system with its context.
fn failed(path: &Path, operation: &'static str) -> impl Fn(io::Error) -> WriteError {
    move |cause| WriteError::System { path: path.into(), operation, cause }
}

/// Where a file is to be.
struct Place {
    /// The file itself, behind any symbolic link.
    path: PathBuf,
    directory: PathBuf,
}

impl Place {
    /// The place at `path`, where there is nothing or a regular file.
    fn find(path: &Path) -> Result<Self, WriteError> {
        let refused = |reason| WriteError::Target { path: path.into(), reason };
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => return Err(refused("is a directory")),
            Ok(metadata) if !metadata.is_file() => return Err(refused("is not a regular file")),
            _ => {}
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(refused("has no name"));
        };
        // The parent of a bare name is empty.
        let directory = if parent == "" { Path::new(".") } else { parent };
        if !directory.is_dir() {
            return Err(refused("is in a directory that does not exist"));
        }
        Ok(Self { path: directory.join(name), directory: directory.into() })
    }

    /// A new file in the directory, which is gone when it is dropped.
    fn draft(&self) -> io::Result<Draft> {
        match self.unnamed() {
            // What file systems and kernels without O_TMPFILE say; see open(2).
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => self.named(),
            draft => Ok(draft?),
        }
    }

    fn unnamed(&self) -> rustix::io::Result<Draft> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = open(&self.directory, flags, Mode::from_raw_mode(MODE))?;
        Ok(Draft::Unnamed(file.into()))
    }

    fn named(&self) -> io::Result<Draft> {
        temporary().permissions(Permissions::from_mode(MODE)).tempfile_in(&self.directory).map(Draft::Named)
    }
}

/// Names of files that have not got theirs yet.
fn temporary() -> Builder<'static, 'static> {
    let mut builder = Builder::new();
    builder.prefix(".campanile-").suffix(".part");
    builder
}

/// A file that has not got its name yet.
enum Draft {
    Unnamed(File),
    Named(NamedTempFile),
}

impl Draft {
    fn file(&self) -> &File {
        match self {
            Self::Unnamed(file) => file,
            Self::Named(file) => file.as_file(),
        }
    }

    /// Gives the file its place, whatever is there now.
    fn publish(self, place: &Place) -> io::Result<()> {
        match self {
            Self::Unnamed(file) => {
                // Only a rename replaces what is there, and it needs a name to begin with.
                let source = format!("/proc/self/fd/{}", file.as_raw_fd());
                let link = |name: &Path| Ok(linkat(CWD, &source, CWD, name, AtFlags::SYMLINK_FOLLOW)?);
                temporary().make_in(&place.directory, link)?.persist(&place.path)?;
            }
            Self::Named(file) => drop(file.persist(&place.path)?),
        }
        Ok(())
    }
}

/// A tensor of an output.
struct Tensor<'a> {
    name: String,
    dtype: Dtype,
    shape: [usize; 2],
    data: Elements<'a>,
}

/// Elements of a tensor, which are little-endian in the file.
enum Elements<'a> {
    Bytes(&'a [u8]),
    I32(&'a [i32]),
    F32(&'a [f32]),
}

impl Elements<'_> {
    fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::I32(values) => size_of_val(*values),
            Self::F32(values) => size_of_val(*values),
        }
    }

    fn write(&self, file: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Bytes(bytes) => file.write_all(bytes),
            Self::I32(values) => values.iter().try_for_each(|value| file.write_all(&value.to_le_bytes())),
            Self::F32(values) => values.iter().try_for_each(|value| file.write_all(&value.to_le_bytes())),
        }
    }
}

/// The tensors of an output in their order in the file: wide elements first, so that each tensor is aligned to its own.
fn tensors<'a>(problem: &Problem, solution: &'a Solution, dump_recv: bool) -> Vec<Tensor<'a>> {
    use Elements::{Bytes, F32, I32};

    let Problem { hidden, topk, scales, .. } = *problem;
    assert_eq!(problem.ranks.len(), solution.ranks.len(), "ranks of the solution");
    let mut tensors = Vec::new();
    for (rank, (input, output)) in problem.ranks.iter().zip(&solution.ranks).enumerate() {
        let mut add = |name: &str, dtype: Dtype, rows: usize, columns: usize, data: Elements<'a>| {
            let name = format!("{name}.{rank}");
            assert_eq!(data.bytes() * 8, rows * columns * dtype.bitsize(), "bits of {name} [{rows}, {columns}]");
            tensors.push(Tensor { name, dtype, shape: [rows, columns], data });
        };
        add("out", file_type(problem.combine_dtype), input.tokens, hidden, Bytes(&output.out));
        if problem.weighted {
            add("out_weights", Dtype::F32, input.tokens, topk, F32(&output.out_weights));
        }
        if !dump_recv {
            continue;
        }
        let received = &output.received;
        let rows = received.src.len() / 2;
        add("recv_x", file_type(problem.dtype), rows, hidden, Bytes(&received.x));
        if problem.dtype.is_scaled() {
            add("recv_scales", Dtype::F32, rows, scales, F32(&received.scales));
        }
        add("recv_src", Dtype::I32, rows, 2, I32(&received.src));
        add("recv_topk_idx", Dtype::I32, rows, topk, I32(&received.topk_idx));
        if problem.weighted {
            add("recv_topk_weights", Dtype::F32, rows, topk, F32(&received.topk_weights));
        }
    }
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.bitsize()));
    tensors
}

/// What a file calls `dtype`.
fn file_type(dtype: DType) -> Dtype {
    let known = ROW_TYPES.into_iter().find(|(name, _)| *name == dtype);
    known.unwrap_or_else(|| panic!("{dtype} has no name in a file")).1
}

/// Everything before the data of `tensors`.
fn header(tensors: &[Tensor<'_>], experts: usize) -> io::Result<Vec<u8>> {
    let mut end = 0;
    let infos = tensors.iter().map(|tensor| {
        let start = end;
        end += tensor.data.bytes();
        let info = TensorInfo { dtype: tensor.dtype, shape: tensor.shape.into(), data_offsets: (start, end) };
        (tensor.name.clone(), info)
    });
    // A single string: several would come out in the random order of the map.
    let metadata = HashMap::from([("experts".into(), experts.to_string())]);
    let metadata = Metadata::new(Some(metadata), infos.collect()).map_err(io::Error::other)?;
    let mut text = serde_json::to_vec(&metadata)?;
    // Spaces to a multiple of 8, as the format asks for, so that the data are aligned.
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend(text);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use campanile::moe::{RankInput, RankOutput};

    use super::*;

    /// Names in a directory.
    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// One rank without tokens.
    fn empty() -> (Problem, Solution) {
        let problem = Problem {
            dtype: DType::F32,
            combine_dtype: DType::F32,
            hidden: 1,
            topk: 1,
            scales: 0,
            quantize: false,
            expert_rank: vec![0],
            expert_scale: None,
            weighted: false,
            ranks: vec![RankInput::default()],
        };
        (problem, Solution { ranks: vec![RankOutput::default()] })
    }

    #[test]
    fn drafts_are_gone_or_in_their_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let place = Place::find(&path).unwrap();
        for draft in [|place: &Place| place.unnamed().unwrap(), |place: &Place| place.named().unwrap()] {
            fs::write(&path, "old").unwrap();
            let old = fs::metadata(&path).unwrap().permissions();
            let dropped = draft(&place);
            dropped.file().write_all(b"half of it").unwrap();
            drop(dropped);
            assert_eq!((fs::read(&path).unwrap(), names(directory.path())), (b"old".to_vec(), vec!["out".into()]));
            let published = draft(&place);
            published.file().write_all(b"new").unwrap();
            published.publish(&place).unwrap();
            assert_eq!((fs::read(&path).unwrap(), names(directory.path())), (b"new".to_vec(), vec!["out".into()]));
            assert_eq!(fs::metadata(&path).unwrap().permissions(), old, "by the umask, as any other file");
        }
    }

    #[test]
    fn an_old_file_is_replaced_on_success_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.safetensors");
        fs::write(&path, "old").unwrap();
        check_writable(&path).unwrap();
        let failure = replace(&path, |mut file| {
            file.write_all(b"half of it")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(failure.unwrap_err().to_string().contains("out.safetensors: writing it failed"));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(directory.path()), ["out.safetensors"]);
        let (problem, solution) = empty();
        write(&path, &problem, &solution, false).unwrap();
        assert_ne!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(directory.path()), ["out.safetensors"]);
    }

    #[test]
    fn a_symbolic_link_stays_one() {
        let directory = tempfile::tempdir().unwrap();
        let (link, target) = (directory.path().join("link"), directory.path().join("target"));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink("target", &link).unwrap();
        replace(&link, |mut file| file.write_all(b"new")).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"new");
    }

    #[test]
    fn a_place_that_cannot_be_written_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "").unwrap();
        let cases = [
            (directory.path().to_path_buf(), "is a directory"),
            (directory.path().join("none/out"), "in a directory that does not exist"),
            (directory.path().join("file/out"), "in a directory that does not exist"),
            ("/dev/null".into(), "not a regular file"),
            ("/".into(), "is a directory"),
            ("".into(), "has no name"),
            (directory.path().join("none/.."), "has no name"),
        ];
        let (problem, solution) = empty();
        for (path, reason) in cases {
            for result in [check_writable(&path), write(&path, &problem, &solution, true)] {
                let error = result.unwrap_err();
                assert!(matches!(error, WriteError::Target { .. }), "{error}");
                let message = error.to_string();
                assert!(message.contains(reason) && message.contains(&path.display().to_string()), "{message}");
            }
        }
        for path in [directory.path().join("new"), directory.path().join("new/"), "a-bare-name".into()] {
            check_writable(&path).unwrap();
        }
        assert_eq!(names(directory.path()), ["file"], "a check leaves nothing");
        // A file system of the kernel: the directory is there, but nobody can create a file in it.
        let error = check_writable(Path::new("/proc/out")).unwrap_err();
        assert!(matches!(error, WriteError::System { .. }) && error.to_string().contains("/proc/out"), "{error}");
    }

    #[test]
    #[should_panic(expected = "bits of out.0 [1, 1]")]
    fn a_solution_of_another_problem_is_a_fault() {
        let (mut problem, solution) = empty();
        problem.ranks[0].tokens = 1;
        tensors(&problem, &solution, false);
    }
}
