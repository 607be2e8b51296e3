//! Plans: [`Plan`], a compiled kernel with its geometry resolved.

use std::any::type_name;
use std::marker::PhantomData;

use crate::calls::FunctionHandle;
use crate::{Attribute, CallError, Grid, Module, PlanError, Stream};

/// Whether the blocks of a launch wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// They do not: any number of blocks.
    Any,
    /// They do: all must fit on an otherwise idle device at once; more is refused.
    Together,
    /// They do, and any number does the work: more than fit are cut to what does.
    Clamped,
}

/// A kernel that is ready: compiled, loaded, its geometry checked. Launched many times; a launch allocates nothing.
///
/// `A` is the kernel's argument, a `#[repr(C)]` struct with the layout of the C++ one.
#[derive(Debug)]
pub struct Plan<A> {
    module: Module,
    function: FunctionHandle,
    grid: Grid,
    resident: u32,
    argument: PhantomData<fn(&A)>,
}

impl<A: Copy> Plan<A> {
    /// Looks the kernel up, and checks argument and geometry.
    ///
    /// # Errors
    /// [`PlanError`]: no such kernel, another argument, a geometry that is none or cannot be resident.
    pub fn new(module: &Module, kernel: &str, grid: Grid, residency: Residency) -> Result<Self, PlanError> {
        let device = module.device();
        let calls = device.gpu().calls();
        let (function, kernel_bytes) = module.function(kernel)?;
        if let Some(kernel_bytes) = kernel_bytes.filter(|bytes| *bytes != size_of::<A>()) {
            return Err(PlanError::Argument {
                kernel: kernel.to_owned(),
                kernel_bytes,
                given: type_name::<A>(),
                given_bytes: size_of::<A>(),
            });
        }
        let max_threads = device.attribute(Attribute::MaxThreads)?.unsigned_abs();
        let Grid { blocks, threads, shared_bytes } = grid;
        if blocks == 0 || threads == 0 || threads > max_threads || !threads.is_multiple_of(device.wave()) {
            return Err(PlanError::Geometry {
                kernel: kernel.to_owned(),
                blocks,
                threads,
                wave: device.wave(),
                max_threads,
            });
        }
        let mut grid = grid;
        // SAFETY: a kernel of the module, which the plan holds.
        let resident = unsafe {
            if shared_bytes > 0 {
                calls.allow_shared_bytes(function, shared_bytes)?;
            }
            let per_multiprocessor = calls.resident_blocks(device.ordinal(), function, grid)?;
            let resident = per_multiprocessor.saturating_mul(device.multiprocessors());
            let clamps = residency == Residency::Clamped && resident > 0;
            // A block that does not fit at all is refused here, and not at the first launch.
            let wanted = if residency == Residency::Any { 1 } else { blocks };
            if wanted > resident && !clamps {
                return Err(PlanError::NotResident {
                    kernel: kernel.to_owned(),
                    blocks,
                    threads,
                    shared_bytes,
                    resident,
                    per_multiprocessor,
                    multiprocessors: device.multiprocessors(),
                });
            }
            if clamps {
                grid.blocks = blocks.min(resident);
            }
            resident
        };
        Ok(Self { module: module.clone(), function, grid, resident, argument: PhantomData })
    }

    /// Blocks of it that an otherwise idle device holds at once.
    #[must_use]
    pub fn resident(&self) -> u32 {
        self.resident
    }

    /// What it is launched with; fewer blocks than were asked for if they were clamped.
    #[must_use]
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// The module that it is a kernel of.
    #[must_use]
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// Launches it. The argument is copied before the call returns, also into a graph that is being captured.
    ///
    /// # Errors
    /// [`CallError::Unsupported`] for a stream of another device, and those of the call. What goes wrong in the kernel is
    /// told by the next call that waits for it.
    ///
    /// # Safety
    /// The kernel's contract holds for the argument: each address is mapped for
    /// the device, as far as the kernel reaches, until it has ended. In a graph: at each launch of that.
    pub unsafe fn launch(&self, stream: &Stream, argument: &A) -> Result<(), CallError> {
        let device = self.module.device();
        if stream.device().ordinal() != device.ordinal() {
            return Err(CallError::Unsupported {
                backend: device.gpu().backend(),
                what: format!(
                    "launch a kernel of device {} on a stream of device {}",
                    device.ordinal(),
                    stream.device().ordinal()
                ),
                reason: "a stream takes the kernels of its own device".to_owned(),
            });
        }
        let calls = device.gpu().calls();
        // SAFETY: own function; the caller's promise for the argument.
        unsafe { calls.launch(self.function, self.grid, std::ptr::from_ref(argument).cast(), stream.handle()) }
    }
}
