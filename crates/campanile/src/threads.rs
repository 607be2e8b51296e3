//! Ranks as threads of this process.

use std::sync::Arc;

use campanile_bootstrap::ThreadBootstrap;
use campanile_core::{CommError, CommOptions, Communicator};

use crate::Plugins;

/// Runs `body` on `ranks` ranks, each a thread of this process with a communicator over all of them, and returns what
/// each of them returned, by rank. Their transport is one that is linked in.
///
/// A rank that panics drops its communicator, which the other ranks see as its death; the panic is passed on when all
/// ranks have ended. Threads are not bound to cores.
///
/// # Panics
/// If `ranks` is 0, or a rank panicked.
pub fn threads<T, E>(
    ranks: usize,
    options: &CommOptions,
    body: impl Fn(Arc<Communicator>) -> Result<T, E> + Sync,
) -> Vec<Result<T, E>>
where
    T: Send,
    E: From<CommError> + Send,
{
    threads_over(&Plugins::linked(), ranks, options, body)
}

/// As [`threads`], over one of `plugins`.
///
/// # Panics
/// As [`threads`].
pub fn threads_over<T, E>(
    plugins: &Plugins,
    ranks: usize,
    options: &CommOptions,
    body: impl Fn(Arc<Communicator>) -> Result<T, E> + Sync,
) -> Vec<Result<T, E>>
where
    T: Send,
    E: From<CommError> + Send,
{
    assert!(ranks > 0, "a job has at least one rank");
    let (body, transports) = (&body, &plugins.transports());
    std::thread::scope(|scope| {
        let rank = |bootstrap: ThreadBootstrap| {
            let run = move || {
                let comm = Communicator::select(Arc::new(bootstrap), transports, options.clone())?;
                body(Arc::new(comm))
            };
            std::thread::Builder::new().spawn_scoped(scope, run)
        };
        let ranks: Vec<_> = ThreadBootstrap::world(ranks).into_iter().map(rank).collect();
        let ended = ranks.into_iter().map(|rank| rank.map(std::thread::ScopedJoinHandle::join)).collect::<Vec<_>>();
        let ended = ended.into_iter().map(|rank| match rank {
            Ok(rank) => rank.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(error) => {
                let reason =
                    format!("no thread can be started: {error}; raise the limit on processes or use fewer ranks");
                Err(CommError::Misuse { what: "threads", reason }.into())
            }
        });
        ended.collect()
    })
}
