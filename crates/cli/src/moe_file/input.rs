//! A [`Problem`] out of a file.
//!
//! Two steps: [`Plan`] checks names, types, shapes and metadata against each other by the header alone; then the data
//! are read, tensor by tensor, straight into their place, and the indexes in them are checked.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::RangeInclusive;
use std::path::Path;

use campanile::host::memory;
use campanile::moe::{DType, Problem, RankInput};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;

use super::header::Header;
use super::{FileError, FormatError, MAX_EXPERTS, MAX_HIDDEN, MAX_TOKENS, MAX_TOPK, ROW_TYPES};

/// Types of `topk_idx`.
const INDEXES: &[Dtype] = &[Dtype::I32, Dtype::I64];

const EXPERT_SCALE: &str = "expert_scale";
const EXPERT_RANK: &str = "expert_rank";

/// Reads the problem in the file at `path`. Results come back in the default combine type of its type.
///
/// # Errors
/// [`FileError`] if the file cannot be read, is larger than the memory that is left, or is not a valid problem.
pub fn read(path: &Path) -> Result<Problem, FileError> {
    let failed = |operation| move |cause| FileError::System { path: path.into(), operation, cause };
    // Asked before it is opened: to open a pipe is to wait for its writer.
    if !fs::metadata(path).map_err(failed("opening it"))?.is_file() {
        return Err(FileError::NotAFile { path: path.into() });
    }
    let file = File::open(path).map_err(failed("opening it"))?;
    let bytes = file.metadata().map_err(failed("asking for its size"))?.len();
    // A machine that does not say how much is left is no reason to refuse.
    if let Ok(available) = memory::available()
        && bytes > available
    {
        return Err(FileError::TooLarge { path: path.into(), bytes, available });
    }
    problem(file, bytes).map_err(|cause| FileError::Format { path: path.into(), cause: cause.into() })
}

/// The problem in the bytes of a file.
#[cfg(test)]
pub(super) fn parse(bytes: &[u8]) -> Result<Problem, FormatError> {
    problem(io::Cursor::new(bytes), bytes.len() as u64)
}

/// The problem in `source`, which has `size` bytes and is at its start.
fn problem(mut source: impl Read + Seek, size: u64) -> Result<Problem, FormatError> {
    let header = Header::read(&mut source, size)?;
    let plan = Plan::new(&header)?;
    let mut data = Data { source, header: &header };
    let expert_rank = match header.tensors.contains_key(EXPERT_RANK) {
        true => data.expert_rank(plan.tokens.len())?,
        false => Problem::block_map(plan.experts, plan.tokens.len()),
    };
    let expert_scale = match header.tensors.contains_key(EXPERT_SCALE) {
        true => Some(data.f32s(EXPERT_SCALE)?),
        false => None,
    };
    let mut ranks = Vec::with_capacity(plan.tokens.len());
    for (rank, &tokens) in plan.tokens.iter().enumerate() {
        ranks.push(RankInput {
            tokens,
            x: data.bytes(&Family::X.tensor(rank))?,
            scales: if plan.scales > 0 { data.f32s(&Family::Scales.tensor(rank))? } else { Vec::new() },
            topk_idx: data.topk_idx(&Family::TopkIdx.tensor(rank), plan.topk, plan.experts)?,
            topk_weights: if plan.weighted { data.f32s(&Family::TopkWeights.tensor(rank))? } else { Vec::new() },
        });
    }
    Ok(Problem {
        dtype: plan.dtype,
        combine_dtype: plan.dtype.default_combine(),
        hidden: plan.hidden,
        topk: plan.topk,
        scales: plan.scales,
        quantize: false,
        expert_rank,
        expert_scale,
        weighted: plan.weighted,
        ranks,
    })
}

/// A tensor that each rank has one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    X,
    Scales,
    TopkIdx,
    TopkWeights,
}

impl Family {
    const ALL: [Self; 4] = [Self::X, Self::Scales, Self::TopkIdx, Self::TopkWeights];

