//! The oracle: worked examples by hand, the kernels as a second opinion, the f64 bound, and the comparison.

use campanile_moe::{
    DType, Problem, RankInput, RankOutput, Received, Solution,
    arithmetic::{Kernels, Row, Store, coefficient},
    model::{Mismatch, Tensor, Verified, bound, compare, solve},
    number,
    routing::{Router, Routing},
};
use rand_xoshiro::{
    Xoshiro256PlusPlus,
    rand_core::{Rng, SeedableRng},
};

fn bf16(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&value| number::f32_to_bf16(value).to_le_bytes()).collect()
}

fn bf16_bits(bits: &[u16]) -> Vec<u8> {
    bits.iter().flat_map(|bits| bits.to_le_bytes()).collect()
}

/// One weighted bf16 token on rank 0 of as many ranks as experts, with expert e on rank e.
fn one_token(ranks: usize, x: Vec<u8>, topk_idx: Vec<i32>, topk_weights: Vec<f32>) -> Problem {
    let mut problem = Problem {
        dtype: DType::BF16,
        combine_dtype: DType::BF16,
        hidden: x.len() / 2,
        topk: topk_idx.len(),
        scales: 0,
        quantize: false,
        expert_rank: (0..ranks as u32).collect(),
        expert_scale: None,
        weighted: !topk_weights.is_empty(),
        ranks: vec![RankInput::default(); ranks],
    };
    problem.ranks[0] = RankInput { tokens: 1, x, scales: vec![], topk_idx, topk_weights };
    problem
}

fn out(problem: &Problem) -> Vec<u8> {
    problem.validate().unwrap();
    solve(problem).ranks[0].out.clone()
}

#[test]
fn a_worked_example() {
    // Three ranks, four experts: 0 and 2 on rank 0, 1 on rank 2, 3 on rank 2. Rank 1 owns none and has no tokens.
    let problem = Problem {
        dtype: DType::BF16,
        combine_dtype: DType::F32,
        hidden: 3,
        topk: 3,
        scales: 0,
        quantize: false,
        expert_rank: vec![0, 2, 0, 2],
        expert_scale: Some(vec![1.0, 2.0, 3.0, 4.0]),
        weighted: true,
        ranks: vec![
            RankInput {
                tokens: 2,
                x: bf16(&[1.0, 2.0, -3.0, 5.0, 0.5, 0.0]),
                scales: vec![],
                topk_idx: vec![3, 0, 1, -1, 2, 2],
                topk_weights: vec![0.5, 0.25, 0.125, 7.0, 0.5, 0.25],
            },
            RankInput::default(),
            RankInput {
                tokens: 2,
                x: bf16(&[1.0, 1.0, 1.0, 8.0, 16.0, 32.0]),
                scales: vec![],
                topk_idx: vec![-1, -1, -1, 1, -1, -1],
                topk_weights: vec![1.0, 1.0, 1.0, 0.5, 0.25, 0.25],
            },
        ],
    };
    problem.validate().unwrap();
    let f32s = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
    let expected = Solution {
        ranks: vec![
            RankOutput {
                // Token 0: c is 0.25 on rank 0 and 0.5 · 4 + 0.125 · 2 on rank 2. Token 1: (0.5 + 0.25) · 3 on rank 0.
                out: f32s(&[2.5, 5.0, -7.5, 11.25, 1.125, 0.0]),
                out_weights: vec![0.5, 0.25, 0.125, 0.0, 0.5, 0.25],
                received: Received {
                    x: bf16(&[1.0, 2.0, -3.0, 5.0, 0.5, 0.0]),
                    scales: vec![],
                    src: vec![0, 0, 0, 1],
                    topk_idx: vec![-1, 0, -1, -1, 1, 1],
                    topk_weights: vec![0.0, 0.25, 0.0, 0.0, 0.5, 0.25],
                },
            },
            RankOutput::default(),
            RankOutput {
                out: f32s(&[0.0, 0.0, 0.0, 8.0, 16.0, 32.0]),
                out_weights: vec![0.0, 0.0, 0.0, 0.5, 0.0, 0.0],
                received: Received {
                    x: bf16(&[1.0, 2.0, -3.0, 8.0, 16.0, 32.0]),
                    scales: vec![],
                    src: vec![0, 0, 2, 1],
                    topk_idx: vec![1, -1, 0, 0, -1, -1],
                    topk_weights: vec![0.5, 0.0, 0.125, 0.5, 0.0, 0.0],
                },
            },
        ],
    };
    let solution = solve(&problem);
    assert_eq!(solution, expected);
    assert_eq!(
        compare(&problem, &expected, &solution),
        Ok(Verified { out: 12, out_weights: 12, received: 12 + 8 + 24 })
    );
}

