//! Which schedule a phase has: throughput, or low latency where its kernel can do it. The words and the rows are the same,
//! so that ranks need not agree.

use campanile_core::MoeMode;

use super::GpuMoeError;
use super::arguments::NEAR;
use crate::MoeConfig;

/// `MAX_TOKENS` of `kernels/moe/dispatch_low_latency.cpp`.
const MAX_TOKENS: usize = 512;
/// `MAX_EXPERTS` there.
const MAX_EXPERTS: usize = 1024;

/// The schedules of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    /// Dispatch by `moe_dispatch_low_latency`.
    pub(super) dispatch: bool,
    /// Combine by pull by `moe_combine_low_latency`.
    pub(super) combine: bool,
}

impl Schedule {
    /// As the config's mode says; `auto` takes low latency wherever it can be had, since its kernels are for token counts
    /// at which it is faster.
    pub(super) fn of(config: &MoeConfig, ranks: usize) -> Result<Self, GpuMoeError> {
        let limits = [
            ("ranks", ranks, NEAR),
            ("tokens a rank", config.capacity, MAX_TOKENS),
            ("experts", config.expert_rank.len(), MAX_EXPERTS),
        ];
        let over = limits.into_iter().find(|(_, given, most)| given > most);
        let able = Self { dispatch: over.is_none() && !config.quantize, combine: over.is_none() };
        match (config.mode, over) {
            (MoeMode::Throughput, _) => Ok(Self { dispatch: false, combine: false }),
            (MoeMode::Auto, _) | (MoeMode::LowLatency, None) if able.dispatch || config.mode == MoeMode::Auto => {
                Ok(able)
            }
            (_, Some((what, given, most))) => Err(GpuMoeError::Argument {
                what: "mode is low-latency, for",
                given: format!("{given} {what}"),
                allowed: format!("it takes at most {most}; use auto or throughput"),
            }),
            (_, None) => Err(GpuMoeError::Argument {
                what: "mode is low-latency, for",
                given: "rows that dispatch quantises".to_owned(),
                allowed: "it moves rows as they are; use auto or throughput".to_owned(),
            }),
        }
    }
}