    fn name(self) -> &'static str {
        match self {
            Self::X => "x",
            Self::Scales => "scales",
            Self::TopkIdx => "topk_idx",
            Self::TopkWeights => "topk_weights",
        }
    }

    /// The name of the tensor of `rank`.
    fn tensor(self, rank: usize) -> String {
        format!("{}.{rank}", self.name())
    }

    /// The rank and family of a tensor. Only what [`tensor`](Self::tensor) writes is a name: `x.01` is none.
    fn parse(tensor: &str) -> Option<(usize, Self)> {
        let (name, rank) = tensor.split_once('.')?;
        let family = Self::ALL.into_iter().find(|family| family.name() == name)?;
        let rank = rank.parse().ok()?;
        (family.tensor(rank) == tensor).then_some((rank, family))
    }
}

/// The tensors of ranks that a file has; those of `x` and `topk_idx` for each rank.
struct Names {
    present: BTreeSet<(usize, Family)>,
    ranks: usize,
}

impl Names {
    fn new(header: &Header) -> Result<Self, FormatError> {
        let mut present = BTreeSet::new();
        for name in header.tensors.keys() {
            match Family::parse(name) {
                Some(key) => _ = present.insert(key),
                None if name == EXPERT_SCALE || name == EXPERT_RANK => {}
                None => return Err(FormatError::Unknown { tensor: name.clone() }),
            }
        }
        // The number of a rank can be any, but the loop ends at the first gap.
        let ranks = present.last().map_or(1, |&(last, _)| last.saturating_add(1));
        let names = Self { present, ranks };
        for rank in 0..ranks {
            for family in [Family::X, Family::TopkIdx] {
                if !names.present.contains(&(rank, family)) {
                    let witness = names.present.range((rank, Family::X)..).next();
                    let witness = witness.map(|(rank, family)| format!(" ({} is there)", family.tensor(*rank)));
                    let because = format!(
                        "each rank has an x and a topk_idx, and ranks are numbered from 0 without a gap{}",
                        witness.unwrap_or_default()
                    );
                    return Err(FormatError::Missing { tensor: family.tensor(rank), because });
                }
            }
        }
        Ok(names)
    }

    /// The lowest rank that has a tensor of this family.
    fn first(&self, family: Family) -> Option<usize> {
        self.present.iter().find(|key| key.1 == family).map(|key| key.0)
    }

    /// Sees to it that all ranks have a tensor of this family.
    fn require(&self, family: Family, because: impl Into<String>) -> Result<(), FormatError> {
        match (0..self.ranks).find(|&rank| !self.present.contains(&(rank, family))) {
            None => Ok(()),
            Some(rank) => Err(FormatError::Missing { tensor: family.tensor(rank), because: because.into() }),
        }
    }
}

/// What the header says of the problem. The tensors that it implies are there, with the types and shapes it implies.
struct Plan {
    dtype: DType,
    hidden: usize,
    topk: usize,
    /// 0 unless the type is scaled.
    scales: usize,
    experts: usize,
    weighted: bool,
    /// Tokens of each rank.
    tokens: Vec<usize>,
}