#[test]
fn ranks_are_summed_in_ascending_order_whatever_the_slots_say() {
    // 2^24 + 1 is a tie of f32 and goes down; 1 + 1 first makes it 2^24 + 2.
    let slots = |order: [i32; 3], weights: [f32; 3]| {
        let mut problem = one_token(3, bf16(&[1.0]), order.to_vec(), weights.to_vec());
        problem.combine_dtype = DType::F32;
        f32::from_le_bytes(out(&problem).try_into().unwrap())
    };
    let big = 16_777_216.0;
    assert_eq!(slots([0, 1, 2], [big, 1.0, 1.0]), big);
    assert_eq!(slots([2, 1, 0], [1.0, 1.0, big]), big);
    assert_eq!(slots([2, 0, 1], [big, 1.0, 1.0]), big + 2.0);
}

#[test]
fn slots_of_a_rank_are_summed_in_their_own_order() {
    let slots = |weights: [f32; 3]| {
        let mut problem = one_token(1, bf16(&[1.0]), vec![0, 0, 0], weights.to_vec());
        problem.combine_dtype = DType::F32;
        f32::from_le_bytes(out(&problem).try_into().unwrap())
    };
    let big = 16_777_216.0;
    assert_eq!(slots([big, 1.0, 1.0]), big);
    assert_eq!(slots([1.0, 1.0, big]), big + 2.0);
}

#[test]
fn a_result_is_rounded_on_the_owner_and_again_at_the_source() {
    // bf16 has steps of 1/256 above 0.5 and of 1/128 above 1. Owners: 128.49/256 goes down to 0.5, and three of them are
    // 1.5; unrounded they would be 1.5 + 0.735/128 and go up.
    let problem = one_token(3, bf16(&[1.0]), vec![0, 1, 2], vec![128.49 / 256.0; 3]);
    assert_eq!(out(&problem), bf16(&[1.5]));
    // The source: 3 · 129/256 is 193.5/128, a tie.
    let problem = one_token(3, bf16(&[1.0]), vec![0, 1, 2], vec![129.0 / 256.0; 3]);
    assert_eq!(out(&problem), bf16(&[194.0 / 128.0]));
    // Not after each addition: (1 + 0.5/128) + 0.5/128 would stay at 1 if the first tie were rounded.
    let problem = one_token(3, bf16(&[1.0]), vec![0, 1, 2], vec![1.0, 0.5 / 128.0, 0.5 / 128.0]);
    assert_eq!(out(&problem), bf16(&[129.0 / 128.0]));
}

#[test]
fn nothing_is_fused() {
    // The product rounds before it is added: −(1 + 2^-23) + (1 + 2^-23)² is 2^-23 then, and more if fused.
    let mut problem = one_token(1, bf16(&[1.0]), vec![0, 0], vec![0.0; 2]);
    let next = f32::from_bits(0x3f80_0001);
    problem.combine_dtype = DType::F32;
    problem.expert_scale = Some(vec![next]);
    problem.ranks[0].topk_weights = vec![-1.0, next];
    assert_eq!(out(&problem), f32::from_bits(0x3400_0000).to_le_bytes());
}

