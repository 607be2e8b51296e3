//! Layouts on the device: [`DeviceLayout`], the received rows in another order. As the host's (`layout.rs` of the crate).
//!
//! A layout owns the map from its rows to those in the window, and where each group of rows begins; both are made by a
//! launch and stay on the device. Rows are copied into memory of the caller's, or, without that, only mapped: a grouped GEMM
//! that gathers needs no copy. It is of one round at a time, the last one that it was arranged for.

use campanile_core::{Arena, ArenaError, ArenaRegion};
use campanile_gpu::{Address, Cache, Coherence, DeviceMemory, Stream};

use super::addresses::check_words;
use super::kernels::Kernels;
use super::memory::StateError;
use super::{DeviceRows, GpuMoe, GpuMoeError, arguments};
use crate::exchange::Layout;
use crate::protocol::Set;

/// Bytes of an entry of the map.
const PLACE_BYTES: usize = 16;

/// A layout of the rows of a round: compact or expert-major.
#[derive(Debug)]
pub struct DeviceLayout {
    kernel: campanile_gpu::Plan<arguments::Arrange>,
    layout: Layout,
    alignment: usize,
    rows: usize,
    groups: usize,
    map: ArenaRegion,
    offsets: ArenaRegion,
    places: ArenaRegion,
    arranged: ArenaRegion,
    memory: DeviceMemory,
}

/// Where the rows of a layout are copied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutCopy {
    /// Rows of H elements of the type of the rows.
    pub x: DeviceRows,
    /// `[rows, S]` f32; not looked at unless the type is scaled. 0 leaves them out.
    pub scales: Address,
    /// Rows that there is room for. If more come, the launch fails with
    /// [`FailureKind::Overflow`](super::FailureKind::Overflow) and writes nothing.
    pub rows: usize,
}

/// Map and offsets of a layout, read back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutMap {
    /// Source rank, row, slot (`u32::MAX` if compact) and source token of each row of the layout; `None` where a row pads.
    pub rows: Vec<Option<[u32; 4]>>,
    /// First row of each group, then the rows in all.
    pub offsets: Vec<u32>,
}

impl DeviceLayout {
    /// A layout of what comes to `moe`. Groups of experts start at a multiple of `alignment` rows; compact rows have no
    /// gaps. Compiles and allocates.
    ///
    /// # Errors
    /// [`GpuMoeError::Argument`] for an alignment of 0, for rows, which are used where they are, or for more rows in the
    /// worst case than a u32 counts; those of the calls.
    pub fn new(moe: &GpuMoe, layout: Layout, alignment: usize, cache: &Cache) -> Result<Self, GpuMoeError> {
        let (config, ranks) = (moe.plan.config(), moe.plan.ranks);
        let kernel = match layout {
            Layout::Rows => {
                return Err(GpuMoeError::Argument {
                    what: "layout is",
                    given: layout.name().to_owned(),
                    allowed: "rows are used where they are; give compact or expert-major".to_owned(),
                });
            }
            Layout::Compact => "moe_compact",
            Layout::ExpertMajor => "moe_expert_major",
        };
        let [groups, rows] = extent(moe, layout, alignment);
        if alignment == 0 || rows >= u32::MAX as usize {
            return Err(GpuMoeError::Argument {
                what: "alignment is",
                given: format!("{alignment}, which makes {rows} rows at most"),
                allowed: format!("at least 1 row, and less than {} rows in all", u32::MAX),
            });
        }
        let mut arena = Arena::new();
        let mut carve = |name, stride, count| arena.carve(name, "word", stride, count);
        let regions = || -> Result<_, ArenaError> {
            let lists = if layout == Layout::ExpertMajor { ranks * config.capacity } else { 0 };
            Ok((
                carve("map", PLACE_BYTES, rows)?,
                carve("offsets", 4, groups + 1)?,
                carve("places", 4 * config.topk, lists)?,
                carve("arranged", 4, 1)?,
            ))
        };
        let (map, offsets, places, arranged) = { regions }().map_err(StateError::from)?;
        let kernel = Kernels::arrange(&moe.device, config, kernel, moe.options.arrange, cache)?;
        let memory = moe.device.allocate(arena.bytes(), Coherence::Coarse)?;
        // Arranged for the round before the first, which never was.
        let before = moe.options.first.prev().0.to_ne_bytes();
        moe.device.stream()?.upload(&memory, arranged.offset, &before)?;
        Ok(Self { kernel, layout, alignment, rows, groups, map, offsets, places, arranged, memory })
    }

    /// Refuses a layout of another operation, whose memory has no room for what comes to this one.
    pub(super) fn check_is_of(&self, moe: &GpuMoe) -> Result<(), GpuMoeError> {
        let (mine, needed) = ([self.groups, self.rows], extent(moe, self.layout, self.alignment));
        if mine == needed && self.memory.device().ordinal() == moe.device.ordinal() {
            return Ok(());
        }
        let of = |[groups, rows]: [usize; 2], ordinal| format!("{groups} groups, {rows} rows on device {ordinal}");
        Err(GpuMoeError::Argument {
            what: "layout is of another operation:",
            given: of(mine, self.memory.device().ordinal()),
            allowed: format!("this one has {}", of(needed, moe.device.ordinal())),
        })
    }

