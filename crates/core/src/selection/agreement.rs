//! Agreement: the ranks of a job choose one transport together.
//!
//! Each rank tells all others of each transport that it was asked to use its version, its address and what reaching every
//! peer costs, or why it cannot. All compute the same choice from the same offers: of those that every rank
//! offers, the first by preference, else the one with the least sum of costs, else the one that rank 0 names first.

use super::{Opened, Peer, Policy};
use crate::{CommError, Rank};

/// What one rank says of its transports.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Offer {
    /// Name of each, and what it can do. By preference.
    pub(crate) transports: Vec<(String, Result<Able, String>)>,
}

/// A transport that reaches every peer of a rank.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Able {
    /// What that costs, for comparison only.
    pub(crate) cost_ns: f64,
    /// Version of the backend: addresses and keys are its own affair.
    pub(crate) version: String,
    /// What peers need to connect to it.
    pub(crate) address: Vec<u8>,
}

/// What the ranks agreed on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Agreed {
    /// Name of the transport.
    pub(crate) transport: String,
    /// Its address on each rank.
    pub(crate) addresses: Vec<Vec<u8>>,
}

/// Why the ranks did not agree.
#[derive(Clone, Debug)]
pub(crate) enum Disagreement {
    /// No transport is offered by all; the reasons.
    NoTransport(String),
    /// Ranks have different versions of it, or sent what cannot be read.
    Error(CommError),
}

impl Offer {
    /// What this rank offers of what it opened: all that the policy allows, in its order.
    pub(crate) fn of(opened: &[Opened], peers: &[Peer], policy: &Policy) -> Self {
        let ordered = |it| Some((policy.order_of(Opened::name(it)).ok()?, it));
        let mut allowed: Vec<(usize, &Opened)> = opened.iter().filter_map(ordered).collect();
        allowed.sort_by_key(|(order, _)| *order);
        let offer = |(_, it): (usize, &Opened)| (it.name().to_owned(), it.offer(peers, policy.path));
        Self { transports: allowed.into_iter().map(offer).collect() }
    }

    /// As bytes: each text behind its length; an offer is `+`, cost, version and address, a reason stands behind `-`.
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut put = |field: &[u8]| {
            bytes.extend((field.len() as u64).to_le_bytes());
            bytes.extend(field);
        };
        for (name, able) in &self.transports {
            put(name.as_bytes());
            match able {
                Ok(Able { cost_ns, version, address }) => {
                    put(&[b"+", &cost_ns.to_le_bytes()[..]].concat());
                    put(version.as_bytes());
                    put(address);
                }
                Err(reason) => put(&[b"-", reason.as_bytes()].concat()),
            }
        }
        bytes
    }

    /// From bytes; `None` if they are no offer.
    pub(crate) fn unpack(mut bytes: &[u8]) -> Option<Self> {
        let mut offer = Self { transports: Vec::new() };
        while !bytes.is_empty() {
            let mut take = || {
                let (length, rest) = bytes.split_first_chunk()?;
                let (field, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
                bytes = rest;
                Some(field)
            };
            let text = |field: &[u8]| String::from_utf8(field.to_vec()).ok();
            let name = text(take()?)?;
            let able = match take()?.split_first()? {
                (b'+', cost) => {
                    let cost_ns = f64::from_le_bytes(cost.try_into().ok()?);
                    Ok(Able { cost_ns, version: text(take()?)?, address: take()?.to_vec() })
                }
                (b'-', reason) => Err(text(reason)?),
                _ => return None,
            };
            offer.transports.push((name, able));
        }
        Some(offer)
    }

    fn able(&self, transport: &str) -> Result<&Able, &str> {
        match self.transports.iter().find(|(name, _)| name == transport) {
            Some((_, able)) => able.as_ref().map_err(String::as_str),
            None => Err("it has no transport of that name"),
        }
    }
}

/// The choice that follows from the offers of all ranks, by rank. `ordered` if the order of names is one of preference.
pub(crate) fn agree(ordered: bool, own: Rank, offers: &[Vec<u8>]) -> Result<Agreed, Disagreement> {
    const WHAT: &str = "communicator";
    let unpacked = |(rank, bytes): (usize, &Vec<u8>)| {
        Offer::unpack(bytes).ok_or_else(|| {
            let reason = "it sent no offer of transports".to_owned();
            Disagreement::Error(CommError::Peer { what: WHAT.to_owned(), peer: Rank::new(rank), reason })
        })
    };
    let offers: Vec<Offer> = offers.iter().enumerate().map(unpacked).collect::<Result<_, _>>()?;
    let mut reasons = Vec::new();
    let mut best: Option<(f64, Agreed)> = None;
    for (name, _) in &offers[0].transports {
        let able: Vec<_> = offers.iter().map(|offer| offer.able(name)).collect();
        if let Some((rank, reason)) = able.iter().enumerate().find_map(|(rank, able)| Some((rank, able.err()?))) {
            reasons.push(format!("{name}: {}: {reason}", Rank::new(rank)));
            continue;
        }
        let able: Vec<&Able> = able.into_iter().flatten().collect();
        let cost = able.iter().map(|able| able.cost_ns).sum::<f64>();
        if best.as_ref().is_none_or(|(least, _)| !ordered && cost < *least) {
            let addresses = able.iter().map(|able| able.address.clone()).collect();
            best = Some((cost, Agreed { transport: name.clone(), addresses }));
        }
    }
    let Some((_, agreed)) = best else { return Err(Disagreement::NoTransport(reasons.join("; "))) };
    let versions: Vec<_> =
        offers.iter().flat_map(|offer| offer.able(&agreed.transport)).map(|able| &able.version).collect();
    match versions.iter().position(|version| *version != versions[own.index()]) {
        None => Ok(agreed),
        Some(rank) => Err(Disagreement::Error(CommError::Mismatch {
            what: WHAT.to_owned(),
            field: format!("version of transport {}", agreed.transport),
            given: versions[own.index()].clone(),
            theirs: versions[rank].clone(),
            peer: Rank::new(rank),
        })),
    }
}

