//! Opened transports: candidates that a communicator can be made on.

use std::sync::Arc;

use super::agreement::Able;
use super::{Candidate, Peer, Policy, rank};
use crate::{MemoryKind, OpKind, OpenOptions, Probed, Shutdown, Transport, TransportInfo, TransportPlugin};

/// The size at which transports are compared, in bytes: a few rows of a model's hidden state, where neither latency nor
/// bandwidth alone decides.
const COMPARED: u64 = 64 << 10;

/// Memory of either kind will do for a transport to be worth having.
const MEMORIES: [MemoryKind; 2] = [MemoryKind::Host, MemoryKind::Device(0)];

/// A transport that was opened, or could not be.
pub struct Opened {
    name: String,
    transport: Result<Arc<dyn Transport>, String>,
    version: String,
    candidate: Candidate,
}

impl Opened {
    /// Opens `device` of a transport, [that of this rank](Probed::of_rank) if it is empty, and asks it about all peers.
    pub fn open(plugin: &dyn TransportPlugin, device: &str, options: OpenOptions, peers: &[Peer]) -> Self {
        let TransportInfo { name, version, .. } = plugin.info();
        let devices = plugin.probe();
        let lower = peers.iter().filter(|peer| peer.rank < options.rank && peer.node == options.node);
        let device = if device.is_empty() { Probed::of_rank(&devices, lower.count()) } else { Some(device) };
        let transport = match device {
            Some(device) => plugin.open(device, options).map_err(|error| error.to_string()),
            None => {
                let reason = |probed: &Probed| match &probed.usable {
                    Ok(_) => None,
                    Err(reason) => Some(format!("{}: {reason}", probed.device)),
                };
                let reasons: Vec<_> = devices.iter().filter_map(reason).collect();
                Err(match reasons.as_slice() {
                    [] => "it has no device".to_owned(),
                    reasons => format!("it has no usable device: {}", reasons.join("; ")),
                })
            }
        };
        let candidate = match &transport {
            Ok(transport) => {
                let reach = |peer: &Peer| transport.reach(peer.rank, &peer.node);
                Candidate::opened(name, peers, &MEMORIES, reach, |class, memory, op| transport.caps(class, memory, op))
            }
            Err(reason) => Candidate::unusable(name, reason),
        };
        let (name, version) = (name.to_owned(), version.to_owned());
        Self { name, version, transport, candidate: candidate.with_devices(devices) }
    }

    /// One that is not there.
    pub(crate) fn missing(name: &str, reason: String) -> Self {
        let candidate = Candidate::unusable(name, &reason);
        Self { name: name.to_owned(), version: String::new(), transport: Err(reason), candidate }
    }

    /// Name of the transport.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it says of itself.
    pub fn candidate(&self) -> &Candidate {
        &self.candidate
    }

    /// What this rank tells the others: its address and the modelled time of a 64 KiB put with a signal to every peer, or
    /// why it cannot reach them all.
    pub(crate) fn offer(&self, peers: &[Peer], path: crate::Path) -> Result<Able, String> {
        let transport = self.transport.as_ref().map_err(Clone::clone)?;
        let policy = Policy::new(super::Preference::AUTO, path);
        let cost_to = |peer: &Peer| {
            let rows = MEMORIES.map(|memory| {
                rank(std::slice::from_ref(&self.candidate), peer, memory, OpKind::PutSignal, COMPARED, &policy)
            });
            let times = rows.iter().filter_map(|row| Some(row.chosen()?.cost.time_ns(COMPARED)));
            let unreachable = || format!("{} cannot be reached: {}", peer.rank, rows[0].reasons());
            times.min_by(f64::total_cmp).ok_or_else(unreachable)
        };
        let cost_ns = peers.iter().map(cost_to).sum::<Result<f64, String>>()?;
        Ok(Able { cost_ns, version: self.version.clone(), address: transport.address() })
    }

    /// The transport.
    pub(crate) fn into_transport(mut self) -> Result<Arc<dyn Transport>, String> {
        std::mem::replace(&mut self.transport, Err("it was taken".to_owned()))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // Nobody connected to it, so nothing can be in the way.
        if let Ok(transport) = &self.transport
            && let Err(error) = transport.shutdown(Shutdown::Drain)
        {
            tracing::warn!(transport = self.name, %error, "a transport that was not chosen did not shut down cleanly");
        }
    }
}
