//! Bit for bit: an engine's solution against the oracle's.

use std::fmt;

use crate::{DType, Problem, Received, Solution, number};

/// A tensor of a solution, by its name in an output file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tensor {
    /// `out.R` [T_R, H] of the combine type.
    Out,
    /// `out_weights.R` [T_R, K] f32.
    OutWeights,
    /// `recv_x.R` [N, H] of the type of x.
    RecvX,
    /// `recv_scales.R` [N, S] f32.
    RecvScales,
    /// `recv_src.R` [N, 2] i32.
    RecvSrc,
    /// `recv_topk_idx.R` [N, K] i32.
    RecvTopkIdx,
    /// `recv_topk_weights.R` [N, K] f32.
    RecvTopkWeights,
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Out => "out",
            Self::OutWeights => "out_weights",
            Self::RecvX => "recv_x",
            Self::RecvScales => "recv_scales",
            Self::RecvSrc => "recv_src",
            Self::RecvTopkIdx => "recv_topk_idx",
            Self::RecvTopkWeights => "recv_topk_weights",
        })
    }
}

/// How many elements were found to have the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Elements of `out`, over all ranks.
    pub out: usize,
    /// Elements of `out_weights`.
    pub out_weights: usize,
    /// Elements of the five `recv_` tensors.
    pub received: usize,
}

/// The first difference between two solutions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// Another number of ranks.
    #[error("the solution has {got} ranks, expected {expected}")]
    Ranks {
        /// As it should be.
        expected: usize,
        /// As it is.
        got: usize,
    },
    /// A tensor of another size.
    #[error("{tensor}.{rank}: {got} bytes, expected {expected}")]
    Size {
        /// Which tensor.
        tensor: Tensor,
        /// Of which rank.
        rank: usize,
        /// Bytes it should have.
        expected: usize,
        /// Bytes it has.
        got: usize,
    },
    /// An element with other bits.
    #[error(
        "{tensor}.{rank}: token {token}, element {element}: expected {expected}, got {got}; \
         {count} of {compared} elements differ"
    )]
    Element {
        /// Which tensor.
        tensor: Tensor,
        /// Of which rank.
        rank: usize,
        /// Its first index: the token, or the received row.
        token: usize,
        /// Its second index.
        element: usize,
        /// As it should be.
        expected: Bits,
        /// As it is.
        got: Bits,
        /// Elements that differ, over all tensors and ranks.
        count: usize,
        /// Elements that were compared, over all tensors and ranks.
        compared: usize,
    },
}

/// The bits of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    /// The bits, zero-extended.
    pub bits: u32,
    /// Their type; an integer if there is none.
    pub dtype: Option<DType>,
}

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dtype {
            None => write!(f, "{}", self.bits as i32),
            Some(dtype) => {
                let value = number::read(dtype, &self.bits.to_le_bytes(), 0);
                write!(f, "{:#0width$x} ({value:?})", self.bits, width = 2 + dtype.bits() / 4)
            }
        }
    }
}