/// The transport that a communicator over these peers would open if every rank were as this one.
///
/// # Errors
/// The reasons, if none of what was opened reaches all of them.
pub fn choose(opened: &[Opened], peers: &[Peer], policy: &Policy) -> Result<String, String> {
    let offer = Offer::of(opened, peers, policy).pack();
    match agree(!policy.transports.is_auto(), Rank(0), &[offer]) {
        Ok(agreed) => Ok(agreed.transport),
        Err(Disagreement::NoTransport(reasons)) => Err(reasons),
        Err(Disagreement::Error(error)) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(transports: &[(&str, Result<f64, &str>)]) -> Vec<u8> {
        let able =
            |cost: f64| Able { cost_ns: cost, version: "1".to_owned(), address: format!("at {cost}").into_bytes() };
        let transports =
            transports.iter().map(|(name, cost)| ((*name).to_owned(), cost.map(able).map_err(str::to_owned)));
        Offer { transports: transports.collect() }.pack()
    }

    fn chosen(ordered: bool, offers: &[Vec<u8>]) -> String {
        let all: Vec<_> = (0..offers.len()).map(|own| agree(ordered, Rank::new(own), offers).unwrap()).collect();
        assert!(all.iter().all(|agreed| *agreed == all[0]), "every rank comes to the same choice");
        all[0].transport.clone()
    }

    #[test]
    fn the_least_sum_of_costs_wins_and_ties_go_to_rank_0() {
        let one = offer(&[("a", Ok(10.0)), ("b", Ok(2.0))]);
        let other = offer(&[("b", Ok(3.0)), ("a", Ok(1.0))]);
        assert_eq!(chosen(false, &[one.clone(), other.clone()]), "b");
        assert_eq!(chosen(true, &[one.clone(), other.clone()]), "a");
        assert_eq!(chosen(false, &[one, offer(&[("a", Ok(1.0)), ("b", Ok(99.0))])]), "a");
        let equal = offer(&[("y", Ok(1.0)), ("x", Ok(1.0))]);
        assert_eq!(chosen(false, &[equal, offer(&[("x", Ok(1.0)), ("y", Ok(1.0))])]), "y");
    }

    #[test]
    fn what_one_rank_cannot_use_nobody_uses() {
        let all = offer(&[("a", Ok(1.0)), ("b", Ok(2.0))]);
        assert_eq!(chosen(true, &[all.clone(), offer(&[("a", Err("no device")), ("b", Ok(2.0))])]), "b");
        assert_eq!(chosen(true, &[all.clone(), offer(&[("b", Ok(2.0))])]), "b");
        let none = agree(true, Rank(0), &[all, offer(&[("a", Err("no device"))])]);
        let Err(Disagreement::NoTransport(reasons)) = none else { panic!("{none:?}") };
        assert_eq!(reasons, "a: rank 1: no device; b: rank 1: it has no transport of that name");
    }

    #[test]
    fn addresses_are_by_rank() {
        let offers = [offer(&[("a", Ok(1.0))]), offer(&[("a", Ok(2.0))])];
        let agreed = agree(true, Rank(1), &offers).unwrap();
        assert_eq!(agreed.addresses, [b"at 1", b"at 2"]);
    }

    #[test]
    fn ranks_with_different_versions_say_so() {
        let able = |version: &str| Able { cost_ns: 1.0, version: version.to_owned(), address: Vec::new() };
        let offers = ["1", "1", "2"].map(|it| Offer { transports: vec![("a".to_owned(), Ok(able(it)))] }.pack());
        let Err(Disagreement::Error(error)) = agree(true, Rank(0), &offers) else { panic!("it agreed") };
        assert_eq!(
            error.to_string(),
            "communicator: version of transport a is 1 here and 2 on rank 2; every rank must be given the same"
        );
    }

    #[test]
    fn what_is_no_offer_is_an_error() {
        let good = offer(&[("a", Ok(1.0)), ("b", Err("no"))]);
        assert_eq!(Offer::unpack(&good).map(|offer| offer.pack()), Some(good.clone()));
        let whole: Vec<_> = (0..good.len()).filter(|&end| Offer::unpack(&good[..end]).is_some()).collect();
        // The end of a transport is the end of a shorter offer; nothing else is, but nothing.
        assert_eq!(whole.len(), 2, "{whole:?}");
        assert_eq!(Offer::unpack(&[0xff; 64]), None);
        let error = agree(true, Rank(0), &[good, b"nonsense".to_vec()]);
        assert!(matches!(error, Err(Disagreement::Error(CommError::Peer { peer: Rank(1), .. }))), "{error:?}");
    }
}
