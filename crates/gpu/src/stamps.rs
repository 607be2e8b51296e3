//! Times inside a graph: [`Stamps`].
//!
//! **Model.** A kernel of one thread writes the device's clock to a slot of memory; a graph captures it between others.
//! **Invariants.** A stamp waits for nothing on the host and allocates nothing. Clocks of two devices are never compared.

use std::time::Duration;

use crate::calls::Address;
use crate::{
    Cache, CallError, Coherence, Compile, CompileError, Device, DeviceMemory, Grid, Plan, PlanError, Residency, Source,
    Stream,
};

/// `StampArguments`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Argument {
    stamp: Address,
}

/// Points in time of a stream, on the clock of its device.
///
/// A stamp is a kernel of one thread, which a graph captures like any other. An [`Event`](crate::Event) that a graph records
/// would do too, but on H200 it adds about 4 µs to the graph, and a kernel that does next to nothing 0.7: what lies between
/// two stamps is their distance less that of two stamps with nothing in between, [`overhead`](Self::overhead).
///
/// ```
/// use campanile_gpu::{Cache, Emulation, Gpu, Settings, Stamps};
///
/// let gpu = Gpu::emulator(Emulation::default(), &Settings::default())?;
/// # if !campanile_gpu::has_compiler(&gpu) { return Ok(()); }
/// let device = &gpu.devices()?[0];
/// let stamps = Stamps::new(device, 2, &Cache::none())?;
/// let stream = device.stream()?;
/// let graph = stream.capture(|stream| (0..2).try_for_each(|number| stamps.stamp(stream, number)))?;
/// // SAFETY: the stamps live until they are read.
/// unsafe { graph.launch(&stream)? };
/// assert_eq!(stamps.spans(&stream)?.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Stamps {
    plan: Plan<Argument>,
    memory: DeviceMemory,
    count: usize,
}

impl Stamps {
    /// `count` of them, numbered from 0.
    ///
    /// # Errors
    /// Those of the compiler and of the calls.
    pub fn new(device: &Device, count: usize, cache: &Cache) -> Result<Self, StampsError> {
        let source = Source::new("stamp.cpp", include_str!("../../../kernels/stamp.cpp"));
        let module = device.compile(&source, &Compile::default(), cache)?;
        let grid = Grid { blocks: 1, threads: device.wave(), shared_bytes: 0 };
        let plan = Plan::new(&module, "stamp", grid, Residency::Any)?;
        let memory = device.allocate(count.max(1) * 8, Coherence::Coarse)?;
        Ok(Self { plan, memory, count })
    }

    /// Takes stamp `number` once the stream's earlier work is done.
    ///
    /// # Errors
    /// [`CallError::Unsupported`] for a number that is none of them; those of the call.
    pub fn stamp(&self, stream: &Stream, number: usize) -> Result<(), CallError> {
        if number >= self.count {
            return Err(CallError::Unsupported {
                backend: self.plan.module().device().gpu().backend(),
                what: format!("stamp {number}"),
                reason: format!("there are {}, numbered from 0", self.count),
            });
        }
        // SAFETY: own memory, which has room for the number.
        unsafe { self.plan.launch(stream, &Argument { stamp: self.memory.address() + 8 * number as Address }) }
    }

    /// From each stamp to the next, in the order of their numbers; 0 where the later one was taken first. The stream's
    /// earlier work is waited for.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn spans(&self, stream: &Stream) -> Result<Vec<Duration>, CallError> {
        let mut bytes = vec![0; self.count * 8];
        stream.download(&self.memory, 0, &mut bytes)?;
        let stamps: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|stamp| u64::from_ne_bytes(*stamp)).collect();
        Ok(stamps.windows(2).map(|pair| Duration::from_nanos(pair[1].saturating_sub(pair[0]))).collect())
    }

    /// The median span between stamps of a graph that does nothing else.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn overhead(&self, stream: &Stream) -> Result<Duration, CallError> {
        let graph = stream.capture(|stream| (0..self.count).try_for_each(|number| self.stamp(stream, number)))?;
        let mut spans = Vec::new();
        for _ in 0..16 {
            // SAFETY: the stamps are read before this returns.
            unsafe { graph.launch(stream)? };
            spans.extend(self.spans(stream)?);
        }
        spans.sort_unstable();
        Ok(spans.get(spans.len() / 2).copied().unwrap_or_default())
    }
}

/// Stamps could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StampsError {
    /// A call.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The compiler.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The kernel.
    #[error(transparent)]
    Plan(#[from] PlanError),
}
