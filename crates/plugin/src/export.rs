//! Exporting: a Rust [`TransportPlugin`] as the C table.
//!
//! Every body of a function runs under `catch_unwind`: a panic becomes an error that names the function (or, where a
//! function has no error to give, a line in the log and the answer that promises least). What goes out by a handle
//! (transport, queue, region, request) is a box that the host gives back to be dropped.

mod guard;
mod log;
mod queue;
mod request;
mod transport;

use std::ffi::c_void;
use std::time::Duration;

use campanile_abi as abi;
use campanile_core::{Node, OpenOptions, Rank, TransportInfo, TransportPlugin};

use crate::codes;
use crate::failure::Failure;
use crate::{device_code, text};
use guard::{answer, caught, guard};

/// Makes a library of the crate that calls it: the entry symbol, for the [`TransportPlugin`] that the expression makes, once.
///
/// The crate is a `cdylib` with nothing else in it:
///
/// ```
/// # mod plugin {
/// # use campanile_core::{OpenError, OpenOptions, Probed, Transport, TransportInfo, TransportPlugin};
/// # pub struct MyPlugin;
/// # impl TransportPlugin for MyPlugin {
/// #     fn info(&self) -> TransportInfo { TransportInfo { name: "my", version: "1", summary: "mine", device_code: None } }
/// #     fn probe(&self) -> Vec<Probed> { Vec::new() }
/// #     fn open(&self, device: &str, _: OpenOptions) -> Result<std::sync::Arc<dyn Transport>, OpenError> {
/// #         let (device, available) = (device.to_owned(), String::new());
/// #         Err(OpenError::NoDevice { transport: "my", device, available })
/// #     }
/// # }
/// campanile_plugin::export!(MyPlugin, vendor = "me");
/// # pub fn entry() -> campanile_plugin::abi::Entry { campanile_transport_plugin }
/// # }
/// # // SAFETY: the entry of this crate.
/// # let table = unsafe { (plugin::entry())(campanile_plugin::abi::MAJOR) };
/// # // SAFETY: as above.
/// # assert_eq!(unsafe { (*table).magic }, campanile_plugin::abi::MAGIC);
/// ```
#[macro_export]
macro_rules! export {
    ($plugin:expr, vendor = $vendor:expr) => {
        /// The entry symbol of the plugin boundary.
        #[unsafe(no_mangle)]
        extern "C" fn campanile_transport_plugin(host_major: u32) -> *const $crate::abi::Plugin {
            static EXPORTED: ::std::sync::OnceLock<$crate::Exported> = ::std::sync::OnceLock::new();
            $crate::Exported::entry(&EXPORTED, host_major, || {
                (::std::boxed::Box::leak(::std::boxed::Box::new($plugin)), $vendor)
            })
        }
    };
}

/// A plugin's table, and what it points to.
pub struct Exported {
    table: abi::Plugin,
}

// SAFETY: the table is never changed; it points to texts and device code that stay for ever and to a plugin that is Sync.
unsafe impl Send for Exported {}
// SAFETY: as above.
unsafe impl Sync for Exported {}

/// What `ctx` of the root table points to.
struct Root {
    plugin: &'static dyn TransportPlugin,
    /// What it said when it panicked instead of saying who it is.
    panic: Option<String>,
}

/// Who a plugin is that panics when it is asked: `init` says the rest.
const NOBODY: TransportInfo =
    TransportInfo { name: "unknown", version: "unknown", summary: "it panicked", device_code: None };

impl Exported {
    /// The body of the entry symbol: the table, made at the first call, for a host of this major version, else null.
    #[doc(hidden)]
    pub fn entry(
        place: &'static std::sync::OnceLock<Self>,
        host_major: u32,
        plugin: impl FnOnce() -> (&'static dyn TransportPlugin, &'static str),
    ) -> *const abi::Plugin {
        if host_major != abi::MAJOR {
            return std::ptr::null();
        }
        let make = || {
            let (plugin, vendor) = plugin();
            Self::new(plugin, vendor)
        };
        place.get_or_init(make).table()
    }

