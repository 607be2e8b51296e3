//! Experts that scale in a layout: [`Arranged`], a rank's layout with rows and results of its own.

use campanile_gpu::{Address, Cache, Coherence, DeviceMemory, Stream};

use super::{DeviceProblem, floats};
use crate::MoeConfig;
use crate::exchange::Layout;
use crate::gpu::{DeviceLayout, DeviceOutputs, DeviceRows, GpuMoe, GpuMoeError, LayoutCopy, arguments};
use crate::protocol::Set;

/// A layout, the rows that are copied into it, and the results of the experts.
#[derive(Debug)]
pub struct Arranged {
    /// The layout.
    pub layout: DeviceLayout,
    /// Where the rows go, if they are not only mapped.
    pub copy: Option<LayoutCopy>,
    results: DeviceRows,
    memories: Vec<DeviceMemory>,
}

impl Arranged {
    /// Memory for the most rows that can come to `moe`. Not `copied`, the experts read the rows in place, by the map. `shift`
    /// bytes in front of rows and results, up to whole elements, take their alignment away.
    ///
    /// # Errors
    /// [`GpuMoeError`] of the layout and of the calls.
    pub fn new(
        moe: &GpuMoe,
        layout: Layout,
        alignment: usize,
        copied: bool,
        shift: usize,
        cache: &Cache,
    ) -> Result<Self, GpuMoeError> {
        let layout = DeviceLayout::new(moe, layout, alignment, cache)?;
        let (config, rows) = (moe.plan.config(), layout.rows());
        let mut memories = Vec::new();
        // The experts load and store elements, which have an alignment of their own.
        let mut allocate = |bytes: usize, element: usize| -> Result<Address, GpuMoeError> {
            let shift = shift.next_multiple_of(element);
            let memory = moe.device.allocate((bytes + shift).next_multiple_of(16), Coherence::Coarse)?;
            let address = memory.address() + shift as Address;
            memories.push(memory);
            Ok(address)
        };
        // Without padding between rows, so that they are aligned where they happen to be.
        let stride = config.combine_dtype.row_bytes(config.hidden);
        let results = DeviceRows { data: allocate(rows * stride, config.combine_dtype.bytes())?, stride };
        let stride = config.dtype.row_bytes(config.hidden);
        let copy = if copied {
            let data = allocate(rows * stride, config.dtype.bytes())?;
            let scales = allocate(rows * config.scales * 4, 4)?;
            Some(LayoutCopy { x: DeviceRows { data, stride }, scales, rows })
        } else {
            None
        };
        Ok(Self { layout, copy, results, memories })
    }

    /// Fills rows, scales and results with a pattern.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn poison(&self, stream: &Stream, value: u8) -> Result<(), GpuMoeError> {
        for memory in &self.memories {
            // SAFETY: the memory lives as long as `self`; the stream is the rank's.
            unsafe { stream.fill(memory, value)? };
        }
        Ok(())
    }

    /// The results, for a combine.
    pub fn outputs(&self) -> DeviceOutputs<'_> {
        match self.layout.layout() {
            Layout::ExpertMajor => DeviceOutputs::ExpertMajor { rows: self.results, layout: &self.layout },
            _ => DeviceOutputs::Compact(self.results),
        }
    }

    /// The rows and scales that were copied, `rows` of them. The stream's earlier work is waited for.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn read_rows(
        &self,
        stream: &Stream,
        config: &MoeConfig,
        rows: usize,
    ) -> Result<(Vec<u8>, Vec<f32>), GpuMoeError> {
        let Some(copy) = &self.copy else { return Ok((Vec::new(), Vec::new())) };
        let read = |memory: &DeviceMemory, address: Address, bytes: usize| -> Result<Vec<u8>, GpuMoeError> {
            let mut read = vec![0; bytes];
            if bytes > 0 {
                stream.download(memory, (address - memory.address()) as usize, &mut read)?;
            }
            Ok(read)
        };
        let x = read(&self.memories[1], copy.x.data, rows * copy.x.stride)?;
        Ok((x, floats(&read(&self.memories[2], copy.scales, rows * config.scales * 4)?)))
    }

    /// Launches layout and experts of `moe` on the open round of `set`; factors as for [`GpuMoe::scale`].
    ///
    /// # Errors
    /// Those of the calls.
    ///
    /// # Safety
    /// As [`GpuMoe::scale`]; `self` is of `moe`, and lives until the stream is done.
    pub unsafe fn arrange_and_scale(
        &self,
        moe: &GpuMoe,
        set: Set,
        stream: &Stream,
        factors: Address,
    ) -> Result<(), GpuMoeError> {
        let argument = arguments::ScaleArranged {
            scale: moe.scale_argument(set, factors)?,
            map: self.layout.map(),
            total: self.layout.offsets() + 4 * self.layout.groups() as Address,
            x: self.copy.map_or(0, |copy| copy.x.data),
            x_stride: self.copy.map_or(0, |copy| copy.x.stride as u64),
            y: self.results.data,
            y_stride: self.results.stride as u64,
        };
        // SAFETY: own memory, with room for the most rows that can come, and the caller's promise for the factors.
        unsafe {
            moe.arrange(set, stream, &self.layout, self.copy.as_ref())?;
            moe.kernels.scale_arranged.launch(stream, &argument)?;
        }
        Ok(())
    }

    /// Launches a whole round of `part` on its stream: dispatch, layout, experts, combine.
    ///
    /// # Errors
    /// Those of the calls.
    ///
    /// # Safety
    /// As [`GpuMoe::launch_round`]; `self` is of `moe`, and lives as long as `part`.
    pub unsafe fn launch_round(&self, moe: &GpuMoe, set: Set, part: &DeviceProblem) -> Result<(), GpuMoeError> {
        // SAFETY: the caller's promise.
        unsafe {
            moe.dispatch(set, &part.stream, &part.tokens)?;
            self.arrange_and_scale(moe, set, &part.stream, part.factors)?;
            moe.combine_from(set, &part.stream, self.outputs(), &part.out)
        }
    }
}
