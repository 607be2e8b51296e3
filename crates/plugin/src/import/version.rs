//! The version rule: which tables a host accepts.
//!
//! * The magic number is right.
//! * The major version is the host's, or one that a [`Shim`] makes into the host's.
//! * The minor version may be any. A table is at least as long as its minor version declares, as far as the host knows
//!   that; what a newer one has beyond that is not read.

use campanile_abi as abi;
use campanile_core::DeviceCodeError;

/// Makes a table of another major version into one of this host's.
#[derive(Clone, Copy, Debug)]
pub struct Shim {
    /// The major version that it takes.
    pub major: u32,
    /// The table of this host's version that stands for the one given, for ever; or why there is none.
    ///
    /// It is given a table whose magic is right and whose major version is [`major`](Self::major).
    pub adapt: fn(*const abi::Plugin) -> Result<*const abi::Plugin, String>,
}

/// A table is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// There is none.
    #[error(
        "it has no table for a host of version {}.{}; build it with a header of that version",
        abi::MAJOR,
        abi::MINOR
    )]
    Null,
    /// It is no table.
    #[error("its table begins with {seen:#018x}, a plugin's with {:#018x}", abi::MAGIC)]
    Magic {
        /// What it begins with.
        seen: u64,
    },
    /// It is of another major version.
    #[error(
        "it is of version {major}.{minor} of the plugin boundary, this host of {}.{}, without a shim for {major}; build \
         it with this version's header",
        abi::MAJOR,
        abi::MINOR
    )]
    Major {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// A shim refuses it.
    #[error("it is of version {major} of the plugin boundary, and the shim for that says: {reason}")]
    Shim {
        /// Its major version.
        major: u32,
        /// Why.
        reason: String,
    },
    /// It is shorter than its version.
    #[error("its table has {size} bytes, version {}.{minor} has {needed} at least", abi::MAJOR)]
    Short {
        /// Its minor version.
        minor: u32,
        /// What it says.
        size: u64,
        /// What that version has.
        needed: u64,
    },
    /// A function that every plugin has is not there.
    #[error("the {table} table has no function {function}, which every {table} has")]
    Function {
        /// Which table.
        table: &'static str,
        /// Which function.
        function: &'static str,
    },
    /// The record of its device code is shorter than this host's.
    #[error("its device code has {size} bytes, {needed} at least; build it with this version's header")]
    ShortDeviceCode {
        /// What it says.
        size: u64,
        /// What this host reads.
        needed: u64,
    },
    /// Its device code cannot be compiled here.
    #[error("its device code: {0}")]
    DeviceCode(#[from] DeviceCodeError),
    /// A text cannot be used.
    #[error("the {field} in its table is empty or no UTF-8")]
    Text {
        /// Which text.
        field: &'static str,
    },
    /// It could not be initialised.
    #[error("init: {reason}")]
    Init {
        /// What it says.
        reason: String,
    },
}

/// Bytes of the root table in each minor version, from 0.
const SIZES: [usize; abi::MINOR as usize + 1] = [size_of::<abi::Plugin>()];

/// Applies the rule; returns a table of this host's major version.
///
/// # Safety
/// `table` is null or what an entry symbol returned.
pub(super) unsafe fn accept(table: *const abi::Plugin, shims: &[Shim]) -> Result<*const abi::Plugin, TableError> {
    // SAFETY: the caller's promise; the fields up to `struct_size` are at their places in every version.
    let (magic, major, minor) = unsafe {
        if table.is_null() {
            return Err(TableError::Null);
        }
        ((*table).magic, (*table).abi_major, (*table).abi_minor)
    };
    if magic != abi::MAGIC {
        return Err(TableError::Magic { seen: magic });
    }
    if major == abi::MAJOR {
        // SAFETY: the caller's promise.
        return unsafe { long_enough(table) };
    }
    let shim = shims.iter().find(|shim| shim.major == major).ok_or(TableError::Major { major, minor })?;
    let adapted = (shim.adapt)(table).map_err(|reason| TableError::Shim { major, reason })?;
    if adapted.is_null() {
        return Err(TableError::Null);
    }
    // SAFETY: what a shim returns is a table of this host's version (its contract).
    unsafe { long_enough(adapted) }
}

/// # Safety
/// `table` is one of this host's major version.
unsafe fn long_enough(table: *const abi::Plugin) -> Result<*const abi::Plugin, TableError> {
    // SAFETY: the caller's promise.
    let (minor, size) = unsafe { ((*table).abi_minor, (*table).struct_size) };
    let needed = SIZES[(minor as usize).min(SIZES.len() - 1)] as u64;
    if size < needed { Err(TableError::Short { minor, size, needed }) } else { Ok(table) }
}
