//! Every way in which a problem can be wrong has its own error.

use campanile_moe::{DType, Problem, ProblemError, RankInput};

/// Two ranks, three experts, two tokens and one, two slots, five elements.
fn problem() -> Problem {
    let input = |tokens: usize| RankInput {
        tokens,
        x: vec![0; tokens * 5],
        scales: vec![1.0; tokens * 2],
        topk_idx: vec![2; tokens * 2],
        topk_weights: vec![0.5; tokens * 2],
    };
    Problem {
        dtype: DType::F8E4M3,
        combine_dtype: DType::BF16,
        hidden: 5,
        topk: 2,
        scales: 2,
        quantize: false,
        expert_rank: vec![0, 0, 1],
        expert_scale: Some(vec![1.0; 3]),
        weighted: true,
        ranks: vec![input(2), input(1)],
    }
}

/// The message about a problem that was changed in one way.
fn broken(change: impl FnOnce(&mut Problem)) -> String {
    let mut problem = problem();
    change(&mut problem);
    problem.validate().unwrap_err().to_string()
}

#[test]
fn good_problems_pass() {
    problem().validate().unwrap();
    let mut empty = problem();
    empty.ranks = vec![RankInput::default(); 2];
    empty.validate().unwrap();
    let mut dropped = problem();
    dropped.ranks[0].topk_idx.fill(-1);
    dropped.validate().unwrap();
    let mut plain = problem();
    (plain.dtype, plain.scales, plain.weighted, plain.expert_scale) = (DType::F16, 0, false, None);
    for rank in &mut plain.ranks {
        (rank.x, rank.scales, rank.topk_weights) = (vec![0; rank.tokens * 10], vec![], vec![]);
    }
    plain.validate().unwrap();
    // Quantised: x is bf16, and scales are made.
    let mut quantised = problem();
    quantised.quantize = true;
    for rank in &mut quantised.ranks {
        (rank.x, rank.scales) = (vec![0; rank.tokens * 10], vec![]);
    }
    quantised.validate().unwrap();
    // Two in a byte, and rows of whole bytes.
    let mut packed = problem();
    packed.dtype = DType::F4E2M1;
    packed.ranks.iter_mut().for_each(|rank| rank.x = vec![0; rank.tokens * 3]);
    packed.validate().unwrap();
}

#[test]
fn every_error_names_what_is_wrong_and_what_is_allowed() {
    assert_eq!(broken(|problem| problem.hidden = 0), "hidden is 0; allowed are 1 to 2147483647");
    assert_eq!(broken(|problem| problem.topk = 0), "topk is 0; allowed are 1 to 2147483647");
    assert_eq!(broken(|problem| problem.ranks.clear()), "ranks is 0; allowed are 1 to 2147483647");
    assert_eq!(broken(|problem| problem.expert_rank.clear()), "experts is 0; allowed are 1 to 2147483647");
    assert_eq!(
        broken(|problem| problem.combine_dtype = DType::F8E4M3),
        "combine type f8_e4m3 cannot be summed; choose f32, f16 or bf16"
    );
    assert_eq!(
        broken(|problem| (problem.quantize, problem.dtype) = (true, DType::F4E2M1)),
        "dispatch does not quantise to f4_e2m1; choose f8_e4m3 or f8_e4m3fnuz"
    );
    assert_eq!(broken(|problem| problem.quantize = true), "x.0 has 10 bytes; 2 tokens of 10 need 20");
    assert_eq!(broken(|problem| problem.dtype = DType::F4E2M1), "x.0 has 10 bytes; 2 tokens of 3 need 6");
    assert_eq!(broken(|problem| problem.scales = 0), "rows of f8_e4m3 have 0 scales; allowed are 1 to 5");
    assert_eq!(broken(|problem| problem.scales = 6), "rows of f8_e4m3 have 6 scales; allowed are 1 to 5");
    assert_eq!(broken(|problem| problem.dtype = DType::BF16), "rows of bf16 have 2 scales; allowed are 0 to 0");
    assert_eq!(broken(|problem| problem.expert_rank[1] = 2), "expert_rank: expert 1 is on rank 2; allowed are 0 to 1");
    assert_eq!(
        broken(|problem| problem.weighted = false),
        "expert_scale is given without topk_weights; leave it out, or give every rank weights"
    );
    assert_eq!(
        broken(|problem| problem.expert_scale = Some(vec![1.0; 4])),
        "expert_scale has 4 elements; 3 experts need as many"
    );
    assert_eq!(broken(|problem| _ = problem.ranks[1].x.pop()), "x.1 has 4 bytes; 1 tokens of 5 need 5");
    assert_eq!(broken(|problem| problem.ranks[0].scales.push(1.0)), "scales.0 has 5 elements; 2 tokens of 2 need 4");
    assert_eq!(
        broken(|problem| _ = problem.ranks[1].topk_idx.pop()),
        "topk_idx.1 has 1 elements; 1 tokens of 2 need 2"
    );
    assert_eq!(
        broken(|problem| problem.ranks[1].topk_weights.clear()),
        "topk_weights.1 has 0 elements; 1 tokens of 2 need 2"
    );
    assert_eq!(
        broken(|problem| (problem.weighted, problem.expert_scale) = (false, None)),
        "topk_weights.0 has 4 elements; 2 tokens of 0 need 0"
    );
    for (index, name) in [(3, "3"), (-2, "-2"), (i32::MIN, "-2147483648")] {
        assert_eq!(
            broken(|problem| problem.ranks[0].topk_idx[3] = index),
            format!("topk_idx.0: token 1, slot 1 is {name}; allowed are -1 (dropped) to 2")
        );
    }
}

#[test]
fn sizes_that_overflow_are_errors_not_panics() {
    let mut problem = problem();
    problem.ranks[0].tokens = usize::MAX;
    assert!(matches!(problem.validate(), Err(ProblemError::Size { field: "tokens", .. })));
    problem.ranks[0].tokens = i32::MAX as usize;
    problem.hidden = i32::MAX as usize;
    assert!(matches!(problem.validate(), Err(ProblemError::Length { tensor: "x", rank: 0, .. })));
}

#[test]
fn scales_cover_equal_blocks_but_the_last() {
    let covers = |hidden, scales| -> Vec<usize> {
        let problem = Problem { hidden, scales, ..problem() };
        (0..hidden).map(|h| problem.scale_of(h)).collect()
    };
    assert_eq!(covers(5, 2), [0, 0, 0, 1, 1]);
    assert_eq!(covers(4, 4), [0, 1, 2, 3]);
    assert_eq!(covers(5, 4), [0, 0, 1, 1, 2]);
    assert_eq!(covers(3, 1), [0, 0, 0]);
}
