//! The plan of an MoE operation: everything that is computed once, before any memory exists.
//!
//! A [`MoeConfig`] says what is wanted, a [`Plan`] is that for a number of ranks: the expert maps, the strides, and the
//! arena with its planes. The same config gives the same plan on every rank, apart from the rank itself; the sizes of
//! the planes are the size hint.
//!
//! | plane (one of each a set) | shape | written by | read by |
//! |---|---|---|---|
//! | `rows` | \[source]\[capacity] rows | the source | the owner, in place |
//! | `scales` | \[source]\[capacity] × S f32 | the source | the owner |
//! | `meta` | \[source]\[capacity] × (token, K routing, K weights) | the source | the owner; by pull the source again |
//! | `outputs` | \[source]\[capacity] results | the owner | the source, by pull |
//! | `returns` | \[owner]\[capacity] results (push) | the owner | the source |
//! | `return_weights` | \[owner]\[capacity] × K f32 (push) | the owner | the source |
//! | `staging` … | \[owner]\[capacity], where load / store does not reach | the source | its queue |
//! | `words` | one cache line a source | the source | the owner |

use campanile_core::{Arena, ArenaError, ArenaRegion, Config, MoeCombine, MoeMode};

use crate::DType;
use crate::protocol::{Set, WordMap};

/// What an MoE operation is to do. All ranks must be given the same, apart from `mode`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoeConfig {
    /// Most tokens of one rank in one dispatch, at least 1.
    pub capacity: usize,
    /// Elements of a row, at least 1.
    pub hidden: usize,
    /// Slots of a token, at least 1.
    pub topk: usize,
    /// Rank (position in the team) of each expert.
    pub expert_rank: Vec<u32>,
    /// Type of the rows as they travel and as the experts see them.
    pub dtype: DType,
    /// Block scales of a row; 0 unless the type is scaled.
    pub scales: usize,
    /// Whether callers give bf16 rows without scales, which dispatch quantises to `dtype`, once a token:
    /// [`Kernels::quantize_row`](crate::arithmetic::Kernels::quantize_row) says how.
    pub quantize: bool,
    /// Type of the results.
    pub combine_dtype: DType,
    /// Whether slots carry weights.
    pub weighted: bool,
    /// Buffer sets: how many rounds may be in flight at once, 1 to 1024.
    pub sets: u32,
    /// Schedule of dispatch, on devices also of combine: the wire format and the words are the same, so ranks may differ.
    pub mode: MoeMode,
    /// Who moves the results; auto pulls where load / store reaches every rank.
    pub combine: MoeCombine,
}

impl MoeConfig {
    /// A weighted bf16 operation with experts in equal blocks and two sets; the fields are public to change it.
    pub fn new(capacity: usize, hidden: usize, topk: usize, expert_rank: Vec<u32>) -> Self {
        Self {
            capacity,
            hidden,
            topk,
            expert_rank,
            dtype: DType::BF16,
            scales: 0,
            quantize: false,
            combine_dtype: DType::BF16,
            weighted: true,
            sets: 2,
            mode: MoeMode::Auto,
            combine: MoeCombine::Auto,
        }
    }

    /// Quantises the rows to `dtype` in dispatch, with as many block scales as are usual for it.
    ///
    /// ```
    /// use campanile_moe::{DType, MoeConfig, Problem};
    /// let config = MoeConfig::new(4096, 7168, 8, Problem::block_map(256, 8)).quantized(DType::F8E4M3);
    /// assert_eq!((config.x_dtype(), config.dtype, config.scales), (DType::BF16, DType::F8E4M3, 56));
    /// ```
    #[must_use]
    pub fn quantized(mut self, dtype: DType) -> Self {
        (self.dtype, self.scales, self.quantize) = (dtype, dtype.default_scales(self.hidden), true);
        self
    }

    /// Type of the rows that callers give: bf16 if they are quantised, else that which travels.
    pub fn x_dtype(&self) -> DType {
        if self.quantize { DType::BF16 } else { self.dtype }
    }

    /// Block scales of a row that callers give.
    pub(crate) fn x_scales(&self) -> usize {
        if self.quantize { 0 } else { self.scales }
    }

    /// With schedule and combine as the configuration says (`CAMPANILE_MOE_MODE`, `CAMPANILE_MOE_COMBINE`).
    #[must_use]
    pub fn configured(mut self, config: &Config) -> Self {
        (self.mode, self.combine) = (config.moe_mode(), config.moe_combine());
        self
    }

