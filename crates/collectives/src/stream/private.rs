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
    CommError, Communicator, Completion, Fault, FaultKind, LocalAddress, Memory, Op, PostError, Queue, QueueError,
    QueueOptions, QueueTarget, Region, RemoteAddress, RemoteRegion,
};

/// The address spaces of all ranks of a team.
pub(super) struct Private {
    region: Region,
    /// By position, as queues; this rank's own are never used.
    remotes: Vec<RemoteRegion>,
    queues: Vec<Arc<dyn Queue>>,
}

impl Private {
    /// Whether this rank's transport reaches the private memory of every member.
    pub(super) fn is_offered(comm: &Communicator) -> bool {
        comm.team().members().iter().all(|&member| comm.transport().reaches_registered(member).is_ok())
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
        let imported: Result<(Vec<_>, Vec<_>), campanile_core::ControlError> =
            if blobs.iter().all(|blob| !blob.is_empty()) {
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
        let done = || {
            let ticket = queue.post(&[get]).map_err(Error::Post)?;
            queue.wait(ticket, Completion::Local, comm.timeout()).map_err(Error::Queue)
        };
        let ended = done();
        // The bytes are read before the fault is.
        fence(Ordering::SeqCst);
        let (transport, culprit) = (comm.transport(), comm.team().member(position));
        if let Err(error) = &ended
            && let Some(kind) = transport.gone(culprit)
        {
            transport.report(Fault { culprit, kind, reporter: comm.team().member(comm.rank()) });
            return Err(comm.fail(fault(comm, error.to_string(), kind, position)));
        }
        ended.map_err(|error| comm.fail(error.into()))?;
        match transport.fault() {
            Some(fault) => {
                let what = format!("a message of {culprit} may have been taken back while it was read");
                Err(comm.fail(CommError::Fault { what, fault }))
            }
            None => Ok(()),
        }
    }
}
