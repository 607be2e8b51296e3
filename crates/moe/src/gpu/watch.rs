//! What host and kernels tell each other while kernels run: [`GpuMoe::check`], [`GpuMoe::finish`], [`GpuMoe::abort`], and
//! behind them [`Watch`].
//!
//! **Model.** A kernel knows words, and not why one does not come. The host knows who died, and ends a kernel by its abort
//! word only. Where the ranks have a communicator, the two are joined: a fault of the communicator raises the abort word,
//! and what a kernel recorded becomes a fault of the communicator, so that all ranks name the same culprit.
//!
//! **Invariants.** The first error is sticky. Once the host knows of it, nothing is launched, running kernels end, and a
//! graph that is launched in spite of it ends at once, because the abort is copied to where every kernel looks first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use campanile_core::{CommError, Communicator, Fault, FaultKind};
use campanile_gpu::{Address, CallError, Device, Stream};

use super::{Failure, FailureKind, GpuMoe, GpuMoeError};

/// Longest wait for a stream between two looks at the communicator.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long aborted kernels may take to end: one poll of a word, behind whatever else the stream holds.
const END: Duration = Duration::from_secs(10);

/// The communicator of a rank, and the way by which its fault reaches kernels.
#[derive(Debug)]
pub(super) struct Watch {
    comm: Arc<Communicator>,
    /// Takes an abort to the device, past kernels that run.
    stream: Stream,
}

impl Watch {
    pub(super) fn new(comm: &Arc<Communicator>, device: &Device) -> Result<Self, CallError> {
        Ok(Self { comm: Arc::clone(comm), stream: device.stream()? })
    }

    /// The error that the communicator has, or that another rank has recorded. A few loads while there is none.
    fn known(&self) -> Option<CommError> {
        if let Some(first) = self.comm.error() {
            return Some(CommError::Failed(Box::new(first)));
        }
        self.comm.transport().fault().map(|fault| self.fail(fault, "moe".to_owned()))
    }

    /// A death that nobody has recorded yet. A rank that has left in good order may have done its part; if it has not, the
    /// deadline of the kernel that waits for it says so.
    fn death(&self, active: &[bool]) -> Option<CommError> {
        let transport = self.comm.transport();
        let reporter = self.comm.team().member(self.comm.rank());
        let members = self.comm.team().members().iter().zip(active).filter(|(_, active)| **active);
        let (&culprit, _) =
            members.into_iter().find(|(member, _)| transport.gone(**member) == Some(FaultKind::Died))?;
        let fault = transport.report(Fault { culprit, kind: FaultKind::Died, reporter });
        Some(self.fail(fault, "moe".to_owned()))
    }

    /// Makes what a kernel recorded the communicator's error.
    fn report(&self, failure: &Failure) -> CommError {
        let (team, transport) = (self.comm.team(), self.comm.transport());
        if failure.kind != FailureKind::Timeout {
            return self.comm.fail(CommError::Misuse { what: "moe", reason: failure.to_string() });
        }
        let culprit = team.member(failure.peer);
        let kind = transport.gone(culprit).unwrap_or(FaultKind::Stalled);
        let fault = transport.report(Fault { culprit, kind, reporter: team.member(self.comm.rank()) });
        self.fail(fault, format!("moe: {failure}"))
    }

    fn fail(&self, fault: Fault, what: String) -> CommError {
        self.comm.fail(CommError::Fault { what, fault })
    }
}

impl GpuMoe {
    /// What the kernels have recorded so far, complete once the stream is done, and what the communicator knows. Who waits
    /// for a stream by other means than [`finish`](Self::finish) calls this meanwhile: it ends kernels that wait for a rank
    /// that is gone.
    ///
    /// # Errors
    /// [`GpuMoeError::Failed`], or over a communicator [`GpuMoeError::Comm`], which names the culprit; after the first
    /// failure until a new generation begins.
    pub fn check(&self) -> Result<(), GpuMoeError> {
        let failure = self.state.failure();
        let Some(watch) = &self.watch else {
            let rank = self.plan.rank;
            return failure.map_or(Ok(()), |failure| Err(GpuMoeError::Failed { rank, failure }));
        };
        // What the communicator knows comes first: a death is the cause of the words that do not come.
        let error = watch
            .known()
            .or_else(|| watch.death(&self.active))
            .or_else(|| failure.map(|failure| watch.report(&failure)));
        error.map_or(Ok(()), |error| {
            self.raise();
            Err(error.into())
        })
    }

    /// Waits until the stream is done, then reports what the kernels recorded. A rank that dies, stalls or aborts meanwhile
    /// ends the kernels, and with them the wait.
    ///
    /// # Errors
    /// As [`check`](Self::check); a stream that is not done within `patience`.
    pub fn finish(&self, stream: &Stream, patience: Duration) -> Result<(), GpuMoeError> {
        let start = Instant::now();
        loop {
            let left = patience.saturating_sub(start.elapsed());
            match stream.synchronize(left.min(LOOK_EVERY)) {
                Ok(()) => return self.check(),
                Err(CallError::Timeout { .. }) if left > LOOK_EVERY => {}
                Err(CallError::Timeout { what, .. }) => {
                    self.check()?;
                    return Err(CallError::Timeout { what, milliseconds: patience.as_millis() }.into());
                }
                Err(error) => return Err(error.into()),
            }
            if let Err(error) = self.check() {
                // The caller's memory is its own again only when no kernel uses it.
                stream.synchronize(END)?;
                return Err(error);
            }
        }
    }

    /// Frees running kernels of this rank: what waits gives up. The operation is over, until it [goes on](Self::go_on); a
    /// communicator is [aborted](Communicator::abort) with it, and so are the operations of the other ranks.
    pub fn abort(&self) {
        if let Some(watch) = &self.watch {
            watch.comm.abort();
        }
        self.raise();
    }

    /// Refuses a launch after an error that the host knows of.
    pub(super) fn check_launch(&self) -> Result<(), GpuMoeError> {
        match self.watch.as_ref().and_then(Watch::known) {
            None => Ok(()),
            Some(error) => {
                self.raise();
                Err(error.into())
            }
        }
    }

    /// Raises the abort word.
    pub(super) fn raise(&self) {
        // SAFETY: an aligned word, alive as long as `self`, to which all accesses are atomic.
        let raised = unsafe { (*self.state.abort().cast::<AtomicU32>()).swap(1, Ordering::AcqRel) };
        let (0, Some(watch)) = (raised, &self.watch) else { return };
        let (failed, abort): (Address, _) = (self.state.address(&self.state.failed), self.state.abort_address());
        // SAFETY: words of this rank's state, which outlives the wait. An error leaves a device that does nothing any more.
        let _ = unsafe { watch.stream.copy(failed, abort, 4) }.and_then(|()| watch.stream.synchronize(END));
    }
}
