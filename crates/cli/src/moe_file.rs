//! MoE problems and solutions as safetensors files.
//!
//! An input is a whole [`Problem`](campanile::moe::Problem), all ranks in one file; an output is what the ranks ended
//! with. `R` in a name is the number of a rank; the ranks of a file are those of its `x.0`, `x.1`, …, without a gap.
//!
//! | input | shape | type | |
//! |---|---|---|---|
//! | `x.R` | `[T_R, H]` | F32, F16, BF16, F8_E4M3, F8_E4M3FNUZ or F4 | `T_R` may differ between ranks and be 0; of F4 H is even |
//! | `scales.R` | `[T_R, S]` | F32 | with F8 and F4, and only then: one scale per `ceil(H / S)` elements |
//! | `topk_idx.R` | `[T_R, K]` | I32 or I64 | expert of each slot; −1 drops it |
//! | `topk_weights.R` | `[T_R, K]` | F32 | optional, on all ranks or none |
//! | `expert_scale` | `[E]` | F32 | optional, only with weights |
//! | `expert_rank` | `[E]` | I32 | optional; default `e / ceil(E / R)` |
//! | metadata `experts` | | string | `E` in decimal |
//!
//! | output | shape | type | |
//! |---|---|---|---|
//! | `out.R` | `[T_R, H]` | the combine type | |
//! | `out_weights.R` | `[T_R, K]` | F32 | with weights |
//! | `recv_x.R` | `[N_R, H]` | that of `x`, or that it was quantised to | this and below: only when the received rows are asked for |
//! | `recv_scales.R` | `[N_R, S]` | F32 | if `recv_x.R` is F8 or F4 |
//! | `recv_src.R` | `[N_R, 2]` | I32 | source rank, source token |
//! | `recv_topk_idx.R` | `[N_R, K]` | I32 | expert among those of this rank; −1 elsewhere |
//! | `recv_topk_weights.R` | `[N_R, K]` | F32 | with weights; 0 elsewhere |
//! | metadata `experts` | | string | `E` in decimal |
//!
//! F4 is E2M1, two in a byte, the first in the lower half. The format packs a whole tensor, and rows here start on bytes,
//! which is the same for an even number of elements; an odd one is refused.
//!
//! Without a file, [`generate()`] makes a problem up.
//!
//! **Invariants.** A file that is read is checked in full before a tensor of it is allocated: what [`read`] returns is a
//! valid problem, and whatever is wrong is an error that names the tensor. A file that is written depends on nothing
//! but its contents, so equal solutions are equal files; it appears whole or not at all.

use campanile::moe::DType;
use safetensors::Dtype;

mod error;
mod generate;
mod header;
mod input;
mod output;

pub use error::{FileError, FormatError, WriteError};
pub use generate::{GenerateOptions, generate};
pub use input::read;
pub use output::{check_writable, write};

/// Most tokens of a rank: `recv_src` counts them in I32.
pub const MAX_TOKENS: usize = i32::MAX as usize;
/// Most elements of a row. A rank without tokens can state any number without a byte of data, and memory is sized by
/// it.
pub const MAX_HIDDEN: usize = 1 << 24;
/// Most slots of a token, for the same reason.
pub const MAX_TOPK: usize = 1 << 16;
/// Most experts, for the same reason.
pub const MAX_EXPERTS: usize = 1 << 24;

/// Types of rows: what the project and what a file calls them.
const ROW_TYPES: [(DType, Dtype); 6] = [
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::F8E4M3, Dtype::F8_E4M3),
    (DType::F8E4M3FNUZ, Dtype::F8_E4M3FNUZ),
    (DType::F4E2M1, Dtype::F4),
];

#[cfg(test)]
mod tests;
