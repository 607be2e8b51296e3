//! Layouts: map, offsets and rows as the host has them, results summed to the same bits as the model on the grid of cases, by
//! pull and by push; what does not fit is refused.

use campanile_core::MoeCombine;
use campanile_gpu::Pins;
use campanile_moe::exchange::Layout;
use campanile_moe::gpu::exchange::{Arranged, DeviceProblem};
use campanile_moe::gpu::{DeviceLayout, FailureKind, GpuMoe, GpuMoeError, GpuMoeOptions, Index, LayoutCopy};
use campanile_moe::protocol::{Phase, Set};

use crate::case::{Case, PATIENCE};
use crate::emulated::{cache, devices, failure, pair};

/// Every case in one layout, and some of each scaled type, others at each wave; `cargo xtask validate` runs all of them. Ways of
/// combining alternate with the waves, maps and copies with the cases.
fn grid(layout: Layout, ranks: usize, alignment: usize) {
    for (wave, by) in [(32, MoeCombine::Pull), (64, MoeCombine::Push)] {
        let Some(devices) = devices(ranks, wave, alignment as u64) else { return };
        let scaled = Case::types(ranks).into_iter().skip((wave as usize / 32 + alignment) % 5).step_by(5);
        for (number, case) in Case::all(ranks).into_iter().chain(scaled).enumerate() {
            let case = Case { layout, alignment, combine: by, copied: number % 3 != 2, ..case };
            case.check(&devices, &GpuMoeOptions::default(), &cache(), 2).unwrap();
        }
    }
}

#[test]
fn compact() {
    grid(Layout::Compact, 2, 1);
}

#[test]
fn expert_major() {
    grid(Layout::ExpertMajor, 3, 4);
}

#[test]
fn one_rank_and_eight() {
    for (ranks, wave, combine) in [(1, 64, MoeCombine::Push), (8, 32, MoeCombine::Pull)] {
        let Some(devices) = devices(ranks, wave, 3) else { return };
        let cases = Case::all(ranks);
        for (at, layout) in [(1, Layout::Compact), (5, Layout::ExpertMajor), (10, Layout::ExpertMajor)] {
            let case = Case { layout, combine, alignment: 16, ..cases[at].clone() };
            case.check(&devices, &GpuMoeOptions::default(), &cache(), 2).unwrap();
        }
    }
}

/// More experts than are placed at a time, and more slots.
#[test]
fn many_experts_and_slots() {
    let Some(devices) = devices(1, 32, 0) else { return };
    let base = Case { layout: Layout::ExpertMajor, hidden: 8, scaled_experts: false, ..Case::new(&[3]) };
    for case in [Case { experts: 2500, topk: 40, ..base.clone() }, Case { topk: 2100, alignment: 1, ..base }] {
        case.check(&devices, &GpuMoeOptions::default(), &cache(), 1).unwrap();
    }
}

/// Places do not depend on the geometry of what came before: blocks count rows of others.
#[test]
fn one_layout_whatever_the_blocks() {
    let Some(devices) = devices(2, 64, 1) else { return };
    let pins = Pins { blocks: Some(5), threads: Some(64), shared_bytes: None };
    let options = GpuMoeOptions { arrange: pins, ..GpuMoeOptions::default() };
    for layout in [Layout::Compact, Layout::ExpertMajor] {
        let case = Case { layout, hidden: 1100, ..Case::new(&[50, 7]) };
        case.check(&devices, &options, &cache(), 1).unwrap();
    }
}

fn dispatched(operations: &[GpuMoe], parts: &[DeviceProblem]) {
    for (moe, part) in operations.iter().zip(parts) {
        // SAFETY: the parts are alive until their streams are done.
        unsafe { moe.dispatch(Set(0), &part.stream, &part.tokens).unwrap() };
    }
    for (moe, part) in operations.iter().zip(parts) {
        moe.finish(&part.stream, PATIENCE).unwrap();
    }
}

/// More rows than the caller has room for are an error that says how many; nothing is written.
#[test]
fn an_overflow_is_refused() {
    let Some((operations, parts)) = pair(&GpuMoeOptions::default()) else { return };
    dispatched(&operations, &parts);
    let (moe, part) = (&operations[0], &parts[0]);
    let arranged = Arranged::new(moe, Layout::Compact, 1, true, 0, &cache()).unwrap();
    let rows = moe.received(Set(0), &part.stream).unwrap().src.len() / 2;
    arranged.poison(&part.stream, 0x5a).unwrap();
    let copy = LayoutCopy { rows: rows - 1, ..arranged.copy.unwrap() };
    // SAFETY: the memory of the layout lives until the stream is done.
    unsafe { moe.arrange(Set(0), &part.stream, &arranged.layout, Some(&copy)).unwrap() };
    let error = moe.finish(&part.stream, PATIENCE).unwrap_err().to_string();
    let found = failure(moe);
    assert_eq!((found.kind, found.expected, found.seen), (FailureKind::Overflow, rows as u64 - 1, rows as u64));
    assert!(error.contains(&format!("takes {rows} rows")), "{error}");
    let (x, _) = arranged.read_rows(&part.stream, moe.plan().config(), rows).unwrap();
    assert!(x.iter().all(|byte| *byte == 0x5a));
}

/// Results of another round's layout, and a layout without a round.
#[test]
fn stale_layouts_are_misuse() {
    for dispatches in [true, false] {
        let Some((operations, parts)) = pair(&GpuMoeOptions::default()) else { return };
        let (moe, part) = (&operations[0], &parts[0]);
        let arranged = Arranged::new(moe, Layout::ExpertMajor, 2, true, 0, &cache()).unwrap();
        // SAFETY: parts and layout live until the streams are done.
        let phase = unsafe {
            if dispatches {
                dispatched(&operations, &parts);
                moe.combine_from(Set(0), &part.stream, arranged.outputs(), &part.out).unwrap();
                Phase::CombineSend
            } else {
                moe.arrange(Set(0), &part.stream, &arranged.layout, None).unwrap();
                Phase::DispatchReceive
            }
        };
        moe.finish(&part.stream, PATIENCE).unwrap_err();
        assert_eq!((failure(moe).kind, failure(moe).phase), (FailureKind::Misuse, phase));
    }
}

#[test]
fn layouts_that_are_none_are_refused() {
    let Some(devices) = devices(1, 32, 0) else { return };
    let case = Case::new(&[2]);
    let operations = GpuMoe::in_process(&devices, &case.config(1), &GpuMoeOptions::default(), &cache()).unwrap();
    let moe = &operations[0];
    let refused = |layout, alignment| match DeviceLayout::new(moe, layout, alignment, &cache()) {
        Err(error @ GpuMoeError::Argument { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(refused(Layout::Rows, 1).contains("layout is rows"));
    assert!(refused(Layout::ExpertMajor, 0).contains("alignment is 0"));
    assert!(refused(Layout::ExpertMajor, 1 << 30).contains("rows at most"));
    // A compact layout has no list of places.
    let compact = Arranged::new(moe, Layout::Compact, 1, true, 0, &cache()).unwrap();
    let rows = compact.copy.unwrap().x;
    let outputs = campanile_moe::gpu::DeviceOutputs::ExpertMajor { rows, layout: &compact.layout };
    let part = DeviceProblem::new(moe, &case.problem(1), Index::I32, 0).unwrap();
    // SAFETY: it is refused.
    let error = unsafe { moe.combine_from(Set(0), &part.stream, outputs, &part.out) }.unwrap_err().to_string();
    assert!(error.contains("give an expert-major one"), "{error}");
}
