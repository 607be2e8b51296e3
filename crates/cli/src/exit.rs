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
        eprintln!("error: {}", printable(&format!("{error:#}")));
        ExitCode::from(code)
    }
}

impl<E: Into<anyhow::Error>> From<E> for Error {
    fn from(error: E) -> Self {
        Self::Failure(error.into())
    }
}
