//! Element types: what travels and what is reduced.
//!
//! A dispatch type is any [`DType`]; a combine type is one of those that [`DType::is_combine`] accepts. Sizes are
//! in bits because sub-byte types travel as packed bytes.

/// An element type of a payload.
///
/// A *scaled* type comes with f32 scales, one for each block of `ceil(H / S)` elements of a row; an element means its
/// code times its block's scale. Scales of other types (E8M0 of OCP MX, E4M3 of NVFP4) are widened to f32 by the caller.
///
/// ```
/// use campanile_moe::DType;
/// assert_eq!(DType::parse("bf16"), Some(DType::BF16));
/// assert_eq!(DType::F8E4M3.row_bytes(7), 7);
/// assert_eq!(DType::F4E2M1.row_bytes(7), 4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// OCP FP8 E4M3 (finite only, NaN = 0x7f / 0xff, largest 448), scaled. Source: OCP 8-bit Floating Point
    /// Specification (OFP8) 1.0.
    F8E4M3,
    /// FP8 E4M3 FNUZ (bias 8, finite only, one zero, NaN = 0x80, largest 240), scaled: the FP8 of AMD's gfx942. Source:
    /// Noune et al., "8-bit Numerical Formats for Deep Neural Networks", <https://arxiv.org/abs/2206.02915>.
    F8E4M3FNUZ,
    /// FP4 E2M1 (no NaN, no infinity, largest 6), scaled; two in a byte, the first in the lower four bits, as ONNX,
    /// PyTorch (`float4_e2m1fn_x2`) and CUDA (`__nv_fp4x2_e2m1`) have them. Of an odd number of elements the last
    /// byte's upper four bits are padding, which travels as it is and is never read. Source: OCP Microscaling Formats
    /// (MX) 1.0, which leaves the packing open; <https://onnx.ai/onnx/technical/float4.html>.
    F4E2M1,
}

impl DType {
    /// All types, in the order in which `--help` lists them.
    pub const ALL: [Self; 6] = [Self::F32, Self::F16, Self::BF16, Self::F8E4M3, Self::F8E4M3FNUZ, Self::F4E2M1];

    /// The name that is printed and accepted.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F8E4M3 => "f8_e4m3",
            Self::F8E4M3FNUZ => "f8_e4m3fnuz",
            Self::F4E2M1 => "f4_e2m1",
        }
    }

    /// The type of that name, as [`name`](Self::name) prints it.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Bits of one element.
    pub const fn bits(self) -> usize {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::BF16 => 16,
            Self::F8E4M3 | Self::F8E4M3FNUZ => 8,
            Self::F4E2M1 => 4,
        }
    }

    /// Bytes of the smallest part of a row that can be addressed: an element, or the byte that two of four bits share.
    pub const fn bytes(self) -> usize {
        self.bits().div_ceil(8)
    }

    /// Bytes of a row of `hidden` elements, without padding between rows: each starts with a byte of its own.
    pub const fn row_bytes(self, hidden: usize) -> usize {
        match self {
            Self::F4E2M1 => hidden.div_ceil(2),
            _ => self.bytes() * hidden,
        }
    }

    /// The largest finite value.
    pub const fn largest(self) -> f32 {
        match self {
            Self::F32 => f32::MAX,
            Self::F16 => 65504.0,
            Self::BF16 => f32::from_bits(0x7f7f_0000),
            Self::F8E4M3 => 448.0,
            Self::F8E4M3FNUZ => 240.0,
            Self::F4E2M1 => 6.0,
        }
    }

    /// Whether rows of this type come with block scales.
    pub const fn is_scaled(self) -> bool {
        matches!(self, Self::F8E4M3 | Self::F8E4M3FNUZ | Self::F4E2M1)
    }

    /// The block scales of a row of `hidden` elements unless the caller names another number: one for 128 elements of
    /// FP8 (DeepSeek-V3 and the MoE libraries), one for 32 of FP4 (OCP MX); 0 for what is not scaled.
    pub const fn default_scales(self, hidden: usize) -> usize {
        match self {
            Self::F8E4M3 | Self::F8E4M3FNUZ => hidden.div_ceil(128),
            Self::F4E2M1 => hidden.div_ceil(32),
            Self::F32 | Self::F16 | Self::BF16 => 0,
        }
    }

    /// Whether dispatch can make rows of this type out of bf16: the FP8 types.
    pub const fn is_quantized(self) -> bool {
        matches!(self, Self::F8E4M3 | Self::F8E4M3FNUZ)
    }

    /// Whether this type can be reduced by combine.
    pub const fn is_combine(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// The combine type that goes with this dispatch type unless the caller names another.
    pub const fn default_combine(self) -> Self {
        if self.is_combine() { self } else { Self::BF16 }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