    /// The fields that all ranks must agree on, for [`Communicator::agree`](campanile_core::Communicator::agree).
    pub(crate) fn fingerprint(&self, by: MoeCombine) -> Vec<(&'static str, String)> {
        let map = self.expert_rank.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        vec![
            ("capacity", self.capacity.to_string()),
            ("hidden", self.hidden.to_string()),
            ("topk", self.topk.to_string()),
            ("experts", self.expert_rank.len().to_string()),
            ("expert_rank", map),
            ("dtype", self.dtype.to_string()),
            ("scales", self.scales.to_string()),
            ("quantize", self.quantize.to_string()),
            ("combine_dtype", self.combine_dtype.to_string()),
            ("weighted", self.weighted.to_string()),
            ("sets", self.sets.to_string()),
            ("combine", by.to_string()),
        ]
    }
}

/// A config that no operation can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A number is outside its range.
    #[error("{field} is {given}; {allowed}")]
    Range {
        /// Which field.
        field: &'static str,
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// The planes do not fit into the address space.
    #[error("the buffers are too large: {0}; lower capacity, hidden or sets")]
    TooLarge(#[from] ArenaError),
}

/// The planes of one set.
#[derive(Clone, Debug)]
pub(crate) struct SetPlanes {
    pub(crate) rows: ArenaRegion,
    pub(crate) scales: ArenaRegion,
    pub(crate) meta: ArenaRegion,
    pub(crate) outputs: ArenaRegion,
    pub(crate) returns: ArenaRegion,
    pub(crate) return_weights: ArenaRegion,
    pub(crate) staged_rows: ArenaRegion,
    pub(crate) staged_scales: ArenaRegion,
    pub(crate) staged_meta: ArenaRegion,
    pub(crate) staged_weights: ArenaRegion,
}

/// A config resolved for one rank of a team.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) config: MoeConfig,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Rank of each expert, and its number among those of that rank, ascending.
    places: Vec<(u32, i32)>,
    /// Experts of each rank.
    pub(crate) local_experts: Vec<usize>,
    pub(crate) words: ArenaRegion,
    pub(crate) word_map: WordMap,
    pub(crate) sets: Vec<SetPlanes>,
    arena: Arena,
}

/// What a plan needs to know of how ranks reach each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanPaths {
    /// Results come back by push.
    pub push: bool,
    /// Some rank is not reached by load / store, so rows are staged for a queue.
    pub staged: bool,
}

/// Rows of at least this many bytes start on cache lines, so that streaming stores need no head; smaller ones would
/// waste too much, and keep the 16 bytes that vector code and GPU loads ask for.
const LINE_STRIDE_FROM: usize = 512;

/// Most buffer sets: far more than rounds can be in flight. Each takes regions of its own, and these a time to lay out.
const MAX_SETS: u32 = 1 << 10;

fn row_stride(bytes: usize) -> usize {
    bytes.next_multiple_of(if bytes >= LINE_STRIDE_FROM { 64 } else { 16 })
}

impl Plan {
    /// Resolves `config` for the rank at position `rank` of `ranks`.
    ///
    /// # Errors
    /// [`PlanError`] names the field, what was given and what is allowed.
    pub fn new(config: MoeConfig, rank: usize, ranks: usize, paths: PlanPaths) -> Result<Self, PlanError> {
        check(&config, ranks)?;
        let mut local_experts = vec![0; ranks];
        let places = config.expert_rank.iter().map(|&owner| {
            let count: &mut usize = &mut local_experts[owner as usize];
            *count += 1;
            (owner, (*count - 1) as i32)
        });
        let places = places.collect();

        let MoeConfig { capacity, hidden, topk, .. } = config;
        let word_map = WordMap { sets: config.sets, ranks };
        let mut arena = Arena::new();
        let words = arena.carve("words", "cache line", 64, word_map.bytes().div_ceil(64))?;
        let count = ranks.checked_mul(capacity).ok_or_else(|| ArenaError::TooLarge {
            name: "rows".to_owned(),
            stride: ranks,
            count: capacity,
        })?;
        let when = |condition: bool| if condition { count } else { 0 };
        let row = row_stride(config.dtype.row_bytes(hidden));
        let output = row_stride(config.combine_dtype.row_bytes(hidden));
        let scales = (config.scales * 4).next_multiple_of(16);
        let meta = meta_stride(topk);
        let weights = (topk * 4).next_multiple_of(16);
        let (row_name, output_name) =
            (format!("{}[{hidden}]", config.dtype), format!("{}[{hidden}]", config.combine_dtype));
        let sets = (0..config.sets).map(|set| {
            let mut carve = |name: &str, element: &str, stride, count| {
                arena.carve(&format!("{name}.{set}"), element, stride, count)
            };
            let (returned, staged) = (when(paths.push), when(paths.staged));
            Ok(SetPlanes {
                rows: carve("rows", &row_name, row, count)?,
                scales: carve("scales", "f32", scales, count)?,
                meta: carve("meta", "routing", meta, count)?,
                outputs: carve("outputs", &output_name, output, count)?,
                returns: carve("returns", &output_name, output, returned)?,
                return_weights: carve("return_weights", "f32", weights, if config.weighted { returned } else { 0 })?,
                staged_rows: carve("staged_rows", &row_name, row, staged)?,
                staged_scales: carve("staged_scales", "f32", scales, staged)?,
                staged_meta: carve("staged_meta", "routing", meta, staged)?,
                staged_weights: carve("staged_weights", "f32", weights, if config.weighted { staged } else { 0 })?,
            })
        });
        let sets = sets.collect::<Result<_, ArenaError>>()?;
        Ok(Self { config, rank, ranks, places, local_experts, words, word_map, sets, arena })
    }

