//! One table of GPU calls over CUDA, HIP and the CPU emulator; run-time compilation; launch plans.
//!
//! **Layers.** [`calls::Calls`] is the table: a trait with the calls that CUDA and HIP have in common, filled from
//! `libcuda` + NVRTC or `libamdhip64` + hipRTC, both loaded at run time, or by the emulator. [`Gpu`] opens one and
//! lists [`Device`]s; what a device makes ([`DeviceMemory`], [`VirtualMemory`], [`HostMemory`], [`Stream`], [`Event`],
//! [`Graph`], [`Module`]) owns its handle and gives it back when dropped.
//!
//! **Kernels** are one C++ source for all three (`kernels/portable.h`). A [`Source`] is compiled at run time for the
//! device at hand, through a [`Cache`] on disk; the emulator compiles it with the machine's C++ compiler and loads the
//! result, so that everything above the table is the same code. A [`Plan`] is a compiled kernel with its geometry
//! resolved and checked: launched many times, it allocates nothing.
//!
//! **Invariants.** A missing library, symbol, device or compiler is an error that says what was tried. After
//! construction nothing compiles, allocates or loads lazily. Errors carry the call, its arguments, the code and the
//! library's text.
//!
//! ```
//! use campanile_gpu::{Backend, Cache, Coherence, Compile, Emulation, Gpu, Grid, Plan, Residency, Settings, Source};
//!
//! #[repr(C)]
//! #[derive(Clone, Copy)]
//! struct Arguments { words: u64 }
//!
//! let gpu = Gpu::emulator(Emulation::default(), &Settings::default())?;
//! let device = gpu.device(0)?;
//! let source = Source::new("squares.cpp", r#"
//!     #include "portable.h"
//!     using namespace campanile;
//!     struct Arguments { u32* words; };
//!     CAMPANILE_KERNEL(squares, 256, Arguments, a) { u64 i = grid_thread_index(); a.words[i] = i * i; }
//! "#);
//! # if !campanile_gpu::has_compiler(&gpu) { return Ok(()); }
//! let module = device.compile(&source, &Compile::default(), &Cache::none())?;
//! let grid = Grid { blocks: 2, threads: 64, shared_bytes: 0 };
//! let plan = Plan::<Arguments>::new(&module, "squares", grid, Residency::Any)?;
//!
//! let stream = device.stream()?;
//! let words = device.allocate(4 * 128, Coherence::Coarse)?;
//! // SAFETY: the kernel writes 128 words, which live until the download has waited for them.
//! unsafe { plan.launch(&stream, &Arguments { words: words.address() })? };
//! let mut bytes = [0; 4 * 128];
//! stream.download(&words, 0, &mut bytes)?;
//! assert_eq!(bytes[4 * 11..][..4], 121u32.to_ne_bytes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cache;
pub mod calls;
mod communicator;
mod compile;
mod device;
mod emulator;
mod error;
mod event;
mod geometry;
mod gpu;
mod graph;
mod ipc;
mod library;
pub mod link;
mod memory;
mod module;
mod plan;
mod settings;
mod source;
mod stamps;
mod stream;
mod vendor;
pub mod view;

pub use cache::Cache;
pub use calls::{Address, Attribute, Grid};
pub use communicator::{DeviceCommunicator, DeviceCommunicatorError, DeviceFailure, FailureKind, WindowPart};
pub use compile::{Compile, CrossCompiler, has_compiler};
pub use device::Device;
pub use emulator::Emulation;
pub use error::{CallError, CompileError, LoadError, PlanError};
pub use event::Event;
pub use geometry::{GeometryTable, Pins};
pub use gpu::{Backend, Gpu};
pub use graph::Graph;
pub use ipc::{IpcHandle, IpcMemory};
pub use memory::{Coherence, DeviceMemory, HostMemory, Memory, VirtualMemory};
pub use module::Module;
pub use plan::{Plan, Residency};
pub use settings::Settings;
pub use source::Source;
pub use stamps::{Stamps, StampsError};
pub use stream::Stream;
