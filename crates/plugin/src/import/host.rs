//! This host, as plugins see it.

use std::ffi::c_void;
use std::panic::catch_unwind;
use std::sync::OnceLock;

use campanile_abi as abi;
use tracing::level_filters::LevelFilter;

use crate::text;

type Log = unsafe extern "C" fn(*mut c_void, u32, abi::Text, abi::Text);

/// What is handed to a plugin's `init`.
pub(crate) struct Host(abi::Host);

// SAFETY: the table is never changed; its context is null and its function may be called from any thread.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

impl Host {
    /// The host whose log is this process's `tracing`.
    pub(crate) fn logging() -> &'static Self {
        static HOST: OnceLock<Host> = OnceLock::new();
        HOST.get_or_init(|| Self::new(level(), log))
    }

    /// A host whose log goes nowhere, for a child that must not touch what its parent's threads may have locked.
    pub(crate) fn silent() -> &'static Self {
        static HOST: Host = Host::new(0, ignore);
        &HOST
    }

    const fn new(log_level: u32, log: Log) -> Self {
        Self(abi::Host {
            struct_size: size_of::<abi::Host>() as u64,
            abi_major: abi::MAJOR,
            abi_minor: abi::MINOR,
            ctx: std::ptr::null_mut(),
            log_level,
            reserved: 0,
            log: Some(log),
            counters: std::ptr::null(),
            tracer: std::ptr::null(),
        })
    }

    pub(crate) fn table(&'static self) -> *const abi::Host {
        &raw const self.0
    }
}

fn level() -> u32 {
    match LevelFilter::current() {
        LevelFilter::OFF => 0,
        LevelFilter::ERROR => abi::LOG_ERROR,
        LevelFilter::WARN => abi::LOG_WARN,
        LevelFilter::INFO => abi::LOG_INFO,
        LevelFilter::DEBUG => abi::LOG_DEBUG,
        _ => abi::LOG_TRACE,
    }
}

unsafe extern "C" fn log(_: *mut c_void, level: u32, target: abi::Text, message: abi::Text) {
    // SAFETY: the plugin lends both texts for the call.
    let (from, message) = unsafe { (text::copy(target), text::copy(message)) };
    // A subscriber's panic is lost rather than thrown through the plugin.
    let _ = catch_unwind(|| match level {
        abi::LOG_ERROR => tracing::error!(from, "{message}"),
        abi::LOG_WARN => tracing::warn!(from, "{message}"),
        abi::LOG_INFO => tracing::info!(from, "{message}"),
        abi::LOG_DEBUG => tracing::debug!(from, "{message}"),
        _ => tracing::trace!(from, "{message}"),
    });
}

unsafe extern "C" fn ignore(_: *mut c_void, _: u32, _: abi::Text, _: abi::Text) {}
