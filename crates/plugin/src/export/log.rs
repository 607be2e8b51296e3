//! The plugin's events go to the host's log.
//!
//! A library that carries its own copy of `tracing` has its own subscriber: none, until the host hands in its logger.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use campanile_abi as abi;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::text;

/// Sends events to the host from now on, unless this copy of `tracing` has a subscriber: then it is the host's own.
///
/// # Safety
/// The host is one, for ever.
pub(super) unsafe fn forward_to(host: *const abi::Host) {
    // SAFETY: the caller's promise.
    let Some(host) = (unsafe { host.as_ref() }) else { return };
    if host.log.is_some() && host.log_level > 0 {
        // An error says that there is a subscriber.
        let _ = tracing::subscriber::set_global_default(ToHost { host, spans: AtomicU64::new(1) });
    }
}

struct ToHost {
    host: &'static abi::Host,
    spans: AtomicU64,
}

// SAFETY: the host's function may be called from any thread, with its context (the contract of `log`).
unsafe impl Send for ToHost {}
// SAFETY: as above.
unsafe impl Sync for ToHost {}

fn code(level: &Level) -> u32 {
    match *level {
        Level::ERROR => abi::LOG_ERROR,
        Level::WARN => abi::LOG_WARN,
        Level::INFO => abi::LOG_INFO,
        Level::DEBUG => abi::LOG_DEBUG,
        Level::TRACE => abi::LOG_TRACE,
    }
}

impl Subscriber for ToHost {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        code(metadata.level()) <= self.host.log_level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match self.host.log_level {
            0 => LevelFilter::OFF,
            abi::LOG_ERROR => LevelFilter::ERROR,
            abi::LOG_WARN => LevelFilter::WARN,
            abi::LOG_INFO => LevelFilter::INFO,
            abi::LOG_DEBUG => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn event(&self, event: &Event<'_>) {
        let Some(log) = self.host.log else { return };
        let mut line = Line(String::new());
        event.record(&mut line);
        let (level, target) = (code(event.metadata().level()), text::lend(event.metadata().target()));
        // SAFETY: the host's own function and context; the texts are lent for the call.
        unsafe { log(self.host.ctx, level, target, text::lend(&line.0)) };
    }

    // Spans stay on this side: the host's tracer is where they will go.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// An event as a line: the message, then the fields.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.insert_str(0, &format!("{value:?}"));
        } else {
            // Writing to a string does not fail.
            let _ = write!(self.0, " {field}={value:?}");
        }
    }
}
