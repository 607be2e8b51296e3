//! Messages in private memory: read where they lie, by gets.
//!
//! Where a transport reaches what peers have registered, every rank registers its address space once
//! ([`Memory::ADDRESS_SPACE`]) and imports those of the others. A message then needs no ring: its source publishes its
//! address, readers get it straight into their own memory, and return the slot; the source waits for that before it gives
//! the memory back to its caller.
//!
//! # Why nothing wrong is returned
//!
//! A source that fails before all have read gives its memory back too early. It has recorded a fault by then, so a reader
//! that looks at the job's fault after its get either sees it, or has read what was meant.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use campanile_core::{
    CommError, Communicator, Completion, ControlError, Fault, LocalAddress, Memory, Op, Queue, QueueOptions,
    QueueTarget, Region, RemoteAddress, RemoteRegion,
};

/// Smallest message that is lent: below, the calls and the wait for the reader cost more than the copy that is saved.
const LEND_FROM: usize = 32 << 10;
/// Ranks of a team that lends. With more readers each of them pays the kernel what one write into the ring costs once.
const LENDING_RANKS: usize = 2;

/// Whether a message of `bytes`, one of every rank at a time, is better lent than sent.
///
/// The kernel copies slowly, a page at a time, and all of it after the message is complete, so a broadcast, whose ring is
/// written and read at the same time, gains nothing; ranks of an all-gather copy at the same time anyhow. Ring / lent,
/// µs, minima of interleaved calls of two ranks on a Zen 4 guest (see `distance`), all-gather, near and far: 16 KiB blocks
/// 4.2 / 4.1, 4.5 / 4.9; 32 KiB 8.4 / 5.4, 8.9 / 6.3; 128 KiB 29 / 14, 29 / 15; 512 KiB 101 / 58, 98 / 54; 2 MiB 404 /
/// 225, 438 / 301. Broadcast: 64 KiB 10 / 12, 11 / 36; 1 MiB 131 / 121, 134 / 388. All-gather of four ranks, far: 64 KiB 64
/// / 69, 256 KiB 181 / 182.
pub(super) fn pays(bytes: usize) -> bool {
    bytes >= LEND_FROM
}

/// The address spaces of all ranks of a team.
pub(super) struct Private {
    region: Region,
    /// By position, as queues; this rank's own are never used.
    remotes: Vec<RemoteRegion>,
    queues: Vec<Arc<dyn Queue>>,
}

impl Private {
    /// Whether the team is one that lends, and this rank's transport reaches the private memory of every member.
    pub(super) fn is_offered(comm: &Communicator) -> bool {
        comm.ranks() == LENDING_RANKS
            && comm.team().members().iter().all(|&member| comm.transport().reaches_registered(member).is_ok())
    }

    /// Registers, exports and imports; `None` on every rank if one of them could not. Collective.
    pub(super) fn new(comm: &Communicator, operation: &'static str) -> Result<Option<Self>, CommError> {
        let (transport, members) = (comm.transport(), comm.team().members());
        // SAFETY: the address space is there as long as the process; what is at an address is looked at when an operation
        // runs, and this module names only messages of calls that wait for it.
        let registered = unsafe { transport.register(Memory::ADDRESS_SPACE) }.wait(comm.timeout());
        let exported = registered.and_then(|region| Ok((transport.export(&region, members)?, region)));
        // An empty blob is none.
        let blobs = comm.gather(operation, exported.as_ref().map_or(&[][..], |(blob, _)| blob))?;
        let import = |(position, blob): (usize, &Vec<u8>)| {
            let remote = transport.import(comm.team().member(position), blob).wait(comm.timeout())?;
            Ok((remote, transport.queue(QueueTarget::Peer(comm.team().member(position)), QueueOptions::default())?))
        };
        let imported: Result<(Vec<_>, Vec<_>), ControlError> = if blobs.iter().all(|blob| !blob.is_empty()) {
            blobs.iter().enumerate().map(import).collect()
        } else {
            Ok((Vec::new(), Vec::new()))
        };
        let complete = imported.as_ref().is_ok_and(|(remotes, _)| remotes.len() == comm.ranks());
        let everywhere = comm.gather(operation, &[u8::from(complete)])?.iter().all(|complete| complete == &[1]);
        Ok(match (exported, imported) {
            (Ok((_, region)), Ok((remotes, queues))) if everywhere => Some(Self { region, remotes, queues }),
            _ => None,
        })
    }

    /// Gets what `to` has room for from `address` of the member at `position`.
    pub(super) fn get(
        &self,
        comm: &Communicator,
        position: usize,
        address: u64,
        to: &mut [u8],
    ) -> Result<(), CommError> {
        let get = Op::Get {
            source: RemoteAddress { region: self.remotes[position].key(), offset: address },
            target: LocalAddress { region: self.region.key(), offset: to.as_mut_ptr().expose_provenance() as u64 },
            bytes: to.len() as u64,
        };
        let queue = &*self.queues[position];
        let ended = queue
            .post(&[get])
            .map_err(CommError::from)
            .and_then(|ticket| queue.wait(ticket, Completion::Local, comm.timeout()).map_err(CommError::from));
        // The bytes are read before the fault is.
        fence(Ordering::SeqCst);
        let (transport, culprit) = (comm.transport(), comm.team().member(position));
        if let Err(error) = ended {
            return Err(comm.fail(match transport.gone(culprit) {
                Some(kind) => {
                    let fault = Fault { culprit, kind, reporter: comm.team().member(comm.rank()) };
                    CommError::Fault { what: error.to_string(), fault: transport.report(fault) }
                }
                None => error,
            }));
        }
        match transport.fault() {
            Some(fault) => {
                let what = format!("a message of {culprit} may have been taken back while it was read");
                Err(comm.fail(CommError::Fault { what, fault }))
            }
            None => Ok(()),
        }
    }
}
