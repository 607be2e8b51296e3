//! Calls in any order, in the emulator: whatever a caller does out of order ends within the deadline, is told, breaks no
//! device, and is over with a new generation, whose rounds have the bits of the model.

use std::time::Duration;

use campanile_core::{MoeCombine, MoeMode};
use campanile_gpu::{Coherence, DeviceMemory, Stream};
use campanile_moe::Solution;
use campanile_moe::exchange::Layout;
use campanile_moe::gpu::exchange::{Arranged, DeviceProblem};
use campanile_moe::gpu::{DeviceOut, DeviceTokens, GpuMoe, GpuMoeError, GpuMoeOptions, Index};
use campanile_moe::model::{compare, solve};
use campanile_moe::protocol::{Epoch, Set};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::case::{Case, PATIENCE};
use crate::emulated::{MODES, cache, devices, pair};

/// Sets.
const SETS: u32 = 2;
/// Calls of a rank before order is made.
const CALLS: usize = 10;
/// How often.
const SEEDS: u64 = 4;
/// How long calls may take before they are aborted.
const ENOUGH: Duration = Duration::from_millis(100);

/// One rank, and what it may call with.
struct Rank {
    moe: GpuMoe,
    part: DeviceProblem,
    /// More tokens than the capacity.
    many: DeviceMemory,
    /// Numbers of experts that there are not.
    strange: DeviceMemory,
    arranged: [Arranged; 2],
}

impl Rank {
    fn new(moe: GpuMoe, case: &Case, random: &mut Xoshiro256PlusPlus) -> Self {
        let part = DeviceProblem::new(&moe, &case.problem(1), Index::I32, 0).unwrap();
        let upload = |bytes: &[u8]| {
            let memory = moe.device().allocate(bytes.len(), Coherence::Coarse).unwrap();
            part.stream.upload(&memory, 0, bytes).unwrap();
            memory
        };
        let many = upload(&u32::MAX.to_ne_bytes());
        let slots = moe.plan().config().capacity * case.topk;
        let strange: Vec<u8> = (0..slots).flat_map(|_| (random.next_u32() as i32).to_ne_bytes()).collect();
        let strange = upload(&strange);
        let layouts = [Layout::Compact, Layout::ExpertMajor];
        let arranged = layouts.map(|layout| Arranged::new(&moe, layout, 4, true, 0, &cache()).unwrap());
        Self { moe, part, many, strange, arranged }
    }

    /// Any call, with anything that the contract of the addresses allows.
    fn call(&self, random: &mut Xoshiro256PlusPlus) -> Result<(), GpuMoeError> {
        let Self { moe, part, many, strange, arranged } = self;
        let stream: &Stream = &part.stream;
        let set = Set(random.next_u32() % (SETS + u32::from(random.next_u32().is_multiple_of(16))));
        let mut tokens: DeviceTokens = part.tokens;
        let mut out: DeviceOut = part.out;
        match random.next_u32() % 12 {
            0 => tokens.count = many.address(),
            1 => out.count = many.address(),
            2 => tokens.topk_idx = strange.address(),
            3 => tokens.stride = 1,
            _ => {}
        }
        // SAFETY: all memory lives until the streams are done, and has room for the capacity.
        unsafe {
            match random.next_u32() % 18 {
                0..=3 => moe.dispatch(set, stream, &tokens),
                4 => moe.dispatch_send(set, stream, &tokens),
                5 => moe.dispatch_receive(set, stream),
                6..=8 => moe.combine(set, stream, &out),
                9 => moe.combine_send(set, stream),
                10 => moe.combine_receive(set, stream, &out),
                11 => moe.release(set, stream),
                12 => moe.scale(set, stream, part.factors()),
                13 | 14 => {
                    let arranged = &arranged[random.next_u32() as usize % 2];
                    arranged.arrange_and_scale(moe, set, stream, part.factors())?;
                    moe.combine_from(set, stream, arranged.outputs(), &out)
                }
                15 => {
                    let arranged = &arranged[random.next_u32() as usize % 2];
                    moe.combine_send_from(set, stream, arranged.outputs())
                }
                16 => moe.check(),
                _ => {
                    if random.next_u32().is_multiple_of(8) {
                        moe.abort();
                    }
                    Ok(())
                }
            }
        }
    }
}