#[test]
fn special_values() {
    // NaN payloads and signs, −0, infinities and subnormals through c = 1.
    let x = [0xff81_u16, 0x7fff, 0x8000, 0xff80, 0x0001, 0x807f];
    let canonical = [0x7fc0_u16, 0x7fc0, 0x8000, 0xff80, 0x0001, 0x807f];
    let problem = one_token(2, bf16_bits(&x), vec![1], vec![]);
    assert_eq!(out(&problem), bf16_bits(&canonical));
    assert_eq!(solve(&problem).ranks[1].received.x, bf16_bits(&x), "what travels keeps every bit");
    // Two destinations: the sum doubles, −0 + −0 is −0, and NaN stays canonical.
    let problem = one_token(2, bf16_bits(&x), vec![1, 0], vec![]);
    assert_eq!(out(&problem), bf16_bits(&[0x7fc0, 0x7fc0, 0x8000, 0xff80, 0x0002, 0x80fe]));
    // ∞ · 0 on the one, −∞ + ∞ between two, overflow in the combine type.
    let problem = one_token(2, bf16_bits(&[0x7f80]), vec![0], vec![0.0]);
    assert_eq!(out(&problem), bf16_bits(&[0x7fc0]));
    let problem = one_token(2, bf16_bits(&[0x7f80]), vec![0, 1], vec![1.0, -1.0]);
    assert_eq!(out(&problem), bf16_bits(&[0x7fc0]));
    let problem = one_token(2, bf16_bits(&[0x7f7f]), vec![0, 1], vec![1.0, 1.0]);
    assert_eq!(out(&problem), bf16_bits(&[0x7f80]));
    // A NaN weight: canonical in the sum, untouched in what comes back; a dropped slot's is neither.
    let payload = f32::from_bits(0xffa5_5aa5);
    let problem = one_token(2, bf16(&[1.0]), vec![0, -1, 1], vec![1.0, payload, payload]);
    assert_eq!(out(&problem), bf16_bits(&[0x7fc0]));
    let weights: Vec<u32> = solve(&problem).ranks[0].out_weights.iter().map(|weight| weight.to_bits()).collect();
    assert_eq!(weights, [0x3f80_0000, 0, 0xffa5_5aa5]);
    // −0 as the only weight: c starts at +0.
    let problem = one_token(1, bf16(&[2.0]), vec![0], vec![-0.0]);
    assert_eq!(out(&problem), bf16(&[0.0]));
}

#[test]
fn no_valid_slot_gives_plus_zero_and_goes_nowhere() {
    let problem = one_token(2, bf16(&[-1.0, f32::NAN]), vec![-1, -1], vec![1.0, 2.0]);
    let solution = solve(&problem);
    assert_eq!(solution.ranks[0].out, bf16(&[0.0, 0.0]));
    assert_eq!(solution.ranks[0].out_weights, [0.0, 0.0]);
    assert!(solution.ranks.iter().all(|rank| rank.received == Received::default()));
}

#[test]
fn fp8_is_scaled_by_blocks_first() {
    // Five elements, two scales: the first covers three.
    let mut problem = one_token(1, vec![], vec![0], vec![0.5]);
    problem.dtype = DType::F8E4M3;
    problem.hidden = 5;
    problem.scales = 2;
    problem.ranks[0].x = [1.0, -2.0, 3.0, 4.0, 5.0].map(number::f32_to_e4m3).to_vec();
    problem.ranks[0].scales = vec![10.0, 0.25];
    assert_eq!(out(&problem), bf16(&[5.0, -10.0, 15.0, 0.5, 0.625]));
    assert_eq!(solve(&problem).ranks[0].received.scales, [10.0, 0.25]);
    // x · scale rounds before c comes: 3 · (1.125 · s) is not 3.375 · s.
    let scale = f32::from_bits(0x3f80_0003);
    (problem.hidden, problem.scales, problem.combine_dtype) = (1, 1, DType::F32);
    problem.ranks[0].x = vec![number::f32_to_e4m3(1.125)];
    problem.ranks[0].scales = vec![scale];
    problem.ranks[0].topk_weights = vec![3.0];
    assert_eq!((3.375 * scale).to_bits(), 0x4058_0005);
    assert_eq!(out(&problem), 0x4058_0004_u32.to_le_bytes());
}

