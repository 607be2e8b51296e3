//! The compiled kernels of a rank: [`Kernels`].

use campanile_gpu::{Cache, Compile, Device, GeometryTable, Module, Pins, Plan, Residency, Source};

use super::GpuMoeError;
use super::arguments::{Combine, Dispatch, Release, Scale};
use crate::{DType, MoeConfig};

/// Which geometry each operation has on each target.
const GEOMETRY: &str = include_str!("geometry.toml");

/// Blocks of a dispatch that take in what comes. What they do is wait and count rows by expert, a thread a row: as many
/// as keep that short, and few, since they hold places on the device that blocks which still have to send may need.
pub(super) const RECEIVERS: u32 = 32;

/// A kernel of `kernels/moe/`.
fn source(name: &str) -> Source {
    let text = match name {
        "dispatch" => include_str!("../../../../kernels/moe/dispatch.cpp"),
        "combine" => include_str!("../../../../kernels/moe/combine.cpp"),
        "release" => include_str!("../../../../kernels/moe/release.cpp"),
        _ => include_str!("../../../../kernels/moe/scale.cpp"),
    };
    Source::new(format!("moe/{name}.cpp"), text)
        .with_header("moe/layout.h", include_str!("../../../../kernels/moe/layout.h"))
        .with_header("moe/number.h", include_str!("../../../../kernels/moe/number.h"))
        .with_header("moe/quantize.h", include_str!("../../../../kernels/moe/quantize.h"))
}

/// The number of a type in `moe/number.h`.
pub(super) fn type_code(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::F8E4M3 => 3,
        DType::F8E4M3FNUZ => 4,
        DType::F4E2M1 => 5,
    }
}

/// Plans of all kernels.
#[derive(Debug)]
pub(super) struct Kernels {
    pub(super) dispatch: Plan<Dispatch>,
    pub(super) combine: Plan<Combine>,
    pub(super) release: Plan<Release>,
    pub(super) scale: Plan<Scale>,
}

impl Kernels {
    /// Compiles and loads them; `pins` are those of dispatch and combine.
    pub(super) fn new(
        device: &Device,
        config: &MoeConfig,
        [dispatch, combine]: [Pins; 2],
        cache: &Cache,
    ) -> Result<Self, GpuMoeError> {
        let table = GeometryTable::parse(GEOMETRY)?;
        let target = device.target()?;
        let load = |name: &str, compile: Compile| -> Result<Module, GpuMoeError> {
            Ok(device.compile(&source(name), &compile, cache)?)
        };
        let grid = |name: &str, pins| table.find(name, &target, config.capacity as u64, pins);
        let number = |dtype| format!("static_cast<Type>({})", type_code(dtype));
        let plain = Compile::default;
        let combine_module = load("combine", plain().define("CAMPANILE_MOE_TYPE", number(config.combine_dtype)))?;
        let quantizing = match config.quantize {
            true => plain().define("CAMPANILE_MOE_QUANTIZE", number(config.dtype)),
            false => plain(),
        };
        Ok(Self {
            // Roles are taken by tickets, so that no block waits for one that has not begun: any number of them does.
            dispatch: Plan::new(
                &load("dispatch", quantizing)?,
                "moe_dispatch",
                grid("dispatch", dispatch)?,
                Residency::Any,
            )?,
            combine: Plan::new(&combine_module, "moe_combine", grid("combine", combine)?, Residency::Any)?,
            release: Plan::new(
                &load("release", plain())?,
                "moe_release",
                grid("release", Pins::default())?,
                Residency::Together,
            )?,
            scale: Plan::new(&load("scale", plain())?, "moe_scale", grid("scale", Pins::default())?, Residency::Any)?,
        })
    }
}
