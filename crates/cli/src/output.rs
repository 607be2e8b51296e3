//! Standard output.

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
