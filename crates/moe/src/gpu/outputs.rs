//! Where the experts left their results: [`DeviceOutputs`], and a combine of them.

use campanile_gpu::{Address, Stream};

use super::{DeviceLayout, DeviceOut, GpuMoe, GpuMoeError, arguments};
use crate::exchange::Layout;
use crate::protocol::{Ready, Set};
use arguments::{RECEIVE, SEND};

/// Rows in memory of a rank's device. 16-byte alignment of address and stride is fastest; then rows that are read are read
/// to the next multiple of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRows {
    /// The first row.
    pub data: Address,
    /// Bytes from one row to the next.
    pub stride: usize,
}

/// The results of one round, one a received row, of the combine type. As [`Outputs`](crate::Outputs) on the host.
#[derive(Clone, Copy, Debug, Default)]
pub enum DeviceOutputs<'a> {
    /// In the window, at [`GpuMoe::outputs`]: nothing is copied.
    #[default]
    InPlace,
    /// In rows of the caller's, ordered by (source rank, source token). By pull they are copied into the window, by push
    /// sent from where they are.
    Compact(DeviceRows),
    /// In rows of the caller's, in an expert-major layout. A token's rows here are summed in slot order, in f32, rounded
    /// once, by the owner.
    ExpertMajor {
        /// The results; rows that pad a group are not looked at.
        rows: DeviceRows,
        /// The layout, arranged for this round.
        layout: &'a DeviceLayout,
    },
}

impl GpuMoe {
    /// As [`combine`](Self::combine), for results that may be elsewhere. By pull that is one launch more.
    ///
    /// # Errors
    /// As [`combine`](Self::combine).
    ///
    /// # Safety
    /// As [`combine`](Self::combine), for the rows of `outputs` too.
    pub unsafe fn combine_from(
        &self,
        set: Set,
        stream: &Stream,
        outputs: DeviceOutputs<'_>,
        out: &DeviceOut,
    ) -> Result<(), GpuMoeError> {
        self.check_out(out)?;
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(push) = &self.push {
                return self.launch_push(push, set, stream, Some(outputs), Some(out));
            }
            self.copy_outputs(set, stream, outputs)?;
            self.launch_combine(set, stream, out, SEND | RECEIVE)
        }
    }

    /// As [`combine_send`](Self::combine_send), for results that may be elsewhere.
    ///
    /// # Errors
    /// As [`combine_send`](Self::combine_send).
    ///
    /// # Safety
    /// As [`combine_send`](Self::combine_send), for the rows of `outputs` too.
    pub unsafe fn combine_send_from(
        &self,
        set: Set,
        stream: &Stream,
        outputs: DeviceOutputs<'_>,
    ) -> Result<(), GpuMoeError> {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(push) = &self.push {
                return self.launch_push(push, set, stream, Some(outputs), None);
            }
            self.copy_outputs(set, stream, outputs)?;
            self.launch_ready(set, stream, Ready::Pull)
        }
    }

    /// Brings results that are elsewhere into the window.
    ///
    /// # Safety
    /// As [`combine_from`](Self::combine_from).
    unsafe fn copy_outputs(&self, set: Set, stream: &Stream, outputs: DeviceOutputs<'_>) -> Result<(), GpuMoeError> {
        if !matches!(outputs, DeviceOutputs::InPlace) {
            let argument = arguments::Outputs { common: self.common(set)?, results: self.results(outputs)? };
            // SAFETY: own memory, and the caller's promise for the rows.
            unsafe { self.kernels.outputs.launch(stream, &argument)? };
        }
        Ok(())
    }

    /// What the kernels need to know of them.
    pub(super) fn results(&self, outputs: DeviceOutputs<'_>) -> Result<arguments::Results, GpuMoeError> {
        let config = self.plan.config();
        let row_bytes = config.combine_dtype.row_bytes(config.hidden);
        let results = arguments::Results { row_bytes: row_bytes as u64, ..arguments::Results::default() };
        let at = |rows: DeviceRows| -> Result<arguments::Results, GpuMoeError> {
            self.check_row("stride of the results is", rows.stride, row_bytes)?;
            Ok(arguments::Results { data: rows.data, stride: rows.stride as u64, ..results })
        };
        match outputs {
            DeviceOutputs::InPlace => Ok(results),
            DeviceOutputs::Compact(rows) => Ok(arguments::Results { layout: 1, ..at(rows)? }),
            DeviceOutputs::ExpertMajor { rows, layout } => {
                if layout.layout() != Layout::ExpertMajor {
                    return Err(GpuMoeError::Argument {
                        what: "layout of the results is",
                        given: layout.layout().name().to_owned(),
                        allowed: "give an expert-major one".to_owned(),
                    });
                }
                layout.check_is_of(self)?;
                let (places, arranged) = (layout.places(), layout.arranged());
                Ok(arguments::Results { layout: 2, places, arranged, ..at(rows)? })
            }
        }
    }
}
