//! `campanile run`: N ranks of a program on this machine.
//!
//! Each line that a rank writes is passed on behind `[rank] `; one failure ends all, after a time of grace. How, and what the limits are, is
//! said at [`Launch`].

use std::ffi::OsString;
use std::time::Duration;

use anyhow::anyhow;
use campanile::bootstrap::Launch;
use campanile::core::Bind;

use crate::exit::Error;
use crate::ranks::{duration, named};

/// Options of `campanile run`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Ranks to start
    #[arg(short = 'n', long, value_name = "N")]
    ranks: usize,
    /// Upper bound of the whole job: seconds, or with a unit (30s, 2min)
    #[arg(long, value_parser = duration)]
    timeout: Option<Duration>,
    /// How long the other ranks may go on after one has failed: seconds, or with a unit
    #[arg(long, value_parser = duration, default_value = "2s")]
    grace: Duration,
    /// Bind ranks to cores: cores or none
    #[arg(long, value_parser = named::<Bind>(&["cores", "none"]))]
    bind: Option<Bind>,
    /// The program that each rank runs, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<(), Error> {
    let mut config = campanile::bootstrap::configuration().map_err(Error::input)?;
    if let Some(bind) = args.bind {
        config = config.with_bind(bind).map_err(Error::input)?;
    }
    campanile::Plugins::of(&config).map_err(Error::input)?;
    let [program, arguments @ ..] = args.command.as_slice() else {
        return Err(Error::input(anyhow!("no command; give one after --")));
    };
    let launch = Launch::new(program, arguments, args.ranks).config(&config).timeout(args.timeout).grace(args.grace);
    let launch = launch.forward_signals(true);
    match launch.run() {
        Ok(outcome) if outcome.failure.is_none() => Ok(()),
        Ok(outcome) => Err(Error::Failure(anyhow!("{outcome}"))),
        Err(error) if error.is_usage() => Err(Error::input(error)),
        Err(error) => Err(Error::Failure(error.into())),
    }
}
