//! Progress of long work, on a terminal only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar of `steps` on standard error; hidden where that is no terminal.
pub fn bar(steps: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {elapsed}").expect("the template is one");
    ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr()).with_style(style).with_message(what)
}

/// A spinner for work of unknown length.
pub fn spinner(what: &'static str) -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_message(what);
    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
    spinner
}
