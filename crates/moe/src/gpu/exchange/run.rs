//! One rank's part of a whole exchange on a device.

use std::sync::Arc;

use campanile_core::Communicator;
use campanile_gpu::{Cache, Device};
use campanile_host::clock::now_ns;

use super::{Arranged, DeviceProblem};
use crate::exchange::{ExchangeOptions, Exchanged, Layout, Times, config};
use crate::gpu::{DeviceOutputs, GpuMoe, GpuMoeError, GpuMoeOptions, Index};
use crate::protocol::Set;
use crate::{Problem, Received};

const SET: Set = Set(0);

/// Waits of the host for a stream, in deadlines of the kernels on it, which have fewer waits than that.
const PATIENCE: u32 = 4;

/// Rows that a group of an expert-major layout starts at a multiple of, as on the host.
const ALIGNMENT: usize = 16;

/// Runs this rank's part of `problem`, which is valid and the same on every rank, on `device`, as `options` say; its kernels
/// as `gpu` says. The result is that of [`exchange::run`](crate::exchange::run) on the host, bit for bit. Collective.
///
/// # Errors
/// [`GpuMoeError`] of the operation.
pub fn run(
    comm: &Arc<Communicator>,
    device: &Device,
    problem: &Problem,
    options: &ExchangeOptions,
    gpu: &GpuMoeOptions,
    cache: &Cache,
) -> Result<Exchanged, GpuMoeError> {
    let moe = GpuMoe::new(comm, device, config(problem, options), gpu, cache)?;
    let part = DeviceProblem::new(&moe, problem, Index::I32, 0)?;
    let arranged = match options.layout {
        Layout::Rows => None,
        layout => Some(Arranged::new(&moe, layout, ALIGNMENT, true, 0, cache)?),
    };
    let (stream, patience) = (&part.stream, PATIENCE * comm.timeout());
    // Ranks may share a device, and what allocates there waits for a kernel that waits for this rank.
    comm.gather("moe tokens", &[])?;

    let mut times = Times::default();
    times.dispatch[0] = now_ns();
    // SAFETY: the part of this rank, alive until its stream is done, which is waited for here and below.
    unsafe { moe.dispatch(SET, stream, &part.tokens)? };
    moe.finish(stream, patience)?;
    times.dispatch[1] = now_ns();

    let received = if options.keep_received { moe.received(SET, stream)? } else { Received::default() };
    let outputs = match &arranged {
        // SAFETY: as above; the factors are those of the part.
        None => unsafe {
            moe.scale(SET, stream, part.factors)?;
            DeviceOutputs::InPlace
        },
        // SAFETY: as above; the memories of the layout have room for the most rows that can come.
        Some(arranged) => unsafe {
            arranged.arrange_and_scale(&moe, SET, stream, part.factors)?;
            arranged.outputs()
        },
    };
    moe.finish(stream, patience)?;

    times.combine[0] = now_ns();
    // SAFETY: as above.
    unsafe { moe.combine_from(SET, stream, outputs, &part.out)? };
    moe.finish(stream, patience)?;
    times.combine[1] = now_ns();

    let mut output = part.output(problem)?;
    output.received = received;
    Ok(Exchanged { output, rows_from: moe.read_rows_from(SET, stream)?, combine: moe.combine_by(), times })
}
