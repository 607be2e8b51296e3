//! What the program tells of itself on standard error: events of the libraries and of plugins, as `CAMPANILE_LOG` says.

use campanile::core::LogLevel;
use tracing::level_filters::LevelFilter;

/// From now on events are lines on standard error. A configuration that cannot be used is the command's to tell.
pub fn start() {
    let level = campanile::configuration().map_or(LogLevel::Warn, |config| config.log());
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let subscriber = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).without_time();
    subscriber.with_ansi(false).with_target(false).init();
}