#[test]
fn fnuz_and_fp4_have_their_own_numbers() {
    // The same codes in the three types: the low half of 0x28, 0, and the high one, 2, are numbers of FP4.
    let mut problem = one_token(1, vec![0x28, 0x80], vec![0], vec![0.5]);
    (problem.hidden, problem.scales, problem.combine_dtype) = (2, 1, DType::F32);
    problem.ranks[0].scales = vec![4.0];
    let mut out = |dtype, hidden| -> Vec<f32> {
        (problem.dtype, problem.hidden) = (dtype, hidden);
        let bytes = &solve(&problem).ranks[0].out;
        bytes.as_chunks::<4>().0.iter().map(|element| f32::from_le_bytes(*element)).collect()
    };
    assert_eq!(out(DType::F8E4M3, 2), [0.5, -0.0]);
    let fnuz = out(DType::F8E4M3FNUZ, 2);
    assert!(fnuz[0] == 0.25 && fnuz[1].to_bits() == number::F32_NAN, "{fnuz:?}");
    assert_eq!(out(DType::F4E2M1, 4), [-0.0, 2.0, 0.0, -0.0]);
    // Of an odd number the last half byte is nobody's.
    assert_eq!(out(DType::F4E2M1, 3), [-0.0, 2.0, 0.0]);
}

#[test]
fn rows_are_quantised_by_blocks_before_they_travel() {
    // Five elements, two scales: the first covers three.
    let mut problem = one_token(2, bf16(&[1.0, -2.0, 7.0, 0.0, -0.0]), vec![0, 1], vec![0.5, 1.0]);
    (problem.dtype, problem.hidden, problem.scales, problem.quantize) = (DType::F8E4M3, 5, 2, true);
    problem.validate().unwrap();
    let solution = solve(&problem);
    // 1 · 64 and −2 · 64 are codes, and 7 is the largest; zeroes count as 1e-10.
    let codes = [64.0, -128.0, 448.0, 0.0, -0.0].map(number::f32_to_e4m3);
    for rank in &solution.ranks {
        assert_eq!(rank.received.x, codes);
        assert_eq!(rank.received.scales, [7.0 / 448.0, 1e-10 / 448.0]);
    }
    assert_eq!(solution.ranks[0].out, bf16(&[1.5, -3.0, 10.5, 0.0, -0.0]));
    // What is no code is rounded: 5 · (240 / 7) is 171.43, between 160 and 176 of FNUZ, which has no −0.
    (problem.dtype, problem.ranks[0].x) = (DType::F8E4M3FNUZ, bf16(&[5.0, -2.0, 7.0, 0.0, -0.0]));
    let received = &solve(&problem).ranks[1].received;
    assert_eq!(received.x, [176.0, -72.0, 240.0, 0.0, 0.0].map(number::f32_to_e4m3fnuz));
    assert_eq!(received.scales, [7.0 / 240.0, 1e-10 / 240.0]);
}

