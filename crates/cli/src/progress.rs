//! Progress of long work, on a terminal only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A spinner with the time so far, on standard error; nothing where that is no terminal.
pub fn spinner(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}").expect("the template is one");
    let spinner =
        ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style).with_message(what);
    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
    spinner
}