/// Calls of every rank, all at once; then a new generation and a round on each set.
fn disorder(mode: MoeMode, tokens: &[usize], (wave, schedule): (u32, u64), combine: MoeCombine, first: Epoch) {
    let Some(devices) = devices(tokens.len(), wave, schedule) else { return };
    let case = Case { mode, combine, ..Case::new(tokens) };
    let options = GpuMoeOptions { deadline: Some(PATIENCE), first, ..GpuMoeOptions::default() };
    let operations = GpuMoe::in_process(&devices, &case.config(SETS), &options, &cache()).unwrap();
    let mut random = Xoshiro256PlusPlus::seed_from_u64(SEEDS);
    let mut ranks: Vec<_> = operations.into_iter().map(|moe| Rank::new(moe, &case, &mut random)).collect();
    let problem = case.problem(1);
    let expected = solve(&problem);
    let count = ranks.len();
    for seed in 0..SEEDS {
        std::thread::scope(|scope| {
            for (number, rank) in ranks.iter_mut().enumerate() {
                scope.spawn(move || {
                    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed * 100 + number as u64);
                    let active: Vec<_> = (0..count).map(|_| !random.next_u32().is_multiple_of(6)).collect();
                    assert_eq!(rank.moe.set_active(&rank.part.stream, &active).is_ok(), active[number]);
                    for _ in 0..CALLS {
                        match rank.call(&mut random) {
                            Ok(()) | Err(GpuMoeError::Argument { .. } | GpuMoeError::Failed { .. }) => {}
                            Err(error) => panic!("seed {seed}, rank {number}: {error}"),
                        }
                    }
                    // What still waits does so for what nobody brings.
                    if rank.part.stream.synchronize(ENOUGH).is_err() {
                        rank.moe.abort();
                    }
                    match rank.moe.finish(&rank.part.stream, PATIENCE) {
                        Ok(()) | Err(GpuMoeError::Failed { .. }) => {}
                        Err(error) => panic!("seed {seed}, rank {number}: {error}"),
                    }
                });
            }
        });
        let mut first = ranks[0].moe.next_generation(&ranks[0].part.stream).unwrap();
        for rank in &ranks[1..] {
            for (first, theirs) in first.iter_mut().zip(rank.moe.next_generation(&rank.part.stream).unwrap()) {
                if theirs.since(*first) > 0 {
                    *first = theirs;
                }
            }
        }
        for rank in &mut ranks {
            rank.moe.begin_generation(&rank.part.stream, &first, &vec![true; count]).unwrap();
            rank.part.poison(0x5a).unwrap();
        }
        for set in (0..SETS).map(Set) {
            for rank in &ranks {
                // SAFETY: the parts live until their streams are done.
                unsafe { rank.moe.launch_round(set, &rank.part).unwrap() };
            }
            let mut got = Solution::default();
            for rank in &ranks {
                rank.moe.finish(&rank.part.stream, PATIENCE).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                let mut output = rank.part.output(&problem).unwrap();
                output.received = rank.moe.received(set, &rank.part.stream).unwrap();
                got.ranks.push(output);
            }
            compare(&problem, &expected, &got).unwrap_or_else(|mismatch| panic!("seed {seed}: {mismatch}"));
        }
    }
}

#[test]
fn calls_in_any_order() {
    disorder(MODES[0], &[5, 9, 3], (32, 3), MoeCombine::Pull, Epoch::FIRST);
    disorder(MODES[0], &[5, 9, 3], (64, 0), MoeCombine::Push, Epoch(u32::MAX - 5));
    disorder(MODES[1], &[5, 9, 3], (64, 3), MoeCombine::Pull, Epoch(u32::MAX - 5));
}

/// What would be the end of a GPU's context is refused before the launch.
#[test]
fn addresses_that_no_kernel_can_take_are_refused() {
    let Some((operations, parts)) = pair(MODES[1], &GpuMoeOptions::default()) else { return };
    let (moe, part) = (&operations[0], &parts[0]);
    let dispatch = |stream: &Stream, change: fn(&mut DeviceTokens)| {
        let mut tokens = part.tokens;
        change(&mut tokens);
        // SAFETY: it is refused.
        unsafe { moe.dispatch(Set(0), stream, &tokens) }.unwrap_err().to_string()
    };
    let combine = |change: fn(&mut DeviceOut)| {
        let mut out = part.out;
        change(&mut out);
        // SAFETY: they are refused.
        let [whole, receive] =
            unsafe { [moe.combine(Set(0), &part.stream, &out), moe.combine_receive(Set(0), &part.stream, &out)] };
        assert!(receive.is_err());
        whole.unwrap_err().to_string()
    };
    for (error, said) in [
        (dispatch(&part.stream, |tokens| tokens.count = 0), "count is at address 0"),
        (dispatch(&part.stream, |tokens| tokens.count += 2), "count is at 0x"),
        (dispatch(&part.stream, |tokens| tokens.topk_idx += 1), "topk_idx is at 0x"),
        (
            dispatch(&part.stream, |tokens| (tokens.index, tokens.topk_idx) = (Index::I64, tokens.topk_idx + 4)),
            "of 8 bytes",
        ),
        (dispatch(&part.stream, |tokens| tokens.topk_weights += 3), "topk_weights is at 0x"),
        (dispatch(&part.stream, |tokens| tokens.stride = 79), "stride of x is 79 bytes; a row has 80"),
        (combine(|out| out.count = 0), "count is at address 0"),
        (combine(|out| out.out_weights += 1), "out_weights is at 0x"),
        (combine(|out| out.stride = 0), "stride of out is 0 bytes"),
        (dispatch(&parts[1].stream, |_| ()), "a kernel of device 0 on a stream of device 1"),
    ] {
        assert!(error.contains(said), "{said:?} is not in {error}");
    }
    // Nothing of that has begun a round, or broken the device.
    for (moe, part) in operations.iter().zip(&parts) {
        // SAFETY: the parts live until their streams are done.
        unsafe { moe.launch_round(Set(0), part).unwrap() };
    }
    operations.iter().zip(&parts).for_each(|(moe, part)| moe.finish(&part.stream, PATIENCE).unwrap());
}