/// A ragged problem of these types; `special` in a hundred elements are any bits at all.
fn random_problem(dtype: DType, combine_dtype: DType, weighted: bool, special: u32, seed: u64) -> Problem {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut below = |bound: u32| random.next_u32() % bound;
    let ranks = 1 + below(6) as usize;
    let (experts, topk, hidden) = (1 + below(12) as usize, 1 + below(8) as usize, 1 + below(90) as usize);
    let scales = if dtype.is_scaled() { 1 + below(hidden as u32) as usize } else { 0 };
    let expert_rank: Vec<u32> = (0..experts).map(|_| below(ranks as u32)).collect();
    let expert_scale =
        (weighted && seed.is_multiple_of(2)).then(|| (0..experts).map(|_| 0.1 + below(100) as f32 / 7.0).collect());
    let mut router = Router::new(Routing::ALL[seed as usize % Routing::ALL.len()], topk, seed);
    (router.duplicates, router.dropped) = (0.1, 0.2);
    let mut element = |row: &mut Vec<u8>| {
        let bits = below(u32::MAX);
        let special = below(100) < special;
        let at = row.len();
        row.extend(&bits.to_le_bytes()[..dtype.bytes()]);
        // As many elements as a part has.
        for element in 0..if special { 0 } else { 8 * dtype.bytes() / dtype.bits() } {
            number::write(dtype, &mut row[at..], element, (bits as f32 / u32::MAX as f32 - 0.4) * 8.0);
        }
    };
    let inputs = (0..ranks).map(|rank| {
        let tokens = (seed as usize * 7 + rank * 5) % 9;
        let routed = router.route(rank, ranks, tokens, &expert_rank);
        let mut x = Vec::new();
        (0..tokens * dtype.row_bytes(hidden) / dtype.bytes()).for_each(|_| element(&mut x));
        let scales = (0..tokens * scales).map(|i| 0.3 + (i % 13) as f32).collect();
        let topk_weights = if weighted { routed.topk_weights } else { vec![] };
        RankInput { tokens, x, scales, topk_idx: routed.topk_idx, topk_weights }
    });
    let ranks = inputs.collect();
    let problem = Problem {
        dtype,
        combine_dtype,
        hidden,
        topk,
        scales,
        expert_rank,
        quantize: false,
        expert_scale,
        weighted,
        ranks,
    };
    problem.validate().unwrap();
    problem
}

/// The same, quantised to `dtype` by dispatch, with another number of block scales for each seed.
fn quantizing(dtype: DType, combine_dtype: DType, weighted: bool, special: u32, seed: u64) -> Problem {
    let problem = random_problem(DType::BF16, combine_dtype, weighted, special, seed);
    let scales = 1 + seed as usize % problem.hidden;
    let problem = Problem { dtype, scales, quantize: true, ..problem };
    problem.validate().unwrap();
    problem
}

fn quantizing_problems(special: u32) -> impl Iterator<Item = Problem> {
    [DType::F8E4M3, DType::F8E4M3FNUZ]
        .into_iter()
        .flat_map(move |dtype| (0..24).map(move |seed| quantizing(dtype, DType::BF16, seed % 4 != 3, special, seed)))
}

fn random_problems(special: u32) -> impl Iterator<Item = Problem> {
    let combine = [DType::F32, DType::F16, DType::BF16];
    DType::ALL.into_iter().flat_map(move |dtype| {
        combine.into_iter().flat_map(move |combine| {
            (0..12).map(move |seed| random_problem(dtype, combine, seed % 4 != 3, special, seed))
        })
    })
}