    /// The config.
    pub fn config(&self) -> &MoeConfig {
        &self.config
    }

    /// Bytes of the window on each rank: exactly what is allocated.
    pub fn bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// The layout of the window; prints itself as a map.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Experts on this rank.
    pub fn local_experts(&self) -> usize {
        self.local_experts[self.rank]
    }

    /// Global number of expert `local` of this rank, as [`RowMeta::topk_idx`](crate::RowMeta::topk_idx) counts them.
    pub fn expert(&self, local: usize) -> Option<usize> {
        let owned = |(_, owner): &(usize, &u32)| **owner as usize == self.rank;
        self.config.expert_rank.iter().enumerate().filter(owned).nth(local).map(|(expert, _)| expert)
    }

    /// Number of `expert` among those of `owner`; −1 if it lives elsewhere or is −1 itself.
    #[inline]
    pub(crate) fn number_on(&self, expert: i32, owner: u32) -> i32 {
        match self.places.get(expert as usize) {
            Some(&(rank, number)) if rank == owner => number,
            _ => -1,
        }
    }

    /// Rank of each expert, and its number among those of that rank.
    pub(crate) fn places(&self) -> &[(u32, i32)] {
        &self.places
    }

    pub(crate) fn set(&self, set: Set) -> &SetPlanes {
        &self.sets[set.index()]
    }

    /// Offset of row `ordinal` of `rank` in a plane of `[rank][capacity]`.
    #[inline]
    pub(crate) fn at(&self, plane: &ArenaRegion, rank: usize, ordinal: usize) -> usize {
        debug_assert!(ordinal < self.config.capacity && rank < self.ranks);
        plane.offset + plane.stride * (rank * self.config.capacity + ordinal)
    }
}

/// Bytes of the routing of a row: source token, K expert numbers, K weights, in 4-byte words.
fn meta_stride(topk: usize) -> usize {
    ((1 + 2 * topk) * 4).next_multiple_of(16)
}

