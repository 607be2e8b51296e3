//! Arenas: a window carved into named regions.
//!
//! Sizes are computed once, by [`Arena::carve`], before any memory exists; the same arena on every rank gives the same
//! offsets on every rank. [`Arena`] prints itself as a map.

use std::fmt;

/// Alignment of every region of an arena, in bytes: two cache-line pairs, and what GPU bulk copies ask for.
pub const REGION_ALIGNMENT: usize = 256;

/// A named, typed part of an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaRegion {
    /// Name, unique in its arena.
    pub name: String,
    /// What an element is, for people: `"bf16[7168]"`, `"word"`.
    pub element: String,
    /// Offset of the first byte from the start of the window; a multiple of [`REGION_ALIGNMENT`].
    pub offset: usize,
    /// Bytes from one element to the next.
    pub stride: usize,
    /// Number of elements.
    pub count: usize,
}

impl ArenaRegion {
    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.stride * self.count
    }

    /// Offset of element `index` from the start of the window.
    ///
    /// # Panics
    /// If `index` is not below `count` (in debug builds).
    pub fn at(&self, index: usize) -> usize {
        debug_assert!(index < self.count, "element {index} of region {} with {}", self.name, self.count);
        self.offset + self.stride * index
    }
}

/// The layout of a window.
///
/// ```
/// use campanile_core::Arena;
/// let mut arena = Arena::new();
/// let words = arena.carve("words", "word", 64, 3).unwrap();
/// let rows = arena.carve("rows", "bf16[8]", 16, 100).unwrap();
/// assert_eq!((words.offset, rows.offset), (0, 256));
/// assert_eq!(arena.bytes(), 256 + 1792);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arena {
    regions: Vec<ArenaRegion>,
    bytes: usize,
}

/// A region that cannot be carved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// The sizes overflow the address space.
    #[error("region {name}: {count} elements of {stride} bytes do not fit into the address space")]
    TooLarge {
        /// The region.
        name: String,
        /// Bytes an element.
        stride: usize,
        /// Elements asked for.
        count: usize,
    },
    /// The name is taken.
    #[error("region {name} exists already; names are unique in an arena")]
    Duplicate {
        /// The region.
        name: String,
    },
}

impl Arena {
    /// An arena without regions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a region of `count` elements, `stride` bytes each, behind the last one. Either may be 0.
    ///
    /// # Errors
    /// [`ArenaError`] if the sizes overflow or the name is taken.
    pub fn carve(&mut self, name: &str, element: &str, stride: usize, count: usize) -> Result<ArenaRegion, ArenaError> {
        if self.region(name).is_some() {
            return Err(ArenaError::Duplicate { name: name.to_owned() });
        }
        let end = stride
            .checked_mul(count)
            .and_then(|bytes| bytes.checked_add(self.bytes))
            .and_then(|end| end.checked_next_multiple_of(REGION_ALIGNMENT))
            .filter(|&end| end <= isize::MAX as usize)
            .ok_or_else(|| ArenaError::TooLarge { name: name.to_owned(), stride, count })?;
        let region =
            ArenaRegion { name: name.to_owned(), element: element.to_owned(), offset: self.bytes, stride, count };
        self.bytes = end;
        self.regions.push(region.clone());
        Ok(region)
    }

    /// Bytes of a window that holds it all.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The region of that name.
    pub fn region(&self, name: &str) -> Option<&ArenaRegion> {
        self.regions.iter().find(|region| region.name == name)
    }

    /// The regions in order of offset.
    pub fn regions(&self) -> &[ArenaRegion] {
        &self.regions
    }
}

impl fmt::Display for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for region in &self.regions {
            writeln!(
                f,
                "{:>14} {:<20} {:>12} x {:<16} {:>14} bytes",
                region.offset,
                region.name,
                region.count,
                region.element,
                region.bytes()
            )?;
        }
        write!(f, "{:>14} total", self.bytes)
    }
}