#[test]
fn the_kernels_agree() {
    let kernels = Kernels::get();
    for problem in random_problems(30).chain(quantizing_problems(30)) {
        let (hidden, combine) = (problem.hidden, problem.combine_dtype);
        let solution = solve(&problem);
        for (rank, input) in problem.ranks.iter().enumerate() {
            for token in 0..input.tokens {
                let part = |length: usize| token * length..(token + 1) * length;
                let x = &input.x[part(problem.x_dtype().row_bytes(hidden))];
                let (mut codes, mut scales) = (vec![0; hidden], vec![0.0; problem.scales]);
                let row = if problem.quantize {
                    // SAFETY: rows of `hidden` elements, disjoint.
                    unsafe { kernels.quantize_row(codes.as_mut_ptr(), &mut scales, problem.dtype, x.as_ptr(), hidden) };
                    Row { dtype: problem.dtype, data: codes.as_ptr(), scales: &scales }
                } else {
                    Row { dtype: problem.dtype, data: x.as_ptr(), scales: &input.scales[part(problem.scales)] }
                };
                let weights = if problem.weighted { &input.topk_weights[part(problem.topk)] } else { &[] };
                let topk_idx = &input.topk_idx[part(problem.topk)];
                let mut results: Vec<Vec<u8>> = Vec::new();
                for owner in 0..problem.ranks.len() as u32 {
                    let here = |expert: i32| expert >= 0 && problem.expert_rank[expert as usize] == owner;
                    let local: Vec<i32> =
                        topk_idx.iter().map(|&expert| if here(expert) { expert } else { -1 }).collect();
                    if local.iter().any(|&expert| expert >= 0) {
                        let c = coefficient(&local, weights, problem.expert_scale.as_deref());
                        let mut y = vec![0; combine.row_bytes(hidden)];
                        // SAFETY: rows of `hidden` elements, disjoint.
                        unsafe { kernels.scale_row(y.as_mut_ptr(), combine, row, hidden, c) };
                        results.push(y);
                    }
                }
                let rows: Vec<*const u8> = results.iter().map(|row| row.as_ptr()).collect();
                let mut out = vec![0xa5; combine.row_bytes(hidden)];
                // SAFETY: rows of `hidden` elements, disjoint.
                unsafe { kernels.reduce_rows(combine, out.as_mut_ptr(), &rows, hidden, Store::Cached) };
                assert_eq!(out, solution.ranks[rank].out[part(combine.row_bytes(hidden))], "{problem:?}");
            }
        }
    }
}

#[test]
fn the_bound_holds_and_is_not_idle() {
    let mut closest: f64 = 0.0;
    for problem in random_problems(0) {
        let mut solution = solve(&problem);
        let found = bound(&problem, &solution);
        assert!(found.holds(), "{found:?} for {problem:?}");
        assert_eq!(found.excluded, 0);
        assert_eq!(found.elements, problem.ranks.iter().map(|rank| rank.tokens * problem.hidden).sum::<usize>());
        closest = closest.max(found.ratio);
        // An eighth more is wrong for any type, wherever it happens.
        let Some((rank, token, element)) = found.worst else { continue };
        let (dtype, at) = (problem.combine_dtype, token * problem.hidden + element);
        let value = number::read(dtype, &solution.ranks[rank].out, at);
        number::write(dtype, &mut solution.ranks[rank].out, at, value * 1.125 + 0.125_f32.copysign(value));
        let broken = bound(&problem, &solution);
        assert!(!broken.holds() && broken.worst == Some((rank, token, element)), "{broken:?}");
    }
    assert!((0.3..=1.0).contains(&closest), "the bound is within a small factor of what happens: {closest}");
}

#[test]
fn the_bound_holds_quantisation_to_the_accuracy_of_its_type() {
    let mut closest: f64 = 0.0;
    for problem in quantizing_problems(0) {
        let mut solution = solve(&problem);
        let found = bound(&problem, &solution);
        assert!(found.holds() && found.excluded == 0, "{found:?} for {problem:?}");
        closest = closest.max(found.ratio);
        let Some((rank, token, element)) = found.worst else { continue };
        let at = token * problem.hidden + element;
        let value = number::read(DType::BF16, &solution.ranks[rank].out, at);
        number::write(DType::BF16, &mut solution.ranks[rank].out, at, value * 1.5 + 8.0_f32.copysign(value));
        assert!(!bound(&problem, &solution).holds(), "{problem:?}");
    }
    assert!((0.8..=1.0).contains(&closest), "the bound is met by what happens: {closest}");
    // Rows that were not quantised as said are found out, whatever the model says.
    let mut problem = quantizing(DType::F8E4M3, DType::BF16, true, 0, 1);
    let quantised = bound(&problem, &solve(&problem));
    problem.ranks[0].x.iter_mut().for_each(|byte| *byte ^= 0x10);
    assert!(quantised.holds() && !bound(&problem, &solve(&quantizing(DType::F8E4M3, DType::BF16, true, 0, 1))).holds());
}