/// Compares the bits of two solutions of `problem`: of every tensor of every rank.
///
/// A caller whose engine did not keep what was received clears [`RankOutput::received`](crate::RankOutput) in both.
///
/// # Errors
/// The first difference in the order of ranks and of [`Tensor`], and how many there are.
pub fn compare(problem: &Problem, expected: &Solution, got: &Solution) -> Result<Verified, Mismatch> {
    if expected.ranks.len() != got.ranks.len() {
        return Err(Mismatch::Ranks { expected: expected.ranks.len(), got: got.ranks.len() });
    }
    let mut comparison = Comparison::default();
    let (hidden, topk) = (problem.hidden, problem.topk);
    let (x, y) = (Some(problem.dtype), Some(problem.combine_dtype));
    let (f32, i32) = (Some(DType::F32), None);
    for (rank, (expected, got)) in expected.ranks.iter().zip(&got.ranks).enumerate() {
        let mut tensor = |tensor, row, dtype, expected: &[u8], got: &[u8]| {
            comparison.tensor(Place { tensor, rank, row, dtype }, expected, got)
        };
        tensor(Tensor::Out, hidden, y, &expected.out, &got.out)?;
        tensor(Tensor::OutWeights, topk, f32, bytes(&expected.out_weights), bytes(&got.out_weights))?;
        let (expected, got): (&Received, &Received) = (&expected.received, &got.received);
        tensor(Tensor::RecvX, hidden, x, &expected.x, &got.x)?;
        tensor(Tensor::RecvScales, problem.scales, f32, bytes(&expected.scales), bytes(&got.scales))?;
        tensor(Tensor::RecvSrc, 2, i32, bytes(&expected.src), bytes(&got.src))?;
        tensor(Tensor::RecvTopkIdx, topk, i32, bytes(&expected.topk_idx), bytes(&got.topk_idx))?;
        tensor(Tensor::RecvTopkWeights, topk, f32, bytes(&expected.topk_weights), bytes(&got.topk_weights))?;
    }
    comparison.result()
}

/// The bits of 32-bit elements.
fn bytes<T: zerocopy::IntoBytes + zerocopy::Immutable>(elements: &[T]) -> &[u8] {
    zerocopy::IntoBytes::as_bytes(elements)
}

/// One tensor of one rank: its row length in elements, and their type (32-bit integers if none).
#[derive(Clone, Copy)]
struct Place {
    tensor: Tensor,
    rank: usize,
    row: usize,
    dtype: Option<DType>,
}

/// What has been compared so far.
#[derive(Default)]
struct Comparison {
    verified: Verified,
    /// Where the first difference is: token and element of a tensor, and the bits.
    first: Option<(Place, usize, usize, [u32; 2])>,
    count: usize,
}

impl Comparison {
    fn tensor(&mut self, place: Place, expected: &[u8], got: &[u8]) -> Result<(), Mismatch> {
        let Place { tensor, rank, dtype, .. } = place;
        if expected.len() != got.len() {
            return Err(Mismatch::Size { tensor, rank, expected: expected.len(), got: got.len() });
        }
        let bits = dtype.map_or(32, DType::bits);
        let row_bytes = dtype.map_or(4 * place.row, |dtype| dtype.row_bytes(place.row));
        let elements = expected.len().checked_div(row_bytes).unwrap_or(0) * place.row;
        *match tensor {
            Tensor::Out => &mut self.verified.out,
            Tensor::OutWeights => &mut self.verified.out_weights,
            _ => &mut self.verified.received,
        } += elements;
        if expected == got {
            return Ok(());
        }
        for (token, (expected, got)) in expected.chunks(row_bytes).zip(got.chunks(row_bytes)).enumerate() {
            // The padding of an odd number of four-bit elements travels too, and counts as one.
            for element in 0..row_bytes * 8 / bits {
                let [expected, got] = [expected, got].map(|row| element_bits(row, bits, element));
                if expected != got {
                    self.count += 1;
                    self.first.get_or_insert((place, token, element, [expected, got]));
                }
            }
        }
        Ok(())
    }

    fn result(self) -> Result<Verified, Mismatch> {
        let Some((place, token, element, bits)) = self.first else { return Ok(self.verified) };
        let [expected, got] = bits.map(|bits| Bits { bits, dtype: place.dtype });
        Err(Mismatch::Element {
            tensor: place.tensor,
            rank: place.rank,
            token,
            element,
            expected,
            got,
            count: self.count,
            compared: self.verified.out + self.verified.out_weights + self.verified.received,
        })
    }
}

/// Element `index` of a row of elements of `bits` bits, at most 32.
fn element_bits(row: &[u8], bits: usize, index: usize) -> u32 {
    if bits < 8 {
        return u32::from(row[index * bits / 8] >> (index * bits % 8)) & ((1 << bits) - 1);
    }
    row[index * bits / 8..][..bits / 8].iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte))
}