impl Plan {
    fn new(header: &Header) -> Result<Self, FormatError> {
        let names = Names::new(header)?;
        let experts = experts(header)?;
        let tensor = |family: Family, rank| Tensor::new(header, family.tensor(rank));

        let first = tensor(Family::X, 0);
        let dtype = first.row_type()?;
        let hidden = first.extent(1, "H", 1..=MAX_HIDDEN)?;
        if dtype.row_bytes(hidden) * 8 != hidden * dtype.bits() {
            return Err(FormatError::PartOfByte { tensor: first.name, dtype: first.info.dtype, hidden });
        }
        let topk = tensor(Family::TopkIdx, 0).extent(1, "K", 1..=MAX_TOPK)?;
        // What goes with `x`: the tensor, its columns and where that number is from, its types.
        let mut companions = vec![(Family::TopkIdx, topk, "K of topk_idx.0", INDEXES)];

        let weighted = names.first(Family::TopkWeights);
        if let Some(rank) = weighted {
            let witness = Family::TopkWeights.tensor(rank);
            names.require(Family::TopkWeights, format!("all ranks have weights or none ({witness} is there)"))?;
            companions.push((Family::TopkWeights, topk, "K of topk_idx.0", &[Dtype::F32]));
        } else if header.tensors.contains_key(EXPERT_SCALE) {
            let because = "it multiplies weights, and there are no topk_weights.R".into();
            return Err(FormatError::Unexpected { tensor: EXPERT_SCALE.into(), because });
        }

        let mut scales = 0;
        if dtype.is_scaled() {
            names.require(Family::Scales, format!("x is {}, which has block scales", first.info.dtype))?;
            scales = tensor(Family::Scales, 0).extent(1, "S", 1..=hidden)?;
            companions.push((Family::Scales, scales, "S of scales.0", &[Dtype::F32]));
        } else if let Some(rank) = names.first(Family::Scales) {
            let because = format!("block scales go with F8 and F4, and x.0 is {}", first.info.dtype);
            return Err(FormatError::Unexpected { tensor: Family::Scales.tensor(rank), because });
        }

        let mut tokens = Vec::with_capacity(names.ranks);
        for rank in 0..names.ranks {
            let x = tensor(Family::X, rank);
            if x.info.dtype != first.info.dtype {
                return Err(FormatError::TypeMix { tensor: x.name, found: x.info.dtype, first: first.info.dtype });
            }
            let rows = x.extent(0, "T", 0..=MAX_TOKENS)?;
            x.expect_shape(&[rows, hidden], "H of x.0")?;
            for &(family, columns, of, types) in &companions {
                let companion = tensor(family, rank);
                companion.expect_type(types)?;
                companion.expect_shape(&[rows, columns], &format!("T of {}, {of}", x.name))?;
            }
            tokens.push(rows);
        }

        for (name, types) in [(EXPERT_SCALE, &[Dtype::F32]), (EXPERT_RANK, &[Dtype::I32])] {
            if header.tensors.contains_key(name) {
                let tensor = Tensor::new(header, name.into());
                tensor.expect_type(types)?;
                tensor.expect_shape(&[experts], "E of metadata \"experts\"")?;
            }
        }
        Ok(Self { dtype, hidden, topk, scales, experts, weighted: weighted.is_some(), tokens })
    }
}

/// The number of experts, by the metadata.
fn experts(header: &Header) -> Result<usize, FormatError> {
    let found = header.metadata.get("experts");
    match found.and_then(|text| text.parse().ok()) {
        Some(experts @ 1..=MAX_EXPERTS) => Ok(experts),
        _ => Err(FormatError::Experts { found: found.cloned() }),
    }
}

/// A tensor of a header.
struct Tensor<'a> {
    name: String,
    info: &'a TensorInfo,
}

impl<'a> Tensor<'a> {
    /// The tensor of that name, which is there.
    fn new(header: &'a Header, name: String) -> Self {
        let info = &header.tensors[&name];
        Self { name, info }
    }

    /// The element type of rows of this tensor.
    fn row_type(&self) -> Result<DType, FormatError> {
        let known = ROW_TYPES.into_iter().find(|(_, dtype)| *dtype == self.info.dtype);
        known.map(|(dtype, _)| dtype).ok_or_else(|| self.wrong_type(ROW_TYPES.map(|(_, dtype)| dtype).to_vec()))
    }

    /// One of the two dimensions, which is called `what`.
    fn extent(
        &self,
        dimension: usize,
        what: &'static str,
        allowed: RangeInclusive<usize>,
    ) -> Result<usize, FormatError> {
        let shape = &self.info.shape;
        if shape.len() != 2 {
            return Err(FormatError::Dimensions { tensor: self.name.clone(), found: shape.clone() });
        }
        match shape[dimension] {
            found if allowed.contains(&found) => Ok(found),
            found => Err(FormatError::Extent { tensor: self.name.clone(), what, found, allowed }),
        }
    }

    /// Sees to it that the type is one of `allowed`.
    fn expect_type(&self, allowed: &[Dtype]) -> Result<(), FormatError> {
        match allowed.contains(&self.info.dtype) {
            true => Ok(()),
            false => Err(self.wrong_type(allowed.to_vec())),
        }
    }

