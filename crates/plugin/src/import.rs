//! Importing: a C table as a [`TransportPlugin`].
//!
//! The version rule is applied first ([`version`]); then the table is copied as far as it and this host reach, so that an
//! absent function is `None` here, whichever of the two is older. What a plugin does not do itself, the host does
//! ([`transport`], [`queue`], [`signal`]: "without it").

mod host;
mod queue;
mod record;
mod request;
mod signal;
mod table;
mod transport;
mod version;

use std::sync::Arc;

use campanile_abi as abi;
use campanile_core::{OpenError, OpenOptions, Probed, Transport, TransportInfo, TransportPlugin};

use crate::codes::{huge_pages_code, nanoseconds};
use crate::{device_code, text};
pub(crate) use host::Host;
use record::call;
use table::{Prefix, required};
pub use version::{Shim, TableError};

/// A plugin that is a C table.
pub struct Imported {
    table: abi::Plugin,
    info: TransportInfo,
    vendor: &'static str,
}

// SAFETY: the functions of a root table may be called from any thread with its context (the contract of tables); the rest
// never changes.
unsafe impl Send for Imported {}
// SAFETY: as above.
unsafe impl Sync for Imported {}

impl Imported {
    /// The plugin whose table this is; not initialised yet.
    ///
    /// # Errors
    /// [`TableError`] if the version rule refuses the table, or it lacks something.
    ///
    /// # Safety
    /// `table` is null or what an entry symbol returned; it is true to the header of the version that it names, and stays for
    /// ever.
    pub unsafe fn new(table: *const abi::Plugin, shims: &[Shim]) -> Result<Self, TableError> {
        // SAFETY: the caller's promise.
        let table = unsafe { abi::Plugin::prefix(version::accept(table, shims)?) };
        required(&[("probe", table.probe.is_some()), ("open", table.open.is_some())])
            .map_err(|function| TableError::Function { table: "plugin", function })?;
        let field = |text, field| {
            // SAFETY: the caller's promise: the texts of the table are there, for ever.
            std::str::from_utf8(unsafe { text::borrow(text) }).map_err(|_| TableError::Text { field })
        };
        let info = TransportInfo {
            name: field(table.name, "name")?,
            version: field(table.version, "version")?,
            summary: field(table.summary, "summary")?,
            // SAFETY: the caller's promise.
            device_code: unsafe { device_code::read(&table)? },
        };
        if info.name.is_empty() {
            return Err(TableError::Text { field: "name" });
        }
        Ok(Self { info, vendor: field(table.vendor, "vendor")?, table })
    }

    /// Initialises the plugin: once, before anything else.
    ///
    /// # Errors
    /// [`TableError::Init`] says what the plugin says.
    pub(crate) fn init(&self, host: &'static Host) -> Result<(), TableError> {
        let Some(init) = self.table.init else { return Ok(()) };
        // SAFETY: the table's function and context; the host stays for ever, the record is this call's.
        call(|error| unsafe { init(self.table.ctx, host.table(), error) })
            .map(|_| ())
            .map_err(|failure| TableError::Init { reason: failure.describe() })
    }

    /// The devices that the plugin names.
    pub(crate) fn devices(&self) -> Result<Vec<Probed>, String> {
        let probe = self.table.probe.expect("`new` made sure");
        let mut devices: Vec<Probed> = Vec::new();
        let sink = abi::DeviceSink { ctx: (&raw mut devices).cast(), device: take_device };
        // SAFETY: the table's function and context; sink and record are this call's.
        let probed = call(|error| unsafe { probe(self.table.ctx, &raw const sink, error) });
        probed.map(|_| devices).map_err(|failure| failure.describe())
    }

    /// Who made it.
    pub fn vendor(&self) -> &'static str {
        self.vendor
    }
}

unsafe extern "C" fn take_device(ctx: *mut std::ffi::c_void, name: abi::Text, usable: u32, detail: abi::Text) {
    // SAFETY: the context is the vector of the call of `probe` that runs; the plugin lends the texts.
    unsafe {
        let (device, detail) = (text::copy(name), text::copy(detail));
        let usable = if usable != 0 { Ok(detail) } else { Err(detail) };
        (*ctx.cast::<Vec<Probed>>()).push(Probed { device, usable });
    }
}

impl TransportPlugin for Imported {
    fn info(&self) -> TransportInfo {
        self.info.clone()
    }

    fn probe(&self) -> Vec<Probed> {
        // A probe that fails finds no device, for a reason that is worth a line.
        let failed = |reason| vec![Probed { device: self.info.name.to_owned(), usable: Err(reason) }];
        self.devices().unwrap_or_else(failed)
    }

    fn open(&self, device: &str, options: OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        let name = self.info.name;
        let open = self.table.open.expect("`new` made sure");
        // A job has fewer than 2^32 of anything.
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let given = abi::OpenOptions {
            struct_size: size_of::<abi::OpenOptions>() as u64,
            node: text::lend(options.node.identity()),
            timeout_ns: nanoseconds(options.timeout),
            rank: options.rank.0,
            ranks: number(options.ranks),
            ranks_on_node: number(options.ranks_on_node),
            cores: number(options.cores),
            huge_pages: huge_pages_code(options.huge_pages),
            reserved: 0,
        };
        let mut table = std::ptr::null();
        // SAFETY: the table's function and context; everything else is this call's.
        call(|error| unsafe { open(self.table.ctx, text::lend(device), &raw const given, &raw mut table, error) })
            .map_err(|failure| failure.into_open(name, device))?;
        // SAFETY: a table that the plugin has just opened, true to the header.
        let opened = unsafe { transport::import(table, self.info.clone(), &options) };
        opened.map_err(|error| OpenError::System { transport: name, reason: error.to_string() })
    }
}
