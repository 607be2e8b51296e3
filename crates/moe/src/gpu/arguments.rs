//! The arguments of the kernels: the structs of `kernels/moe/`, field by field. A plan refuses one of another size.

use campanile_gpu::Address;

/// Ranks whose windows travel in the argument.
pub(super) const NEAR: usize = 8;

/// `MoeCommon`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Common {
    pub(super) near: [Address; NEAR],
    pub(super) windows: Address,
    pub(super) words: u64,
    pub(super) rows: u64,
    pub(super) scales: u64,
    pub(super) meta: u64,
    pub(super) outputs: u64,
    pub(super) row_stride: u64,
    pub(super) scale_stride: u64,
    pub(super) meta_stride: u64,
    pub(super) output_stride: u64,
    pub(super) state: Address,
    pub(super) sent: Address,
    pub(super) came: Address,
    pub(super) rows_to: Address,
    pub(super) rows_from: Address,
    pub(super) routes: Address,
    pub(super) active: Address,
    pub(super) failed: Address,
    pub(super) abort: Address,
    pub(super) record: Address,
    pub(super) deadline: u64,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    pub(super) capacity: u32,
    pub(super) topk: u32,
    pub(super) route_slots: u32,
    pub(super) weighted: u32,
    pub(super) set: u32,
}

/// `DispatchArguments`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Dispatch {
    pub(super) common: Common,
    pub(super) x: Address,
    pub(super) x_stride: u64,
    pub(super) row_bytes: u64,
    pub(super) scales: Address,
    pub(super) topk_idx: Address,
    pub(super) topk_weights: Address,
    pub(super) tokens: Address,
    pub(super) expert_rank: Address,
    pub(super) expert_number: Address,
    pub(super) expert_counts: Address,
    pub(super) scale_count: u32,
    pub(super) experts: u32,
    pub(super) local_experts: u32,
    pub(super) index_bytes: u32,
    pub(super) index_vectors: u32,
    pub(super) phases: u32,
    pub(super) receivers: u32,
}

/// `CombineArguments`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Combine {
    pub(super) common: Common,
    pub(super) out: Address,
    pub(super) out_stride: u64,
    pub(super) row_bytes: u64,
    pub(super) out_weights: Address,
    pub(super) tokens: Address,
    pub(super) phases: u32,
}

/// `Results`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Results {
    pub(super) data: Address,
    pub(super) stride: u64,
    pub(super) row_bytes: u64,
    pub(super) places: Address,
    pub(super) arranged: Address,
    pub(super) layout: u32,
    pub(super) unused: u32,
}

/// `PushArguments`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Push {
    pub(super) common: Common,
    pub(super) results: Results,
    pub(super) out: Address,
    pub(super) out_stride: u64,
    pub(super) out_weights: Address,
    pub(super) tokens: Address,
    pub(super) returns: u64,
    pub(super) return_weights: u64,
    pub(super) weight_stride: u64,
    pub(super) state: Address,
    pub(super) lanes: Address,
    pub(super) batons: Address,
    pub(super) senders: u32,
    pub(super) phases: u32,
}

/// `ArrangeArguments`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Arrange {
    pub(super) common: Common,
    pub(super) x: Address,
    pub(super) x_stride: u64,
    pub(super) row_bytes: u64,
    pub(super) scales: Address,
    pub(super) map: Address,
    pub(super) offsets: Address,
    pub(super) places: Address,
    pub(super) arranged: Address,
    pub(super) expert_counts: Address,
    pub(super) limit: u32,
    pub(super) scale_count: u32,
    pub(super) local_experts: u32,
    pub(super) alignment: u32,
}

/// `OutputsArguments`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Outputs {
    pub(super) common: Common,
    pub(super) results: Results,
}

/// `ReleaseArguments`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Release {
    pub(super) common: Common,
    pub(super) ready: u32,
}

/// `ScaleArguments`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Scale {
    pub(super) common: Common,
    pub(super) factors: Address,
    pub(super) hidden: u32,
    pub(super) dtype: u32,
    pub(super) combine_dtype: u32,
    pub(super) scale_block: u32,
}

/// `ScaleArrangedArguments`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct ScaleArranged {
    pub(super) scale: Scale,
    pub(super) map: Address,
    pub(super) total: Address,
    pub(super) x: Address,
    pub(super) x_stride: u64,
    pub(super) y: Address,
    pub(super) y_stride: u64,
}

/// Phases of a launch, in `phases`.
pub(super) const SEND: u32 = 1;
/// The other one.
pub(super) const RECEIVE: u32 = 2;

/// No rank.
pub(super) const NONE: u32 = u32::MAX;
/// End of a token's routes.
pub(super) const NO_ROUTE: u64 = u64::MAX;

/// `PushState`.
pub(super) const PUSH_STATE_BYTES: usize = 40;
/// `PushLane`.
pub(super) const PUSH_LANE_BYTES: usize = 16;
/// `MoeState`.
pub(super) const STATE_BYTES: usize = 48;
/// `MoeRecord`, and the abort word behind it.
pub(super) const RECORD_BYTES: usize = 40;
