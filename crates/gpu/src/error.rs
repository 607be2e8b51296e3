//! Errors: [`LoadError`], [`CallError`], [`CompileError`], [`PlanError`].

use std::io;

use campanile_core::GpuChoice;

use crate::Backend;

/// Why a vendor's library could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// None of its names could be opened.
    #[error(
        "no {library} could be loaded; tried {}; set {variable} to its path if it lies elsewhere",
        tried.join(", ")
    )]
    NotFound {
        /// What was looked for.
        library: &'static str,
        /// Each name that was tried, with the loader's reason.
        tried: Vec<String>,
        /// The variable that names another path.
        variable: &'static str,
    },
    /// It was loaded, and does not start: no driver, no device, another version.
    #[error("{library} was loaded, but does not start: {source}")]
    NotStarted {
        /// What was loaded.
        library: String,
        /// The call that failed.
        source: CallError,
    },
    /// None of the backends that may be used has a device.
    #[error("no device with CAMPANILE_GPU={choice}: {reasons}")]
    NoDevice {
        /// What may be used.
        choice: GpuChoice,
        /// Why each of them is not.
        reasons: String,
    },
    /// The emulator was asked for something that it does not have.
    #[error("the emulator has {allowed}; {given} was given")]
    Emulator {
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: &'static str,
    },
}

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The library refused.
    #[error("{call}({arguments}) = {code}: {text}")]
    Failed {
        /// The call, by the library's name for it.
        call: &'static str,
        /// Its arguments, in short.
        arguments: String,
        /// The library's code; CUDA and HIP share the common ones.
        code: i32,
        /// What the library says of the code.
        text: String,
    },
    /// The library is too old, or too new, to have it.
    #[error("{library} has no {symbol}; another version of it is needed")]
    MissingSymbol {
        /// The library, as it was loaded.
        library: String,
        /// The symbol.
        symbol: &'static str,
    },
    /// This backend cannot do it.
    #[error("{backend} cannot {what}: {reason}")]
    Unsupported {
        /// The backend.
        backend: Backend,
        /// What was asked for.
        what: String,
        /// Why not.
        reason: String,
    },
    /// A wait of the host has reached its deadline.
    #[error("{what} was not done within {milliseconds} ms; it may still run")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// The bound, in milliseconds.
        milliseconds: u128,
    },
}

impl CallError {
    /// The library's code, if it gave one.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Failed { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// Why a kernel could not be compiled or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// There is no run-time compiler.
    #[error("kernels cannot be compiled: {0}")]
    NoCompiler(String),
    /// The source does not compile.
    #[error("{source_name} does not compile for {target} with [{options}]:\n{log}")]
    Source {
        /// Name of the source.
        source_name: String,
        /// The target.
        target: String,
        /// The options, as the compiler was given them.
        options: String,
        /// What the compiler said.
        log: String,
    },
    /// The source does not compile with what a transport brings for kernels, which is where to look first.
    #[error("with the device code of transport {transport}: {source}")]
    DeviceCode {
        /// The transport.
        transport: &'static str,
        /// What the compiler said.
        source: Box<Self>,
    },
    /// A call of the compiler or the driver failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Files could not be written or read.
    #[error("{operation} {path}: {source}")]
    Files {
        /// What was done.
        operation: &'static str,
        /// Where.
        path: String,
        /// Why it failed.
        source: io::Error,
    },
}

/// Why a kernel cannot be launched as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The host's struct is not the kernel's.
    #[error("kernel {kernel} takes an argument of {kernel_bytes} bytes; {given} of {given_bytes} bytes was given")]
    Argument {
        /// The kernel.
        kernel: String,
        /// Bytes of its argument.
        kernel_bytes: usize,
        /// The host's type.
        given: &'static str,
        /// Its bytes.
        given_bytes: usize,
    },
    /// The geometry is none.
    #[error(
        "kernel {kernel}: {blocks} blocks of {threads} threads were asked for; blocks are at least 1, and threads a \
         multiple of the wave ({wave}) up to {max_threads}"
    )]
    Geometry {
        /// The kernel.
        kernel: String,
        /// Blocks asked for.
        blocks: u32,
        /// Threads asked for.
        threads: u32,
        /// Lanes of a wave.
        wave: u32,
        /// The most threads that a block can have.
        max_threads: u32,
    },
    /// Its blocks wait for each other, and cannot all run at once.
    #[error(
        "kernel {kernel}: {}",
        if *resident == 0 {
            format!(
                "a block of {threads} threads with {shared_bytes} bytes of shared memory does not fit on a multiprocessor, or has \
                 more threads than the kernel was compiled for; ask for smaller ones"
            )
        } else {
            format!(
                "{blocks} blocks of {threads} threads with {shared_bytes} bytes of shared memory wait for each other, but \
                 only {resident} fit on the device at once ({per_multiprocessor} on each of {multiprocessors} \
                 multiprocessors); ask for fewer or smaller blocks"
            )
        }
    )]
    NotResident {
        /// The kernel.
        kernel: String,
        /// Blocks asked for.
        blocks: u32,
        /// Threads asked for.
        threads: u32,
        /// Dynamic shared memory asked for.
        shared_bytes: u32,
        /// Blocks that fit.
        resident: u32,
        /// Blocks that fit on one multiprocessor.
        per_multiprocessor: u32,
        /// Multiprocessors of the device.
        multiprocessors: u32,
    },
    /// The table has no row for it.
    #[error("the geometry table has no row for operation {operation} on {target} with {tokens} tokens")]
    NoRow {
        /// The operation.
        operation: String,
        /// The target.
        target: String,
        /// Tokens.
        tokens: u64,
    },
    /// The table cannot be read.
    #[error("the geometry table: {0}")]
    Table(String),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
}