    fn wrong_type(&self, allowed: Vec<Dtype>) -> FormatError {
        FormatError::Type { tensor: self.name.clone(), found: self.info.dtype, allowed }
    }

    /// Sees to it that the shape is `expected`; `of` says where that is from.
    fn expect_shape(&self, expected: &[usize], of: &str) -> Result<(), FormatError> {
        match self.info.shape == expected {
            true => Ok(()),
            false => Err(FormatError::Shape {
                tensor: self.name.clone(),
                found: self.info.shape.clone(),
                expected: expected.into(),
                of: of.into(),
            }),
        }
    }
}

/// The data of a file. The plan has checked the type and shape of what is asked for.
struct Data<'a, S> {
    source: S,
    header: &'a Header,
}

impl<S: Read + Seek> Data<'_, S> {
    /// The data of a tensor, and their length.
    fn tensor(&mut self, name: &str) -> io::Result<(io::Take<&mut S>, usize)> {
        let (start, end) = self.header.tensors[name].data_offsets;
        self.source.seek(SeekFrom::Start(self.header.data + start as u64))?;
        Ok((self.source.by_ref().take((end - start) as u64), end - start))
    }

    /// A tensor as it is.
    fn bytes(&mut self, name: &str) -> Result<Vec<u8>, FormatError> {
        let mut read = || {
            let (mut data, length) = self.tensor(name)?;
            let mut bytes = Vec::with_capacity(length);
            match data.read_to_end(&mut bytes)? {
                read if read == length => Ok(bytes),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        };
        read().map_err(|cause| FormatError::Read { what: name.into(), cause })
    }

    /// A tensor of elements of `N` bytes, decoded in order.
    fn values<T, const N: usize>(&mut self, name: &str, decode: fn([u8; N]) -> T) -> Result<Vec<T>, FormatError> {
        /// Bytes that are read at a time: a file of any size is in memory once, as what it means.
        const CHUNK: usize = 1 << 16;
        let mut read = || {
            let (mut data, length) = self.tensor(name)?;
            let mut values = Vec::with_capacity(length / N);
            let mut chunk = vec![0; CHUNK.min(length)];
            while values.len() < length / N {
                let bytes = chunk.len().min(length - values.len() * N);
                data.read_exact(&mut chunk[..bytes])?;
                values.extend(chunk[..bytes].as_chunks().0.iter().map(|element| decode(*element)));
            }
            Ok(values)
        };
        read().map_err(|cause| FormatError::Read { what: name.into(), cause })
    }

    fn f32s(&mut self, name: &str) -> Result<Vec<f32>, FormatError> {
        self.values(name, f32::from_le_bytes)
    }

    /// The `[T, K]` experts of slots, each −1 or below `experts`.
    fn topk_idx(&mut self, name: &str, topk: usize, experts: usize) -> Result<Vec<i32>, FormatError> {
        let slots = match self.header.tensors[name].dtype {
            Dtype::I64 => self.values(name, i64::from_le_bytes)?,
            _ => self.values(name, |bytes| i64::from(i32::from_le_bytes(bytes)))?,
        };
        let expert = |(slot, &value): (usize, &i64)| match value {
            // Experts are fewer than 2^31.
            -1.. if value < experts as i64 => Ok(value as i32),
            _ => {
                let (token, slot) = (slot / topk, slot % topk);
                Err(FormatError::Index { tensor: name.into(), token, slot, value, experts })
            }
        };
        slots.iter().enumerate().map(expert).collect()
    }

    /// The `[E]` ranks of experts, each below `ranks`.
    fn expert_rank(&mut self, ranks: usize) -> Result<Vec<u32>, FormatError> {
        let map = self.values(EXPERT_RANK, i32::from_le_bytes)?;
        let rank = |(expert, &rank): (usize, &i32)| match u32::try_from(rank) {
            Ok(rank) if (rank as usize) < ranks => Ok(rank),
            _ => Err(FormatError::ExpertRank { expert, rank, ranks }),
        };
        map.iter().enumerate().map(rank).collect()
    }
}
