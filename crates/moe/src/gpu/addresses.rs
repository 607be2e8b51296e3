//! Addresses that a caller gives: what can be told of them without the device is refused before a launch. An access that is
//! not aligned is the end of a GPU's whole context.

use campanile_gpu::Address;

use super::{DeviceOut, DeviceTokens, GpuMoe, GpuMoeError, Index};

impl GpuMoe {
    /// Refuses rows of x that do not fit their stride, and words that are not aligned.
    pub(super) fn check_tokens(&self, tokens: &DeviceTokens) -> Result<(), GpuMoeError> {
        let config = self.plan.config();
        self.check_row("stride of x is", tokens.stride, config.x_dtype().row_bytes(config.hidden))?;
        check_count(tokens.count)?;
        check_words("topk_idx", tokens.topk_idx, if tokens.index == Index::I64 { 8 } else { 4 })?;
        if config.x_scales() > 0 {
            check_words("scales", tokens.scales, 4)?;
        }
        if config.weighted {
            check_words("topk_weights", tokens.topk_weights, 4)?;
        }
        Ok(())
    }

    /// Refuses sums that do not fit their stride, words that are not aligned, and weights where there are none.
    pub(super) fn check_out(&self, out: &DeviceOut) -> Result<(), GpuMoeError> {
        let config = self.plan.config();
        self.check_row("stride of out is", out.stride, config.combine_dtype.row_bytes(config.hidden))?;
        check_count(out.count)?;
        check_words("out_weights", out.out_weights, 4)?;
        if out.out_weights != 0 && !config.weighted {
            return Err(GpuMoeError::Argument {
                what: "out_weights",
                given: "is given".to_owned(),
                allowed: "the operation has no weights: give 0".to_owned(),
            });
        }
        Ok(())
    }

    pub(super) fn check_row(&self, what: &'static str, stride: usize, row: usize) -> Result<(), GpuMoeError> {
        if stride >= row {
            return Ok(());
        }
        Err(GpuMoeError::Argument { what, given: format!("{stride} bytes"), allowed: format!("a row has {row}") })
    }
}

/// A number of tokens is read by every launch.
fn check_count(address: Address) -> Result<(), GpuMoeError> {
    if address == 0 {
        let allowed = "every launch reads it: give the address of a u32".to_owned();
        return Err(GpuMoeError::Argument { what: "count", given: "is at address 0".to_owned(), allowed });
    }
    check_words("count", address, 4)
}

/// Words of that many bytes begin at a multiple of it.
pub(super) fn check_words(what: &'static str, address: Address, bytes: Address) -> Result<(), GpuMoeError> {
    if address.is_multiple_of(bytes) {
        return Ok(());
    }
    let allowed = format!("words of {bytes} bytes begin at a multiple of that");
    Err(GpuMoeError::Argument { what, given: format!("is at {address:#x}"), allowed })
}
