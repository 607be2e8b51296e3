//! Standard output.

use std::borrow::Cow;
use std::io::{ErrorKind, Write};

use anyhow::Context;

use crate::exit::Error;

/// Writes `text` to standard output. A reader that has seen enough (`| head`) is no failure.
pub fn print(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written.context("writing to standard output")?),
    }
}

/// `text` as a terminal may have it: names of files and what libraries say may hold anything, escape sequences too. Lines
/// and tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    let harmless = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    if text.chars().all(harmless) {
        return text.into();
    }
    let escaped = |c: char| if harmless(c) { c.to_string() } else { c.escape_default().to_string() };
    text.chars().map(escaped).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(printable("libä.so\t1\n"), "libä.so\t1\n");
        assert_eq!(printable("a\x1b[2Jb\r\u{9b}"), "a\\u{1b}[2Jb\\r\\u{9b}");
    }
}
