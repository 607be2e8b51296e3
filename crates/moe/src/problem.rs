//! One whole MoE exchange as data: what every rank puts in and what every rank must get out.
//!
//! A [`Problem`] holds the inputs of all ranks; a [`Solution`] the outputs of all ranks. The scalar model
//! (`model::solve`) maps one to the other; the engine, run on as many ranks, must give the same bits.

use crate::DType;

/// What one rank brings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankInput {
    /// Number of tokens, `T_R`; may be 0 and may differ between ranks.
    pub tokens: usize,
    /// `[T_R, H]` elements of [`Problem::x_dtype`], little-endian; rows start on bytes and are not padded otherwise.
    pub x: Vec<u8>,
    /// `[T_R, S]` block scales; empty unless the type of `x` is scaled.
    pub scales: Vec<f32>,
    /// `[T_R, K]` global expert of each slot; −1 drops the slot.
    pub topk_idx: Vec<i32>,
    /// `[T_R, K]` weights; empty when the problem has none.
    pub topk_weights: Vec<f32>,
}

/// The inputs of all ranks. Whoever fills it from outside calls [`validate`](Self::validate); the oracle and the engine
/// rely on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Type of the rows as they travel and as the experts see them.
    pub dtype: DType,
    /// Type in which results come back.
    pub combine_dtype: DType,
    /// Elements of a row, `H` ≥ 1.
    pub hidden: usize,
    /// Slots of a token, `K` ≥ 1.
    pub topk: usize,
    /// Block scales of a row, `S`; 0 unless the type is scaled. One scale covers `ceil(H / S)` elements.
    pub scales: usize,
    /// Whether `x` is bf16, which dispatch quantises to `dtype`.
    pub quantize: bool,
    /// Rank on which each expert lives, `[E]`.
    pub expert_rank: Vec<u32>,
    /// Factor of each expert, `[E]`; only with weights.
    pub expert_scale: Option<Vec<f32>>,
    /// Whether slots carry weights.
    pub weighted: bool,
    /// One entry a rank.
    pub ranks: Vec<RankInput>,
}

impl Problem {
    /// Number of experts, `E`.
    pub fn experts(&self) -> usize {
        self.expert_rank.len()
    }

    /// Type of `x`: bf16 if it is quantised, else that of the rows.
    pub fn x_dtype(&self) -> DType {
        if self.quantize { DType::BF16 } else { self.dtype }
    }

    /// The problem with its bf16 rows quantised to `dtype` by dispatch, with as many block scales as are usual for it.
    ///
    /// Of rows that are not bf16, or a type that dispatch does not quantise to, [`validate`](Self::validate) says so.
    #[must_use]
    pub fn quantized(self, dtype: DType) -> Self {
        Self { dtype, scales: dtype.default_scales(self.hidden), quantize: true, ..self }
    }

    /// The default map: expert `e` on rank `e / ceil(E / R)`.
    pub fn block_map(experts: usize, ranks: usize) -> Vec<u32> {
        let per_rank = experts.div_ceil(ranks.max(1)).max(1);
        (0..experts).map(|expert| (expert / per_rank) as u32).collect()
    }

    /// The block scale that covers an element: one scale covers `ceil(H / S)` elements.
    ///
    /// # Panics
    /// When the problem has no scales.
    pub fn scale_of(&self, element: usize) -> usize {
        element / self.hidden.div_ceil(self.scales)
    }

    /// Checks everything that the shapes and values promise.
    ///
    /// # Errors
    /// The first thing that is wrong, with the tensor (as a file names it: `x.R` for rank R), what it has and what is
    /// allowed.
    pub fn validate(&self) -> Result<(), ProblemError> {
        self.validate_shape()?;
        self.validate_experts()?;
        for (rank, input) in self.ranks.iter().enumerate() {
            self.validate_rank(rank, input)?;
        }
        Ok(())
    }

    fn validate_shape(&self) -> Result<(), ProblemError> {
        let (hidden, topk, scales) = (self.hidden, self.topk, self.scales);
        for (field, value) in [("ranks", self.ranks.len()), ("hidden", hidden), ("topk", topk)] {
            // Ranks, tokens, experts and slots travel as 32-bit integers.
            if value == 0 || i32::try_from(value).is_err() {
                return Err(ProblemError::Size { field, value, least: 1 });
            }
        }
        if !self.combine_dtype.is_combine() {
            return Err(ProblemError::CombineType { dtype: self.combine_dtype });
        }
        if self.quantize && !self.dtype.is_quantized() {
            return Err(ProblemError::Quantize { dtype: self.dtype });
        }
        let allowed = if self.dtype.is_scaled() { 1..=hidden } else { 0..=0 };
        if !allowed.contains(&scales) {
            let (least, most) = allowed.into_inner();
            return Err(ProblemError::Scales { dtype: self.dtype, scales, least, most });
        }
        Ok(())
    }

    fn validate_experts(&self) -> Result<(), ProblemError> {
        let (experts, ranks) = (self.experts(), self.ranks.len());
        if experts == 0 || i32::try_from(experts).is_err() {
            return Err(ProblemError::Size { field: "experts", value: experts, least: 1 });
        }
        if let Some(expert) = self.expert_rank.iter().position(|&rank| rank as usize >= ranks) {
            return Err(ProblemError::ExpertRank { expert, rank: self.expert_rank[expert], ranks });
        }
        match &self.expert_scale {
            Some(_) if !self.weighted => Err(ProblemError::ScaleWithoutWeights),
            Some(scale) if scale.len() != experts => {
                Err(ProblemError::ExpertScale { expected: experts, got: scale.len() })
            }
            _ => Ok(()),
        }
    }

