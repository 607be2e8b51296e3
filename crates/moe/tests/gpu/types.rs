//! Payload types: FP8 FNUZ, FP4, and bf16 quantised inside dispatch, bit for bit as the model, which the host engine is held
//! against too.

use campanile_gpu::Pins;
use campanile_moe::DType;
use campanile_moe::gpu::{GpuMoeOptions, Index};

use crate::case::Case;
use crate::emulated::{cache, devices};

fn check(cases: &[Case], wave: u32, options: &GpuMoeOptions) {
    for (schedule, case) in cases.iter().enumerate() {
        let Some(devices) = devices(case.tokens.len(), wave, schedule as u64) else { return };
        case.check(&devices, options, &cache(), 2).unwrap();
    }
}

#[test]
fn types_wave_32() {
    check(&Case::types(3), 32, &GpuMoeOptions::default());
}

#[test]
fn types_wave_64() {
    check(&Case::types(3), 64, &GpuMoeOptions::default());
}

/// Many waves share a token, and one wave has many.
#[test]
fn geometry_is_free() {
    for (blocks, threads) in [(1, 32), (7, 64), (2, 512)] {
        let pins = Pins { blocks: Some(blocks), threads: Some(threads), shared_bytes: None };
        let options = GpuMoeOptions { dispatch: pins, combine: pins, ..GpuMoeOptions::default() };
        for (hidden, scales) in [(1152, 9), (1152, 1), (1031, 8)] {
            let tokens = [9, 1];
            let case = Case { dtype: DType::F8E4M3, hidden, scales, quantize: true, ..Case::new(&tokens) };
            check(&[Case { index: Index::I64, ..case }], 32, &options);
        }
    }
}
