//! Exchanges: what the ranks of a communicator tell each other through the bootstrap, with an eye on the transport.
//!
//! A rank that waits here for a value looks at the transport meanwhile: a peer that died, or a fault that another rank
//! recorded, ends the exchange at once, and a rank that does not come within the deadline is recorded as stalled, so that
//! all ranks name the same culprit whether they met it here or in a wait for a signal.

use std::time::{Duration, Instant};

use crate::{Bootstrap, CommError, Fault, FaultKind, Rank, Team, Transport};

/// Longest wait for a value between two looks at the transport.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// An exchange between the ranks of a team.
pub(crate) struct Exchange<'a> {
    pub(crate) bootstrap: &'a dyn Bootstrap,
    /// `None` before the ranks are connected.
    pub(crate) transport: Option<&'a dyn Transport>,
    pub(crate) team: &'a Team,
    pub(crate) timeout: Duration,
}

impl Exchange<'_> {
    /// What each member put under `key`, in team order.
    pub(crate) fn all_gather(&self, key: &str, value: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        let Some(transport) = self.transport else {
            return Ok(self.bootstrap.all_gather(self.team, key, value, self.timeout)?);
        };
        let start = Instant::now();
        self.bootstrap.put(&format!("{key}/{}", self.bootstrap.rank().0), value)?;
        self.team.members().iter().map(|&member| self.value_of(member, key, transport, start)).collect()
    }

    fn value_of(
        &self,
        member: Rank,
        key: &str,
        transport: &dyn Transport,
        start: Instant,
    ) -> Result<Vec<u8>, CommError> {
        let reporter = self.bootstrap.rank();
        let key_of_member = format!("{key}/{}", member.0);
        let mut look = Duration::ZERO;
        loop {
            if let Some(value) = self.bootstrap.get(&key_of_member, look)? {
                return Ok(value);
            }
            let waited = start.elapsed();
            let kind = match transport.gone(member) {
                Some(kind) => Some(kind),
                None if waited >= self.timeout => Some(FaultKind::Stalled),
                None => None,
            };
            let fault = match kind {
                // It may have put its value before it went.
                Some(kind) => match self.bootstrap.get(&key_of_member, Duration::ZERO)? {
                    Some(value) => return Ok(value),
                    None => Some(transport.report(Fault { culprit: member, kind, reporter })),
                },
                None => transport.fault(),
            };
            if let Some(fault) = fault {
                let what = format!("{key}: waited {waited:.1?} for {member}");
                return Err(CommError::Fault { what, fault });
            }
            look = LOOK_EVERY.min(self.timeout - waited);
        }
    }

    /// All-gathers results, so that a failure of one rank is an error on every rank instead of a wait without end.
    pub(crate) fn results(&self, key: &str, result: Result<Vec<u8>, String>) -> Result<Vec<Vec<u8>>, CommError> {
        let message = match &result {
            Ok(value) => [b"+", value.as_slice()].concat(),
            Err(reason) => [b"-", reason.as_bytes()].concat(),
        };
        let unpack = |(position, message): (usize, Vec<u8>)| {
            let failed =
                |reason: String| CommError::Peer { what: key.to_owned(), peer: self.team.member(position), reason };
            match message.split_first() {
                Some((b'+', value)) => Ok(value.to_vec()),
                Some((_, reason)) => Err(failed(String::from_utf8_lossy(reason).into_owned())),
                None => Err(failed("it sent an empty message".to_owned())),
            }
        };
        self.all_gather(key, &message)?.into_iter().enumerate().map(unpack).collect()
    }

    /// Makes sure that every rank gives the same fields. They are sent with their names: ranks of different builds may
    /// have different ones.
    pub(crate) fn agree(&self, key: &str, what: &str, fields: &[(&str, String)]) -> Result<(), CommError> {
        let ours: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let text = ours.iter().map(|(name, value)| format!("{name}{IS}{value}")).collect::<Vec<_>>().join(AND);
        for (position, theirs) in self.all_gather(key, text.as_bytes())?.iter().enumerate() {
            let theirs = String::from_utf8_lossy(theirs);
            let theirs: Vec<_> = theirs.split(AND).filter_map(|field| field.split_once(IS)).collect();
            if let Some((field, given, theirs)) = first_difference(&ours, &theirs) {
                return Err(CommError::Mismatch {
                    what: what.to_owned(),
                    field: field.to_owned(),
                    given: given.to_owned(),
                    theirs: theirs.to_owned(),
                    peer: self.team.member(position),
                });
            }
        }
        Ok(())
    }
}

/// Between the name of a field and its value, and between fields: ASCII's unit and record separators.
const IS: char = '\u{1f}';
const AND: &str = "\u{1e}";

/// A value that is not there.
const ABSENT: &str = "absent";

/// The first field that differs, and both values.
fn first_difference<'a>(
    ours: &[(&'a str, &'a str)],
    theirs: &[(&'a str, &'a str)],
) -> Option<(&'a str, &'a str, &'a str)> {
    let value = |fields: &[(&'a str, &'a str)], name| {
        fields.iter().find(|(other, _)| *other == name).map_or(ABSENT, |(_, value)| *value)
    };
    let names = ours.iter().chain(theirs).map(|(name, _)| *name);
    names.map(|name| (name, value(ours, name), value(theirs, name))).find(|(_, given, theirs)| given != theirs)
}

#[cfg(test)]
mod tests {
    use super::first_difference;

    #[test]
    fn fields_are_compared_by_name() {
        let ours = [("version", "1"), ("path", "auto")];
        assert_eq!(first_difference(&ours, &[("path", "auto"), ("version", "1")]), None);
        assert_eq!(first_difference(&ours, &[("version", "2"), ("path", "queue")]), Some(("version", "1", "2")));
        assert_eq!(first_difference(&ours, &ours[..1]), Some(("path", "auto", "absent")));
        assert_eq!(first_difference(&ours[..1], &ours), Some(("path", "absent", "auto")));
        assert_eq!(first_difference(&[], &[]), None);
    }
}