fn check(config: &MoeConfig, ranks: usize) -> Result<(), PlanError> {
    let range = |field, given: String, allowed: String| Err(PlanError::Range { field, given, allowed });
    let at_least_one = [("hidden", config.hidden), ("topk", config.topk), ("capacity", config.capacity)];
    if let Some((field, _)) = at_least_one.into_iter().find(|(_, value)| *value == 0) {
        return range(field, "0".to_owned(), "it must be at least 1".to_owned());
    }
    if !(1..=MAX_SETS).contains(&config.sets) {
        return range("sets", config.sets.to_string(), format!("an operation has 1 to {MAX_SETS} buffer sets"));
    }
    if u32::try_from(config.capacity).is_err() || i32::try_from(config.capacity).is_err() {
        return range("capacity", config.capacity.to_string(), format!("at most {}", i32::MAX));
    }
    if config.topk > 1 << 20 || config.hidden > 1 << 40 {
        let given = format!("topk {}, hidden {}", config.topk, config.hidden);
        return range("topk or hidden", given, "at most 2^20 slots and 2^40 elements".to_owned());
    }
    if config.expert_rank.is_empty() || i32::try_from(config.expert_rank.len()).is_err() {
        let given = config.expert_rank.len().to_string();
        return range("experts", given, format!("between 1 and {} experts", i32::MAX));
    }
    if let Some((expert, &rank)) = config.expert_rank.iter().enumerate().find(|(_, rank)| **rank as usize >= ranks) {
        return range("expert_rank", format!("{rank} for expert {expert}"), format!("ranks are 0 to {}", ranks - 1));
    }
    if !config.combine_dtype.is_combine() {
        return range("combine_dtype", config.combine_dtype.to_string(), "f32, f16 or bf16".to_owned());
    }
    if config.quantize && !config.dtype.is_quantized() {
        let allowed = format!("dispatch quantises to {} or {}", DType::F8E4M3, DType::F8E4M3FNUZ);
        return range("quantize", format!("true with dtype {}", config.dtype), allowed);
    }
    match (config.dtype.is_scaled(), config.scales) {
        (true, 0) => range("scales", "0".to_owned(), format!("{} rows have at least one scale", config.dtype)),
        (true, scales) if scales > config.hidden => {
            range("scales", scales.to_string(), format!("at most one a value, {} here", config.hidden))
        }
        (false, scales) if scales > 0 => {
            range("scales", scales.to_string(), format!("{} rows have no scales: 0", config.dtype))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Problem;

    fn config() -> MoeConfig {
        MoeConfig::new(16, 100, 3, Problem::block_map(10, 4))
    }

    #[test]
    fn planes_are_symmetric_and_aligned() {
        let paths = PlanPaths { push: true, staged: true };
        let plans: Vec<_> = (0..4).map(|rank| Plan::new(config(), rank, 4, paths).unwrap()).collect();
        for plan in &plans {
            assert_eq!(plan.arena(), plans[0].arena());
            for region in plan.arena().regions() {
                assert_eq!(region.offset % 256, 0, "{}", region.name);
                assert_eq!(region.stride % 16, 0, "{}", region.name);
            }
        }
        assert_eq!(plans[0].local_experts, [3, 3, 3, 1]);
        let numbers: Vec<_> = (0..10).map(|expert| plans[0].number_on(expert, expert as u32 / 3)).collect();
        assert_eq!(numbers, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]);
        assert_eq!((plans[0].number_on(3, 0), plans[0].number_on(-1, 0)), (-1, -1));
    }

    #[test]
    fn what_is_not_needed_takes_no_memory() {
        let pull = Plan::new(config(), 0, 4, PlanPaths::default()).unwrap();
        let push = Plan::new(config(), 0, 4, PlanPaths { push: true, staged: false }).unwrap();
        let output = 208 * 16 * 4; // bf16[100] padded to 16 bytes, 4 owners x 16 rows
        let weights = 16 * 16 * 4;
        assert_eq!(push.bytes() - pull.bytes(), 2 * (output + weights));
    }

    /// 128 tokens of 7168 on 4 ranks: what a low-latency set may take.
    #[test]
    fn a_small_set_is_small() {
        let set = |dtype: DType| {
            let config = MoeConfig::new(128, 7168, 8, Problem::block_map(256, 4));
            let config = MoeConfig { sets: 1, dtype, scales: dtype.default_scales(7168), ..config };
            Plan::new(config, 0, 4, PlanPaths::default()).unwrap().bytes()
        };
        let (rows, meta) = (4 * 128, 80); // 17 words, padded to 16 bytes
        let words = 256; // 4 lines of 64 bytes
        let outputs = rows * 14336;
        assert_eq!(set(DType::BF16), words + rows * (14336 + meta) + outputs);
        assert_eq!(set(DType::F8E4M3), words + rows * (7168 + 4 * 56 + meta) + outputs);
        assert!(set(DType::BF16) < 64 << 20);
    }

    #[test]
    fn ranks_must_agree_on_quantisation() {
        let given = MoeConfig { quantize: false, ..config().quantized(DType::F8E4M3) };
        let [given, quantized] = [given, config().quantized(DType::F8E4M3)].map(|c| c.fingerprint(MoeCombine::Pull));
        let differ: Vec<_> = given.iter().zip(&quantized).filter(|(a, b)| a != b).map(|(a, _)| a.0).collect();
        assert_eq!(differ, ["quantize"]);
    }

    #[test]
    fn bad_configs_name_the_field() {
        type Change = fn(&mut MoeConfig);
        let cases: [(Change, &str); 13] = [
            (|c| c.hidden = 0, "hidden is 0"),
            (|c| c.topk = 0, "topk is 0"),
            (|c| c.capacity = 0, "capacity is 0"),
            (|c| c.sets = 0, "sets is 0"),
            (|c| c.sets = u32::MAX, "sets is 4294967295; an operation has 1 to 1024"),
            (|c| c.expert_rank.clear(), "experts is 0"),
            (|c| c.expert_rank[4] = 4, "expert_rank is 4 for expert 4"),
            (|c| c.combine_dtype = DType::F8E4M3, "combine_dtype is f8_e4m3"),
            (|c| c.scales = 1, "scales is 1"),
            (|c| c.dtype = DType::F8E4M3, "scales is 0"),
            (|c| (c.dtype, c.scales) = (DType::F8E4M3, 101), "scales is 101"),
            (|c| c.quantize = true, "quantize is true with dtype bf16"),
            (|c| *c = c.clone().quantized(DType::F4E2M1), "quantize is true with dtype f4_e2m1"),
        ];
        for (change, message) in cases {
            let mut config = config();
            change(&mut config);
            let error = Plan::new(config, 0, 4, PlanPaths::default()).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        let huge = MoeConfig { capacity: i32::MAX as usize, hidden: 1 << 40, ..config() };
        assert!(matches!(Plan::new(huge, 0, 4, PlanPaths::default()), Err(PlanError::TooLarge(_))));
    }
}
