//! Which schedule a phase has: throughput, or low latency where its kernel can do it.
//!
//! **Model.** Chosen once, at construction, by the config's mode and sizes: the kernels are compiled then, and a graph that was
//! captured keeps its own. **Invariant.** A schedule changes no word, no row and no bit of a result, so that ranks need not
//! agree on it.

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
        let (given, allowed) = match (config.mode, over) {
            (MoeMode::Throughput, _) => return Ok(Self { dispatch: false, combine: false }),
            (MoeMode::LowLatency, Some((what, given, most))) => {
                (format!("{given} {what}"), format!("it takes at most {most}"))
            }
            (MoeMode::LowLatency, None) if config.quantize => {
                ("rows that dispatch quantises".to_owned(), "it moves rows as they are".to_owned())
            }
            _ => return Ok(able),
        };
        let allowed = format!("{allowed}; use auto or throughput");
        Err(GpuMoeError::Argument { what: "mode is low-latency, for", given, allowed })
    }
}
