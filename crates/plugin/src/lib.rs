//! Transports on both sides of the plugin boundary.
//!
//! | file | noun |
//! |---|---|
//! | `export` | a Rust transport as a C table, and the macro that makes a library of it |
//! | `import` | a C table as a transport, and what the host does for a plugin that does not |
//! | `loader` | a file as a plugin, for ever |
//! | `probe` | a file tried in a child process first |
//! | `search` | the plugins of a list of folders |
//! | `codes`, `op_list`, `text`, `failure` | how numbers, operations, texts and errors cross |
//!
//! The boundary itself, and its rules, are [`abi`].

mod codes;
mod device_code;
mod export;
mod failure;
mod import;
mod loader;
mod op_list;
mod probe;
mod search;
mod text;

pub use campanile_abi as abi;
pub use export::Exported;
pub use import::{Imported, Shim, TableError};
pub use loader::{LoadError, Loader};
pub use probe::Found;
pub use search::{Search, SearchError};
