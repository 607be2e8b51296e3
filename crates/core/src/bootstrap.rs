//! Bootstrap: how ranks exchange small things before they have a transport.
//!
//! The model is a key-value store that all ranks of a job reach: a value is put once and read by whoever waits for
//! its key. Everything else (all-gather, agreement) is built on that here, so that a launcher's own store can serve.

use std::time::{Duration, Instant};

use crate::{BootstrapError, Node, Rank, Team};

/// How long the ranks that are left are still looked for after the deadline of an all-gather.
const LAST_LOOKS: Duration = Duration::from_secs(1);

/// A rank's way to the store of its job.
pub trait Bootstrap: Send + Sync {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Ranks of the job.
    fn ranks(&self) -> usize;

    /// The machine that this rank runs on.
    fn node(&self) -> Node;

    /// Puts a value. A key is put once.
    ///
    /// # Errors
    /// [`BootstrapError::Store`] if the store is gone.
    fn put(&self, key: &str, value: &[u8]) -> Result<(), BootstrapError>;

    /// The value of a key, `None` if nobody has put it within `timeout`.
    ///
    /// # Errors
    /// [`BootstrapError::Store`] if the store is gone.
    fn get(&self, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>, BootstrapError>;
}

impl dyn Bootstrap + '_ {
    /// Puts `value` under `key` for this rank and returns what each member of `team` put, in team order.
    ///
    /// # Errors
    /// [`BootstrapError::Missing`] names every rank that had put nothing after `timeout`.
    pub fn all_gather(
        &self,
        team: &Team,
        key: &str,
        value: &[u8],
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let start = Instant::now();
        self.put(&format!("{key}/{}", self.rank().0), value)?;
        let mut values = Vec::with_capacity(team.len());
        let mut missing = Vec::new();
        for &member in team.members() {
            let left = timeout.saturating_sub(start.elapsed());
            // Of very many that are missing not each one gets its look after the deadline.
            if left.is_zero() && start.elapsed() > timeout + LAST_LOOKS {
                missing.push(member);
                continue;
            }
            match self.get(&format!("{key}/{}", member.0), left)? {
                Some(value) => values.push(value),
                None => missing.push(member),
            }
        }
        if missing.is_empty() {
            return Ok(values);
        }
        Err(BootstrapError::missing(key, &missing, start.elapsed()))
    }
}

impl BootstrapError {
    /// These ranks have put nothing.
    pub(crate) fn missing(key: &str, missing: &[Rank], waited: Duration) -> Self {
        let plural = if missing.len() == 1 { "rank" } else { "ranks" };
        let missing = missing.iter().map(|rank| rank.0).collect();
        Self::Missing { what: key.to_owned(), missing: format!("{plural} {}", runs(missing)), waited }
    }
}

/// Numbers for people, runs of three and more as one: `0, 2–5, 7`.
fn runs(mut numbers: Vec<u32>) -> String {
    numbers.sort_unstable();
    let mut parts = Vec::new();
    for run in numbers.chunk_by(|a, b| a + 1 == *b) {
        match run {
            [first, .., last] if run.len() > 2 => parts.push(format!("{first}–{last}")),
            _ => parts.extend(run.iter().map(ToString::to_string)),
        }
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn runs_are_abbreviated() {
        assert_eq!(super::runs(vec![7, 2, 3, 4, 5, 0]), "0, 2–5, 7");
        assert_eq!(super::runs(vec![1, 2]), "1, 2");
        assert_eq!(super::runs(vec![3]), "3");
    }
}
