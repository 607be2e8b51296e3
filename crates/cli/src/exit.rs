//! How the program ends when it cannot do what it was asked.

use std::process::ExitCode;

use crate::output::printable;

/// Why not, and the exit code that says so.
#[derive(Debug)]
pub enum Error {
    /// Bad input or usage: exit code 2.
    Input(anyhow::Error),
    /// Everything else: exit code 1.
    Failure(anyhow::Error),
}

impl Error {
    /// Bad input or usage.
    pub fn input(error: impl Into<anyhow::Error>) -> Self {
        Self::Input(error.into())
    }

    /// Writes the error to standard error and gives the exit code.
    pub fn report(&self) -> ExitCode {
        let (error, code) = match self {
            Self::Input(error) => (error, 2),
            Self::Failure(error) => (error, 1),
        };
        eprintln!("error: {}", printable(&chain(error)));
        ExitCode::from(code)
    }
}

/// An error and its causes. Many errors end with what their cause says; it is said once.
fn chain(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| match said.is_empty() {
        true => cause,
        false if said.ends_with(&cause) => said,
        false => format!("{said}: {cause}"),
    })
}

impl<E: Into<anyhow::Error>> From<E> for Error {
    fn from(error: E) -> Self {
        Self::Failure(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let cause =
            || anyhow::anyhow!("no such file").context("read x: no such file").context("moe: read x: no such file");
        assert_eq!(chain(&cause()), "moe: read x: no such file");
        assert_eq!(chain(&cause().context("rank 1")), "rank 1: moe: read x: no such file");
        assert_eq!(chain(&anyhow::anyhow!("b").context("a")), "a: b");
    }
}