#[test]
fn the_bound_is_that_of_one_rounding_where_there_is_one() {
    // y = 1 · x in f32, rounded to bf16: at a tie the error is the whole half unit in the last place.
    let mut problem = one_token(1, vec![], vec![0], vec![]);
    problem.dtype = DType::F32;
    problem.hidden = 1;
    problem.ranks[0].x = f32::from_bits(0x3f80_8000).to_le_bytes().to_vec();
    let found = bound(&problem, &solve(&problem));
    assert!((0.98..=1.0).contains(&found.ratio), "{found:?}");
}

#[test]
fn elements_without_a_bound_are_excluded_and_counted() {
    let x = [0x7fc0_u16, 0x7f80, 0x7f7f, 0x3f80, 0x0001];
    let problem = one_token(2, bf16_bits(&x), vec![0, 1], vec![]);
    let found = bound(&problem, &solve(&problem));
    assert_eq!((found.elements, found.excluded), (2, 3));
    assert!(found.holds());
    // An infinite result where a finite one belongs is no excuse.
    let mut solution = solve(&problem);
    number::write(DType::BF16, &mut solution.ranks[0].out, 3, f32::INFINITY);
    assert!(!bound(&problem, &solution).holds());
    let mut solution = solve(&problem);
    number::write(DType::BF16, &mut solution.ranks[0].out, 4, f32::NAN);
    assert!(!bound(&problem, &solution).holds());
}

#[test]
fn a_difference_is_found_in_every_tensor() {
    let problem = random_problem(DType::F8E4M3, DType::BF16, true, 20, 16);
    let expected = solve(&problem);
    assert!(compare(&problem, &expected, &solve(&problem)).is_ok());
    let rank = (0..problem.ranks.len()).find(|&rank| !expected.ranks[rank].received.src.is_empty()).unwrap();
    type Break = fn(&mut RankOutput);
    let breaks: [(Tensor, Break); 7] = [
        (Tensor::Out, |rank| *rank.out.last_mut().unwrap() ^= 0x80),
        (Tensor::OutWeights, |rank| rank.out_weights[0] = -rank.out_weights[0]),
        (Tensor::RecvX, |rank| rank.received.x[0] ^= 1),
        (Tensor::RecvScales, |rank| rank.received.scales[0] += 1.0),
        (Tensor::RecvSrc, |rank| rank.received.src[1] += 1),
        (Tensor::RecvTopkIdx, |rank| rank.received.topk_idx[0] += 1),
        (Tensor::RecvTopkWeights, |rank| rank.received.topk_weights[0] = -rank.received.topk_weights[0]),
    ];
    for (tensor, break_it) in breaks {
        let mut got = expected.clone();
        break_it(&mut got.ranks[rank]);
        match compare(&problem, &expected, &got) {
            Err(Mismatch::Element { tensor: found, rank: at, count: 1, .. }) => assert_eq!((found, at), (tensor, rank)),
            other => panic!("{tensor}: {other:?}"),
        }
    }
    let mut got = expected.clone();
    got.ranks[rank].received.src.pop();
    assert!(matches!(compare(&problem, &expected, &got), Err(Mismatch::Size { tensor: Tensor::RecvSrc, .. })));
    got.ranks.pop();
    assert!(matches!(compare(&problem, &expected, &got), Err(Mismatch::Ranks { .. })));
}

#[test]
fn a_mismatch_reads_well() {
    let problem = one_token(1, bf16(&[1.0, 2.0, 3.0]), vec![0], vec![1.0]);
    let expected = solve(&problem);
    let mut got = expected.clone();
    got.ranks[0].out = bf16(&[1.0, f32::NAN, 0.0]);
    assert_eq!(
        compare(&problem, &expected, &got).unwrap_err().to_string(),
        "out.0: token 0, element 1: expected 0x4000 (2.0), got 0x7fc0 (NaN); 2 of 11 elements differ"
    );
    let mut got = expected.clone();
    got.ranks[0].received.topk_idx[0] = -1;
    assert_eq!(
        compare(&problem, &expected, &got).unwrap_err().to_string(),
        "recv_topk_idx.0: token 0, element 0: expected 0, got -1; 1 of 11 elements differ"
    );
}
