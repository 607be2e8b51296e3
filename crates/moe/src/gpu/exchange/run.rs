//! One rank's part of a whole exchange on a device.

use std::sync::Arc;

use campanile_core::{Communicator, MoeCombine};
use campanile_gpu::{Cache, Device};
use campanile_host::clock::now_ns;

use super::DeviceProblem;
use crate::Problem;
use crate::exchange::{ExchangeOptions, Exchanged, Times, config};
use crate::gpu::{GpuMoe, GpuMoeError, GpuMoeOptions, Index};
use crate::protocol::Set;

const SET: Set = Set(0);

/// Waits of the host for a stream, in deadlines of the kernels on it, which have fewer waits than that.
const PATIENCE: u32 = 4;

/// Runs this rank's part of `problem`, which is valid and the same on every rank, on `device`. Keeps what dispatch brought if
/// told to. The result is that of [`exchange::run`](crate::exchange::run) on the host, bit for bit. Collective.
///
/// # Errors
/// [`GpuMoeError`] of the operation.
pub fn run(
    comm: &Arc<Communicator>,
    device: &Device,
    problem: &Problem,
    options: &GpuMoeOptions,
    keep_received: bool,
    cache: &Cache,
) -> Result<Exchanged, GpuMoeError> {
    let moe = GpuMoe::new(comm, device, config(problem, &ExchangeOptions::default()), options, cache)?;
    let part = DeviceProblem::new(&moe, problem, Index::I32, 0)?;
    let patience = PATIENCE * comm.timeout();

    let mut times = Times::default();
    times.dispatch[0] = now_ns();
    // SAFETY: the part of this rank, alive until its stream is done, which is waited for here and below.
    unsafe { moe.dispatch(SET, &part.stream, &part.tokens)? };
    moe.finish(&part.stream, patience)?;
    times.dispatch[1] = now_ns();

    let received = if keep_received { moe.received(SET, &part.stream)? } else { Default::default() };
    // SAFETY: as above; the factors are those of the part.
    unsafe { moe.scale(SET, &part.stream, part.factors)? };
    moe.finish(&part.stream, patience)?;

    times.combine[0] = now_ns();
    // SAFETY: as above.
    unsafe { moe.combine(SET, &part.stream, &part.out)? };
    moe.finish(&part.stream, patience)?;
    times.combine[1] = now_ns();

    let mut output = part.output(problem)?;
    output.received = received;
    Ok(Exchanged { output, rows_from: moe.read_rows_from(SET, &part.stream)?, combine: MoeCombine::Pull, times })
}
