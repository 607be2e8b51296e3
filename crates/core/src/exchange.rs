//! Exchanges: what the ranks of a communicator tell each other through the bootstrap, with an eye on the transport.
//!
//! A rank that waits here for a value looks at the transport meanwhile: a peer that died, or a fault that another rank
//! recorded, ends the exchange at once, and a rank that does not come within the deadline is recorded as stalled, so that
//! all ranks name the same culprit whether they met it here or in a wait for a signal.

use std::time::{Duration, Instant};

use crate::{Bootstrap, BootstrapError, CommError, ControlError, Fault, FaultKind, Rank, Team, Transport};

/// Longest wait for a value between two looks at the transport and at the other values.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long the others are waited for once one has failed: what they say may be its consequence or its cause.
const CONSEQUENCES: Duration = Duration::from_secs(2);

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
        let (values, end) = self.gather_until(key, value, |_| false);
        end?;
        Ok(values.into_iter().flatten().collect())
    }

    /// What the members have put when all have, or when waiting ended with an error. Once a value `fails`, the others get
    /// only [`CONSEQUENCES`] more.
    fn gather_until(
        &self,
        key: &str,
        value: &[u8],
        fails: impl Fn(&[u8]) -> bool,
    ) -> (Vec<Option<Vec<u8>>>, Result<(), CommError>) {
        let start = Instant::now();
        let mut values = vec![None; self.team.len()];
        let mut timeout = self.timeout;
        let mut slice = Duration::ZERO;
        let mut gather = || {
            self.bootstrap.put(&format!("{key}/{}", self.bootstrap.rank().0), value)?;
            loop {
                for (value, &member) in values.iter_mut().zip(self.team.members()).filter(|(value, _)| value.is_none())
                {
                    // Of very many that are missing not each one gets its look after the deadline.
                    if start.elapsed() > timeout + LOOK_EVERY {
                        break;
                    }
                    // The first that is missing is waited for; what the others have put is only looked at.
                    *value = self.bootstrap.get(&format!("{key}/{}", member.0), std::mem::take(&mut slice))?;
                    if value.as_deref().is_some_and(&fails) {
                        timeout = timeout.min(start.elapsed() + CONSEQUENCES);
                    }
                }
                let members = self.team.members().iter().copied().zip(&values);
                let missing: Vec<Rank> = members.filter(|(_, value)| value.is_none()).map(|(rank, _)| rank).collect();
                if missing.is_empty() {
                    return Ok(());
                }
                self.check(key, &missing, start.elapsed(), timeout)?;
                slice = LOOK_EVERY.min(timeout.saturating_sub(start.elapsed()));
            }
        };
        let end = gather();
        (values, end)
    }

    /// Whether there is still reason to wait for the ranks in `missing`.
    fn check(&self, key: &str, missing: &[Rank], waited: Duration, timeout: Duration) -> Result<(), CommError> {
        let late = waited >= timeout;
        let Some(transport) = self.transport else {
            return if late { Err(BootstrapError::missing(key, missing, waited).into()) } else { Ok(()) };
        };
        let reporter = self.bootstrap.rank();
        for &culprit in missing {
            let kind = transport.gone(culprit).or(late.then_some(FaultKind::Stalled));
            // It may have put its value before it went.
            if let Some(kind) = kind
                && self.bootstrap.get(&format!("{key}/{}", culprit.0), Duration::ZERO)?.is_none()
            {
                transport.report(Fault { culprit, kind, reporter });
                break;
            }
        }
        match transport.fault() {
            Some(fault) => {
                Err(CommError::Fault { what: format!("{key}: waited {waited:.1?} for {}", missing[0]), fault })
            }
            None => Ok(()),
        }
    }

    /// All-gathers results, so that a failure of one rank is an error on every rank instead of a wait without end. Of
    /// several failures the one is told that is not of another's going.
    pub(crate) fn results(&self, key: &str, result: Result<Vec<u8>, ControlError>) -> Result<Vec<Vec<u8>>, CommError> {
        let message = match &result {
            Ok(value) => [b"+", value.as_slice()].concat(),
            Err(error @ ControlError::PeerGone { peer, .. }) => {
                [b"~", &peer.0.to_le_bytes()[..], error.to_string().as_bytes()].concat()
            }
            Err(error) => format!("-{error}").into_bytes(),
        };
        let (values, end) = self.gather_until(key, &message, |message| !message.starts_with(b"+"));
        let members = || self.team.members().iter().zip(&values).filter_map(|(&rank, v)| Some((rank, v.as_ref()?)));
        if let Some((peer, reason)) = members().find_map(|(peer, value)| Some((peer, value.strip_prefix(b"-")?))) {
            let reason = String::from_utf8_lossy(reason).into_owned();
            return Err(CommError::Peer { what: key.to_owned(), peer, reason });
        }
        let gone = members().find_map(|(peer, value)| Some((peer, value.strip_prefix(b"~")?.split_first_chunk()?)));
        if let Some((peer, (culprit, reason))) = gone {
            let reason = String::from_utf8_lossy(reason).into_owned();
            let Some(transport) = self.transport else {
                return Err(CommError::Peer { what: key.to_owned(), peer, reason });
            };
            let culprit = Rank(u32::from_le_bytes(*culprit));
            let kind = transport.gone(culprit).unwrap_or(FaultKind::Died);
            let fault = transport.report(Fault { culprit, kind, reporter: peer });
            return Err(CommError::Fault { what: format!("{key}: {peer}: {reason}"), fault });
        }
        end?;
        // Empty is what no rank sends; what it would have meant fails where it is read.
        let strip = |message: Vec<u8>| message.get(1..).map_or_else(Vec::new, <[u8]>::to_vec);
        Ok(values.into_iter().flatten().map(strip).collect())
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
    use std::collections::BTreeMap;
    use std::sync::Mutex;
    use std::time::Duration;

    use super::{Exchange, first_difference};
    use crate::{Bootstrap, BootstrapError, CommError, Node, Rank, Team};

    /// What others have put, and nothing that is waited for.
    struct Board(Mutex<BTreeMap<String, Vec<u8>>>);

    impl Bootstrap for Board {
        fn rank(&self) -> Rank {
            Rank(0)
        }

        fn ranks(&self) -> usize {
            4
        }

        fn node(&self) -> Node {
            Node::new("here")
        }

        fn put(&self, key: &str, value: &[u8]) -> Result<(), BootstrapError> {
            self.0.lock().unwrap().insert(key.to_owned(), value.to_owned());
            Ok(())
        }

        fn get(&self, key: &str, _: Duration) -> Result<Option<Vec<u8>>, BootstrapError> {
            Ok(self.0.lock().unwrap().get(key).cloned())
        }
    }

    #[test]
    fn a_failure_is_told_of_whose_it_is_while_others_are_missing() {
        let board = Board(Mutex::new([("k/2".to_owned(), b"-no luck".to_vec())].into()));
        let team = Team::world(4);
        let exchange = Exchange { bootstrap: &board, transport: None, team: &team, timeout: Duration::ZERO };
        let Err(CommError::Peer { peer, reason, .. }) = exchange.results("k", Ok(Vec::new())) else { panic!() };
        assert_eq!((peer, reason.as_str()), (Rank(2), "no luck"));
        let error = exchange.all_gather("other", b"").unwrap_err().to_string();
        assert!(error.contains("missing ranks 1–3"), "{error}");
    }

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