    /// Compact or expert-major.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Rows that it has at most, padding included.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Groups: the sources of a compact layout, the local experts of an expert-major one.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// `[rows]` × 4 u32 on the device: source rank, row, slot, source token of each row of the layout. The slot of a compact
    /// row is `u32::MAX`; a row that pads a group is `u32::MAX` throughout.
    pub fn map(&self) -> Address {
        self.address(&self.map)
    }

    /// `[groups + 1]` u32 on the device: the first row of each group, and the rows in all, with padding. How many rows an
    /// expert has without padding is told by [`GpuMoe::expert_counts`].
    pub fn offsets(&self) -> Address {
        self.address(&self.offsets)
    }

    /// `[source][capacity][K]` u32 on the device, expert-major: rows of the layout of each received row, in slot order,
    /// ended by `u32::MAX` if there are fewer.
    pub(super) fn places(&self) -> Address {
        self.address(&self.places)
    }

    /// The epoch that it was arranged for.
    pub(super) fn arranged(&self) -> Address {
        self.address(&self.arranged)
    }

    fn address(&self, region: &ArenaRegion) -> Address {
        self.memory.address() + region.offset as Address
    }

    /// Reads map and offsets, after all earlier work of the stream.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn read(&self, stream: &Stream) -> Result<LayoutMap, GpuMoeError> {
        let words = |region: &ArenaRegion, count: usize| -> Result<Vec<u32>, GpuMoeError> {
            let mut bytes = vec![0; count * 4];
            if !bytes.is_empty() {
                stream.download(&self.memory, region.offset, &mut bytes)?;
            }
            Ok(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).collect())
        };
        let offsets = words(&self.offsets, self.groups + 1)?;
        let map = words(&self.map, offsets[self.groups] as usize * 4)?;
        let place = |place: &[u32; 4]| (place[0] != u32::MAX).then_some(*place);
        Ok(LayoutMap { rows: map.as_chunks::<4>().0.iter().map(place).collect(), offsets })
    }
}

/// Groups, and rows at most, padding included, of a layout that is not in place.
fn extent(moe: &GpuMoe, layout: Layout, alignment: usize) -> [usize; 2] {
    let (config, ranks) = (moe.plan.config(), moe.plan.ranks);
    let places = ranks.saturating_mul(config.capacity);
    if layout == Layout::Compact {
        return [ranks, places];
    }
    let (experts, slots) = (moe.plan.local_experts(), places.saturating_mul(config.topk));
    // A group without rows takes none.
    let padded = experts.min(slots).saturating_mul(alignment.saturating_sub(1));
    [experts, slots.saturating_add(padded)]
}

impl GpuMoe {
    /// Arranges the rows of the open round of `set` in `layout`: one launch, after the dispatch. With `copy` the rows are
    /// copied in that order; rows that pad a group are zeroed.
    ///
    /// # Errors
    /// [`GpuMoeError::Argument`] for rows that do not fit their stride, or a layout of another operation; those of the call.
    /// What goes wrong on the device is told by [`check`](Self::check).
    ///
    /// # Safety
    /// As [`dispatch`](Self::dispatch), for the memory of `copy`. `layout` was made for this operation.
    pub unsafe fn arrange(
        &self,
        set: Set,
        stream: &Stream,
        layout: &DeviceLayout,
        copy: Option<&LayoutCopy>,
    ) -> Result<(), GpuMoeError> {
        let config = self.plan.config();
        let row_bytes = config.dtype.row_bytes(config.hidden);
        layout.check_is_of(self)?;
        if let Some(copy) = copy {
            self.check_row("stride of the layout's rows is", copy.x.stride, row_bytes)?;
            check_words("scales of the layout", copy.scales, 4)?;
        }
        let limit = copy.map_or(layout.rows, |copy| copy.rows.min(layout.rows));
        let argument = arguments::Arrange {
            common: self.common(set)?,
            x: copy.map_or(0, |copy| copy.x.data),
            x_stride: copy.map_or(0, |copy| copy.x.stride as u64),
            row_bytes: row_bytes as u64,
            scales: copy.filter(|_| config.scales > 0).map_or(0, |copy| copy.scales),
            map: layout.map(),
            offsets: layout.offsets(),
            places: layout.places(),
            arranged: layout.arranged(),
            expert_counts: self.expert_counts(set),
            limit: limit as u32,
            scale_count: config.scales as u32,
            local_experts: self.plan.local_experts() as u32,
            alignment: layout.alignment as u32,
        };
        // SAFETY: own memory, and the caller's promise for the copy.
        unsafe { layout.kernel.launch(stream, &argument)? };
        Ok(())
    }
}
