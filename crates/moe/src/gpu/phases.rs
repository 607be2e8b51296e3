//! Dispatch and combine in two launches each, send and receive, so that other work of the stream, or another set's phase,
//! fits in between. A rank may split what another does in one launch: the words are the same.
//!
//! A phase that is not the round's next one is [`Misuse`](super::FailureKind::Misuse), recorded by the kernel: a receive
//! without its send, a phase twice, a dispatch on a set whose round is open.

use campanile_gpu::Stream;

use super::{DeviceOut, DeviceTokens, GpuMoe, GpuMoeError, arguments};
use crate::protocol::{Ready, Set};
use arguments::{RECEIVE, SEND};

impl GpuMoe {
    /// Sends this rank's tokens on `set`: the first half of a [`dispatch`](Self::dispatch). When it is done, the tokens are
    /// the caller's again.
    ///
    /// # Errors
    /// As [`dispatch`](Self::dispatch).
    ///
    /// # Safety
    /// As [`dispatch`](Self::dispatch).
    pub unsafe fn dispatch_send(&self, set: Set, stream: &Stream, tokens: &DeviceTokens) -> Result<(), GpuMoeError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_dispatch(set, stream, tokens, SEND) }
    }

    /// Takes in what the others send on `set`: the second half of a dispatch.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Safety
    /// The stream is of this rank's device. It comes behind the send, on the same stream or by an event.
    pub unsafe fn dispatch_receive(&self, set: Set, stream: &Stream) -> Result<(), GpuMoeError> {
        let argument = arguments::Dispatch {
            common: self.common(set)?,
            expert_counts: self.expert_counts(set),
            local_experts: self.plan.local_experts() as u32,
            phases: RECEIVE,
            receivers: self.receivers(),
            ..arguments::Dispatch::default()
        };
        // SAFETY: own memory.
        unsafe { self.kernels.dispatch.launch(stream, &argument)? };
        Ok(())
    }

    /// Gives the results in [`outputs`](Self::outputs) back: the first half of a [`combine`](Self::combine). The rows of the
    /// round are no longer this rank's to read, nor the outputs to write.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Safety
    /// The stream is of this rank's device. What wrote the results came before it.
    pub unsafe fn combine_send(&self, set: Set, stream: &Stream) -> Result<(), GpuMoeError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_ready(set, stream, Ready::Pull) }
    }

    /// Sums the results for this rank's own tokens: the second half of a combine. It ends the round.
    ///
    /// # Errors
    /// As [`combine`](Self::combine).
    ///
    /// # Safety
    /// As [`combine`](Self::combine). It comes behind the send, on the same stream or by an event.
    pub unsafe fn combine_receive(&self, set: Set, stream: &Stream, out: &DeviceOut) -> Result<(), GpuMoeError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_combine(set, stream, out, RECEIVE) }
    }
}