    fn validate_rank(&self, rank: usize, input: &RankInput) -> Result<(), ProblemError> {
        let tokens = input.tokens;
        if i32::try_from(tokens).is_err() {
            return Err(ProblemError::Size { field: "tokens", value: tokens, least: 0 });
        }
        let topk_weights = if self.weighted { self.topk } else { 0 };
        for (tensor, row, got) in [
            ("x", self.x_dtype().row_bytes(self.hidden), input.x.len()),
            ("scales", if self.quantize { 0 } else { self.scales }, input.scales.len()),
            ("topk_idx", self.topk, input.topk_idx.len()),
            ("topk_weights", topk_weights, input.topk_weights.len()),
        ] {
            if tokens.checked_mul(row) != Some(got) {
                let unit = if tensor == "x" { "bytes" } else { "elements" };
                return Err(ProblemError::Length { tensor, rank, tokens, row, got, unit });
            }
        }
        let experts = self.experts();
        let slot = input.topk_idx.iter().position(|&expert| expert < -1 || expert >= experts as i32);
        slot.map_or(Ok(()), |at| {
            let (token, slot, index) = (at / self.topk, at % self.topk, input.topk_idx[at]);
            Err(ProblemError::Expert { rank, token, slot, index, experts })
        })
    }
}

/// What is wrong with a [`Problem`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProblemError {
    /// A number that shapes are made of.
    #[error("{field} is {value}; allowed are {least} to {}", i32::MAX)]
    Size {
        /// Which one.
        field: &'static str,
        /// What it is.
        value: usize,
        /// The least that is allowed.
        least: usize,
    },
    /// A combine type that cannot be summed.
    #[error("combine type {dtype} cannot be summed; choose f32, f16 or bf16")]
    CombineType {
        /// The type given.
        dtype: DType,
    },
    /// A type that rows cannot be quantised to.
    #[error("dispatch does not quantise to {dtype}; choose f8_e4m3 or f8_e4m3fnuz")]
    Quantize {
        /// The type given.
        dtype: DType,
    },
    /// A number of block scales that does not go with the type.
    #[error("rows of {dtype} have {scales} scales; allowed are {least} to {most}")]
    Scales {
        /// Type of the rows.
        dtype: DType,
        /// Scales of a row.
        scales: usize,
        /// The least that is allowed.
        least: usize,
        /// The most that is allowed.
        most: usize,
    },
    /// An expert on a rank that does not exist.
    #[error("expert_rank: expert {expert} is on rank {rank}; allowed are 0 to {}", .ranks - 1)]
    ExpertRank {
        /// The expert.
        expert: usize,
        /// Its rank.
        rank: u32,
        /// Number of ranks.
        ranks: usize,
    },
    /// Factors of experts, but nothing to multiply them with.
    #[error("expert_scale is given without topk_weights; leave it out, or give every rank weights")]
    ScaleWithoutWeights,
    /// Factors for another number of experts.
    #[error("expert_scale has {got} elements; {expected} experts need as many")]
    ExpertScale {
        /// Number of experts.
        expected: usize,
        /// Number of factors.
        got: usize,
    },
    /// A tensor of the wrong size.
    #[error("{tensor}.{rank} has {got} {unit}; {tokens} tokens of {row} need {}", .tokens.saturating_mul(*.row))]
    Length {
        /// Its name in a file.
        tensor: &'static str,
        /// The rank it belongs to.
        rank: usize,
        /// Tokens of that rank.
        tokens: usize,
        /// What a token needs.
        row: usize,
        /// What there is.
        got: usize,
        /// Of what.
        unit: &'static str,
    },
    /// A routing index that is no expert.
    #[error("topk_idx.{rank}: token {token}, slot {slot} is {index}; allowed are -1 (dropped) to {}", .experts - 1)]
    Expert {
        /// The rank that the tensor belongs to.
        rank: usize,
        /// The token.
        token: usize,
        /// Its slot.
        slot: usize,
        /// The index given.
        index: i32,
        /// Number of experts.
        experts: usize,
    },
}

/// What one rank received by dispatch, ordered by (source rank, source token).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Received {
    /// `[N, H]` rows as they travelled.
    pub x: Vec<u8>,
    /// `[N, S]` scales as they travelled.
    pub scales: Vec<f32>,
    /// `[N, 2]`: source rank, source token.
    pub src: Vec<i32>,
    /// `[N, K]`: number of the expert among this rank's experts, ascending; −1 for slots that live elsewhere.
    pub topk_idx: Vec<i32>,
    /// `[N, K]`: the weight, 0 for slots that live elsewhere; empty without weights.
    pub topk_weights: Vec<f32>,
}

/// What one rank ends with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankOutput {
    /// `[T_R, H]` of the combine type.
    pub out: Vec<u8>,
    /// `[T_R, K]`: the weight of each valid slot, 0 of each dropped one; empty without weights.
    pub out_weights: Vec<f32>,
    /// What dispatch brought here.
    pub received: Received,
}

/// The outputs of all ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Solution {
    /// One entry a rank.
    pub ranks: Vec<RankOutput>,
}