    /// The table of a plugin, for hosts in the same process.
    pub fn new(plugin: &'static dyn TransportPlugin, vendor: &'static str) -> Self {
        let (info, panic) = match caught(|| plugin.info()) {
            Ok(info) => (info, None),
            Err(message) => (NOBODY, Some(message)),
        };
        let root = Box::leak(Box::new(Root { plugin, panic }));
        let code = info.device_code.map_or(std::ptr::null(), |code| {
            // One a plugin, for ever.
            let record: &'static _ = Box::leak(Box::new(device_code::record(code)));
            &raw const *record
        });
        let table = abi::Plugin {
            magic: abi::MAGIC,
            abi_major: abi::MAJOR,
            abi_minor: abi::MINOR,
            struct_size: size_of::<abi::Plugin>() as u64,
            // One a plugin, for ever.
            ctx: (&raw mut *root).cast(),
            name: text::lend(info.name),
            version: text::lend(info.version),
            vendor: text::lend(vendor),
            summary: text::lend(info.summary),
            device_abi: info.device_code.map_or(0, |code| code.abi),
            reserved: 0,
            device_code: code,
            init: Some(init),
            probe: Some(probe),
            open: Some(open),
        };
        Self { table }
    }

    /// The table; it stays where it is as long as `self`.
    pub fn table(&self) -> *const abi::Plugin {
        &raw const self.table
    }
}

/// # Safety
/// `ctx` is the root table's.
unsafe fn root(ctx: *mut c_void) -> &'static Root {
    // SAFETY: the caller's promise; it is leaked and never changed.
    unsafe { &*ctx.cast() }
}

unsafe extern "C" fn init(ctx: *mut c_void, host: *const abi::Host, error: *mut abi::Error) -> i32 {
    // SAFETY: the context is ours, the host is one for ever, the record is this call's (the contract of `init`).
    unsafe {
        guard("init", error, || {
            log::forward_to(host);
            match &root(ctx).panic {
                Some(message) => Err(Failure::panicked("info", message)),
                None => Ok(abi::STATUS_OK),
            }
        })
    }
}

unsafe extern "C" fn probe(ctx: *mut c_void, devices: *const abi::DeviceSink, error: *mut abi::Error) -> i32 {
    // SAFETY: the context is ours, sink and record are this call's (the contract of `probe`).
    unsafe {
        guard("probe", error, || {
            for probed in root(ctx).plugin.probe() {
                let (usable, detail) = match &probed.usable {
                    Ok(detail) => (1, detail),
                    Err(reason) => (0, reason),
                };
                ((*devices).device)((*devices).ctx, text::lend(&probed.device), usable, text::lend(detail));
            }
            Ok::<_, Failure>(abi::STATUS_OK)
        })
    }
}

unsafe extern "C" fn open(
    ctx: *mut c_void,
    device: abi::Text,
    options: *const abi::OpenOptions,
    transport: *mut *const abi::Transport,
    error: *mut abi::Error,
) -> i32 {
    // SAFETY: the context is ours, everything else is this call's (the contract of `open`).
    unsafe {
        guard("open", error, || {
            let options = &*options;
            let options = OpenOptions {
                rank: Rank(options.rank),
                ranks: options.ranks as usize,
                node: Node::new(text::copy(options.node)),
                ranks_on_node: options.ranks_on_node as usize,
                cores: options.cores as usize,
                huge_pages: codes::huge_pages(options.huge_pages),
                timeout: Duration::from_nanos(options.timeout_ns),
            };
            let opened = root(ctx).plugin.open(&text::copy(device), options)?;
            *transport = transport::export(opened);
            Ok::<_, Failure>(abi::STATUS_OK)
        })
    }
}
