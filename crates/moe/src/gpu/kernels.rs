//! The compiled kernels of a rank: [`Kernels`].

use campanile_gpu::{Cache, Compile, Device, GeometryTable, Grid, Module, Pins, Plan, Residency, Source};

use super::GpuMoeError;
use super::arguments::{Arrange, Combine, Dispatch, Outputs, Push, Release, Scale, ScaleArranged};
use super::schedule::Schedule;
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
        "dispatch_low_latency" => include_str!("../../../../kernels/moe/dispatch_low_latency.cpp"),
        "combine_low_latency" => include_str!("../../../../kernels/moe/combine_low_latency.cpp"),
        "release" => include_str!("../../../../kernels/moe/release.cpp"),
        "arrange" => include_str!("../../../../kernels/moe/arrange.cpp"),
        "push" => include_str!("../../../../kernels/moe/push.cpp"),
        "outputs" => include_str!("../../../../kernels/moe/outputs.cpp"),
        _ => include_str!("../../../../kernels/moe/scale.cpp"),
    };
    Source::new(format!("moe/{name}.cpp"), text)
        .with_header("moe/layout.h", include_str!("../../../../kernels/moe/layout.h"))
        .with_header("moe/dispatch.h", include_str!("../../../../kernels/moe/dispatch.h"))
        .with_header("moe/combine.h", include_str!("../../../../kernels/moe/combine.h"))
        .with_header("moe/number.h", include_str!("../../../../kernels/moe/number.h"))
        .with_header("moe/results.h", include_str!("../../../../kernels/moe/results.h"))
        .with_header("moe/sum.h", include_str!("../../../../kernels/moe/sum.h"))
        .with_header("moe/quantize.h", include_str!("../../../../kernels/moe/quantize.h"))
        .with_header("moe/weights.h", include_str!("../../../../kernels/moe/weights.h"))
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

/// A type as kernels name it.
fn type_number(dtype: DType) -> String {
    format!("static_cast<Type>({})", type_code(dtype))
}

/// Options for a kernel that sums.
fn of_combine_type(config: &MoeConfig) -> Compile {
    Compile::default().define("CAMPANILE_MOE_TYPE", type_number(config.combine_dtype))
}

/// The geometry of an operation: the table's, or what is pinned. Where `sharing` ranks have the device, kernels of one wait for
/// those of another, so each gets its part of the blocks, that all fit at once.
fn geometry(
    device: &Device,
    config: &MoeConfig,
    operation: &str,
    pins: Pins,
    sharing: usize,
) -> Result<Grid, GpuMoeError> {
    let table = GeometryTable::parse(GEOMETRY)?;
    let grid = table.find(operation, &device.target()?, config.capacity as u64, pins)?;
    let share = (grid.blocks / sharing.max(1) as u32).max(1);
    Ok(Grid { blocks: pins.blocks.unwrap_or(share), ..grid })
}

/// Plans of all kernels.
#[derive(Debug)]
pub(super) struct Kernels {
    pub(super) dispatch: Plan<Dispatch>,
    pub(super) combine: Plan<Combine>,
    /// Which of them are made for latency.
    pub(super) schedule: Schedule,
    /// Instead of `dispatch`, where it also sends.
    pub(super) quick_dispatch: Option<Plan<Dispatch>>,
    pub(super) outputs: Plan<Outputs>,
    pub(super) release: Plan<Release>,
    pub(super) scale: Plan<Scale>,
    pub(super) scale_arranged: Plan<ScaleArranged>,
}

impl Kernels {
    /// Compiles and loads them; the pins are those of dispatch and combine. `sharing` ranks have the device.
    pub(super) fn new(
        device: &Device,
        plan: &crate::Plan,
        [dispatch, combine]: [Pins; 2],
        sharing: usize,
        cache: &Cache,
    ) -> Result<Self, GpuMoeError> {
        let config = plan.config();
        let schedule = Schedule::of(config, plan.ranks)?;
        let load = |name: &str, compile: Compile| -> Result<Module, GpuMoeError> {
            Ok(device.compile(&source(name), &compile, cache)?)
        };
        let grid = |name: &str, pins| geometry(device, config, name, pins, sharing);
        let combine_name = if schedule.combine { "combine_low_latency" } else { "combine" };
        let combine_module = load(combine_name, of_combine_type(config))?;
        let plain = Compile::default;
        let quantizing = match config.quantize {
            true => plain().define("CAMPANILE_MOE_QUANTIZE", type_number(config.dtype)),
            false => plain(),
        };
        let scale = load("scale", plain())?;
        Ok(Self {
            schedule,
            // Roles are taken by tickets, so that no block waits for one that has not begun: any number of them does.
            dispatch: Plan::new(
                &load("dispatch", quantizing)?,
                "moe_dispatch",
                grid("dispatch", dispatch)?,
                Residency::Any,
            )?,
            combine: Plan::new(
                &combine_module,
                &format!("moe_{combine_name}"),
                grid(combine_name, combine)?,
                Residency::Any,
            )?,
            quick_dispatch: match schedule.dispatch {
                false => None,
                true => Some(Plan::new(
                    &load("dispatch_low_latency", plain())?,
                    "moe_dispatch_low_latency",
                    grid("dispatch_low_latency", dispatch)?,
                    Residency::Any,
                )?),
            },
            outputs: Plan::new(
                &load("outputs", of_combine_type(config))?,
                "moe_outputs",
                grid("outputs", Pins::default())?,
                Residency::Any,
            )?,
            release: Plan::new(
                &load("release", plain())?,
                "moe_release",
                grid("release", Pins::default())?,
                Residency::Together,
            )?,
            scale: Plan::new(&scale, "moe_scale", grid("scale", Pins::default())?, Residency::Any)?,
            scale_arranged: Plan::new(&scale, "moe_scale_arranged", grid("scale", Pins::default())?, Residency::Any)?,
        })
    }

    /// The plan of a dispatch that sends.
    pub(super) fn sending(&self) -> &Plan<Dispatch> {
        self.quick_dispatch.as_ref().unwrap_or(&self.dispatch)
    }

    /// The plan of combine by push, with the geometry of combine.
    pub(super) fn push(
        device: &Device,
        config: &MoeConfig,
        pins: Pins,
        sharing: usize,
        cache: &Cache,
    ) -> Result<Plan<Push>, GpuMoeError> {
        let grid = geometry(device, config, "push", pins, sharing)?;
        let module = device.compile(&source("push"), &of_combine_type(config), cache)?;
        // Roles are taken by tickets: blocks wait for those that have begun, and for peers.
        Ok(Plan::new(&module, "moe_push", grid, Residency::Any)?)
    }

    /// The plan of a layout: `moe_compact` or `moe_expert_major`.
    pub(super) fn arrange(
        device: &Device,
        config: &MoeConfig,
        kernel: &str,
        pins: Pins,
        cache: &Cache,
    ) -> Result<Plan<Arrange>, GpuMoeError> {
        let grid = geometry(device, config, "arrange", pins, 1)?;
        let module = device.compile(&source("arrange"), &Compile::default(), cache)?;
        Ok(Plan::new(&module, kernel, grid, Residency::Any)?)
    }
}
