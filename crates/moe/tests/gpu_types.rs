//! The payload types of the operation on GPUs, in the emulator: FP8 FNUZ, FP4, and bf16 quantised inside dispatch, at waves
//! 32 and 64, bit for bit as the model, which the host engine is held against too.

#[allow(dead_code, reason = "this test uses a part")]
#[path = "../examples/moe_gpu/case.rs"]
mod case;
mod emulated;

use campanile_gpu::Pins;
use campanile_moe::DType;
use campanile_moe::gpu::{GpuMoeOptions, Index};

use case::Case;
use emulated::{cache, devices};

fn check(cases: &[Case], wave: u32, options: &GpuMoeOptions) {
    for (schedule, case) in cases.iter().enumerate() {
        let Some(devices) = devices(case.tokens.len(), wave, schedule as u64) else { return };
        case.check(&devices, options, &cache(), 2).unwrap();
    }
}

fn given() -> Vec<Case> {
    let base = Case::new(&[5, 9, 0]);
    let fnuz = Case { dtype: DType::F8E4M3FNUZ, scales: 3, ..base.clone() };
    let fp4 = Case { dtype: DType::F4E2M1, scales: 2, ..base };
    vec![
        fnuz.clone(),
        Case { hidden: 101, scales: 101, combine_dtype: DType::F32, ..fnuz },
        fp4.clone(),
        // An odd number of elements, blocks that begin within a byte, odd addresses.
        Case { hidden: 25, scales: 5, combine_dtype: DType::F32, shift: 1, ..fp4.clone() },
        Case { hidden: 1, scales: 1, combine_dtype: DType::F16, ..fp4.clone() },
        Case { hidden: 1536, scales: 48, ..fp4 },
    ]
}

#[test]
fn given_rows_wave_32() {
    check(&given(), 32, &GpuMoeOptions::default());
}

#[test]
fn given_rows_wave_64() {
    check(&given(), 64, &GpuMoeOptions::default());
}

/// The first three shapes with FNUZ, all with OCP's: only the codes are another type's.
fn with_types<S: Copy>(shapes: &[S], case: impl Fn((DType, S)) -> Case) -> Vec<Case> {
    let all = shapes.iter().map(|shape| (DType::F8E4M3, *shape));
    all.chain(shapes[..3].iter().map(|shape| (DType::F8E4M3FNUZ, *shape))).map(case).collect()
}

/// Blocks of a power of two of vectors, also as many as a wave of 64 has lanes, and one block more than there are elements
/// for; then sizes that are no power of two, and more than a wave.
fn quantized_by_blocks() -> Vec<Case> {
    let shapes = [(1152, 9), (272, 18), (1120, 10), (16, 1), (48, 3), (2048, 2), (2048, 1), (1600, 2)];
    let case = |(dtype, (hidden, scales))| Case {
        dtype,
        hidden,
        scales,
        quantize: true,
        combine_dtype: DType::F32,
        ..Case::new(&[3, 9, 1])
    };
    with_types(&shapes, case)
}

/// Any others: odd sizes and addresses, blocks of any size, blocks without elements.
fn quantized_by_elements() -> Vec<Case> {
    let base = Case { quantize: true, ..Case::new(&[4, 0, 7]) };
    let shapes = [(1, 1, 0), (7, 2, 0), (5, 4, 0), (40, 40, 0), (130, 3, 0), (1030, 9, 0), (64, 4, 2), (40, 3, 1)];
    let case = |(dtype, (hidden, scales, shift))| Case { dtype, hidden, scales, shift, ..base.clone() };
    with_types(&shapes, case)
}

#[test]
fn blocks_are_quantised_wave_32() {
    check(&quantized_by_blocks(), 32, &GpuMoeOptions::default());
}

#[test]
fn blocks_are_quantised_wave_64() {
    check(&quantized_by_blocks(), 64, &GpuMoeOptions::default());
}

#[test]
fn elements_are_quantised_wave_32() {
    check(&quantized_by_elements(), 32, &GpuMoeOptions::default());
}

#[test]
fn elements_are_quantised_wave_64() {
    check(&quantized_by_elements(), 64, &GpuMoeOptions::default());
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
