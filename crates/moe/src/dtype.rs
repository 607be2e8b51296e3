//! Element types: what travels and what is reduced.
//!
//! A dispatch type is any [`DType`]; a combine type is one of those that [`DType::is_combine`] accepts. Sizes are
//! in bits because sub-byte types travel as packed bytes.

/// An element type of a payload.
///
/// ```
/// use campanile_moe::DType;
/// assert_eq!(DType::parse("bf16"), Some(DType::BF16));
/// assert_eq!(DType::F8E4M3.row_bytes(7), 7);
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
    /// OCP FP8 E4M3 (finite only, NaN = 0x7f / 0xff, largest 448), with one f32 scale per block.
    F8E4M3,
}

impl DType {
    /// All types, in the order in which `--help` lists them.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::BF16, Self::F8E4M3];

    /// The name that is printed and accepted.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F8E4M3 => "f8_e4m3",
        }
    }

    /// The type of that name, as [`name`](Self::name) prints it.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::F8E4M3 => 1,
        }
    }

    /// Bytes of a row of `hidden` elements, without padding.
    pub const fn row_bytes(self, hidden: usize) -> usize {
        self.bytes() * hidden
    }

    /// Whether rows of this type come with block scales.
    pub const fn is_scaled(self) -> bool {
        matches!(self, Self::F8E4M3)
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
