//! Why a file could not be read or written.

use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use safetensors::Dtype;

use super::MAX_EXPERTS;
use super::header::MAX_HEADER;

/// An input file was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The operating system refused.
    #[error("input {}: {operation} failed: {cause}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// What was done.
        operation: &'static str,
        /// Why it failed.
        cause: io::Error,
    },
    /// A directory, a pipe, a device.
    #[error("input {} is not a regular file; name a safetensors file", path.display())]
    NotAFile {
        /// What was named.
        path: PathBuf,
    },
    /// All of it is read into memory, and it does not fit.
    #[error(
        "input {} has {bytes} bytes, but this process can take only {available} bytes of memory more; split the \
         tokens over several files",
        path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// What there was at the time.
        available: u64,
    },
    /// The contents are not a valid problem.
    #[error("input {}: {cause}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with them.
        cause: Box<FormatError>,
    },
}

/// Bytes are not a valid problem.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The source of the bytes failed, or ended before the size that it had announced.
    #[error("reading {what} failed: {cause}")]
    Read {
        /// A tensor, or the header.
        what: String,
        /// Why it failed.
        cause: io::Error,
    },
    /// There is no header that can be understood.
    #[error("not a safetensors file: {reason}")]
    NotSafetensors {
        /// What is wrong.
        reason: String,
    },
    /// The header is longer than the format allows.
    #[error(
        "the first 8 bytes announce a header of {bytes} bytes; the format allows {MAX_HEADER}: not a safetensors file, \
         or a damaged one"
    )]
    HeaderTooLarge {
        /// Bytes announced.
        bytes: u64,
    },
    /// The file ends within the header.
    #[error("truncated: the header is {bytes} bytes long, but only {left} follow its length; copy the file again")]
    HeaderTruncated {
        /// Bytes announced.
        bytes: u64,
        /// Bytes that there are.
        left: u64,
    },
    /// The header has a tensor twice.
    #[error("tensor {tensor:?} is twice in the header; each name may be there once")]
    Duplicate {
        /// Its name.
        tensor: String,
    },
    /// The header's entry of a tensor is not `{dtype, shape, data_offsets}`.
    #[error("tensor {tensor:?} has a bad entry in the header; it must have dtype, shape and data_offsets: {reason}")]
    Entry {
        /// Its name.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The shape takes another number of bytes than the entry sets aside.
    #[error(
        "tensor {tensor:?} of {dtype} and shape {shape:?} takes {takes} bytes, but its data_offsets are {offsets:?}"
    )]
    Bytes {
        /// Its name.
        tensor: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
        /// Bytes of that shape.
        takes: u128,
        /// First byte and end, counted from the end of the header.
        offsets: (usize, usize),
    },
    /// Tensors overlap or leave a hole.
    #[error(
        "tensor {tensor:?} starts at byte {start} of the data; it must start at {expected}, where the one before ends"
    )]
    Offset {
        /// Its name.
        tensor: String,
        /// Its first byte, counted from the end of the header.
        start: usize,
        /// The end of the one before, or 0.
        expected: usize,
    },
    /// The file ends within a tensor.
    #[error(
        "truncated: tensor {tensor:?} ends at byte {end} of the data, but there are only {left}; copy the file again"
    )]
    Truncated {
        /// The first tensor that is not whole.
        tensor: String,
        /// Its end, counted from the end of the header.
        end: usize,
        /// Bytes of data that there are.
        left: u64,
    },
    /// Bytes that belong to no tensor.
    #[error("{bytes} bytes follow the last tensor; the data must end with it")]
    Trailing {
        /// How many.
        bytes: u64,
    },
    /// A name that this format does not have.
    #[error(
        "tensor {tensor:?} is not known; an input has x.R, topk_idx.R and may have scales.R, topk_weights.R, \
         expert_scale, expert_rank, where R is the number of a rank"
    )]
    Unknown {
        /// Its name.
        tensor: String,
    },
    /// A tensor that must be there.
    #[error("tensor {tensor:?} is missing: {because}")]
    Missing {
        /// Its name.
        tensor: String,
        /// Why it must be there.
        because: String,
    },
    /// A tensor that may not be there.
    #[error("tensor {tensor:?} is not allowed here: {because}")]
    Unexpected {
        /// Its name.
        tensor: String,
        /// Why it may not.
        because: String,
    },
    /// A tensor of the wrong type.
    #[error("tensor {tensor:?} is {found}; allowed: {}", names(allowed))]
    Type {
        /// Its name.
        tensor: String,
        /// Its type.
        found: Dtype,
        /// Types that it may have.
        allowed: Vec<Dtype>,
    },
    /// Ranks send different types.
    #[error("tensor {tensor:?} is {found}, but x.0 is {first}; all ranks must send the same type")]
    TypeMix {
        /// Its name.
        tensor: String,
        /// Its type.
        found: Dtype,
        /// Type of the first rank.
        first: Dtype,
    },
    /// A tensor that is not a matrix.
    #[error("tensor {tensor:?} has shape {found:?}; it must have two dimensions")]
    Dimensions {
        /// Its name.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
    },
    /// Rows that end within a byte.
    #[error(
        "tensor {tensor:?} of {dtype} has H = {hidden}: rows would start within bytes; give an even H, the last element \
         of each row 0"
    )]
    PartOfByte {
        /// Its name.
        tensor: String,
        /// Its type.
        dtype: Dtype,
        /// Elements of a row.
        hidden: usize,
    },
    /// A dimension that is too small or too large.
    #[error("tensor {tensor:?} has {what} = {found}; allowed: {} to {}", allowed.start(), allowed.end())]
    Extent {
        /// Its name.
        tensor: String,
        /// The dimension.
        what: &'static str,
        /// Its extent.
        found: usize,
        /// Extents that are allowed.
        allowed: RangeInclusive<usize>,
    },
    /// A tensor whose shape does not go with the others.
    #[error("tensor {tensor:?} has shape {found:?}; it must have {expected:?}, by {of}")]
    Shape {
        /// Its name.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that it must have.
        expected: Vec<usize>,
        /// What that follows from.
        of: String,
    },
    /// The number of experts is not there, or makes no sense.
    #[error(
        "metadata \"experts\" is {}; it must be the number of experts, as a string from \"1\" to \"{MAX_EXPERTS}\"",
        found.as_ref().map_or("missing".into(), |found| format!("{found:?}"))
    )]
    Experts {
        /// What is there, if anything.
        found: Option<String>,
    },
    /// A slot names an expert that there is not.
    #[error(
        "tensor {tensor:?}: slot {slot} of token {token} is {value}; allowed: 0 to {}, the experts, or -1 to drop the slot",
        experts - 1
    )]
    Index {
        /// Its name.
        tensor: String,
        /// Token.
        token: usize,
        /// Slot of the token.
        slot: usize,
        /// What is there.
        value: i64,
        /// Number of experts, at least 1.
        experts: usize,
    },
    /// An expert is put on a rank that there is not.
    #[error("tensor \"expert_rank\": expert {expert} is put on rank {rank}; allowed: 0 to {}, the ranks", ranks - 1)]
    ExpertRank {
        /// Expert.
        expert: usize,
        /// What is there.
        rank: i32,
        /// Number of ranks, at least 1.
        ranks: usize,
    },
}

/// An output file could not be written; one that was there before is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// No file can be there.
    #[error("output {} {reason}; name a regular file, new or old, in a directory that exists", path.display())]
    Target {
        /// What was named.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The operating system refused.
    #[error("output {}: {operation} failed: {cause}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// What was done.
        operation: &'static str,
        /// Why it failed.
        cause: io::Error,
    },
}

/// Names of types, for a message.
fn names(types: &[Dtype]) -> String {
    let names: Vec<_> = types.iter().map(Dtype::to_string).collect();
    names.join(", ")
}
