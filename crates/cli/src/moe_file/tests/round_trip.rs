//! Problems and solutions of all shapes and bits, written and read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use campanile::moe::{DType, Problem, RankInput, RankOutput, Received, Solution};
use proptest::collection::vec;
use proptest::prelude::*;
use safetensors::tensor::{Dtype, SafeTensors};

use super::super::input::parse;
use super::super::write;
use super::contents::{Contents, assert_same, contents, f32s, file_type, i32s, in_a_file};

#[test]
fn sample_is_read() {
    let problem = parse(&Contents::sample().bytes()).unwrap();
    assert_eq!((problem.dtype, problem.combine_dtype), (DType::BF16, DType::BF16));
    assert_eq!((problem.hidden, problem.topk, problem.scales, problem.experts()), (4, 2, 0, 5));
    assert!(problem.weighted);
    assert_eq!(problem.expert_rank, [1, 0, 1, 0, 1]);
    assert_eq!(problem.expert_scale, Some(vec![1.0; 5]));
    assert_eq!(problem.ranks.iter().map(|rank| rank.tokens).collect::<Vec<_>>(), [3, 2]);
    assert_eq!(problem.ranks[1].x, (0..16).collect::<Vec<u8>>());
    assert_eq!(problem.ranks[1].topk_idx, [4; 4]);
    assert_eq!(problem.ranks[1].topk_weights, [0.5; 4]);

    let scaled = parse(&Contents::scaled().bytes()).unwrap();
    assert_eq!((scaled.dtype, scaled.combine_dtype, scaled.scales), (DType::F8E4M3, DType::BF16, 2));
    assert_eq!(scaled.ranks[0].scales, [2.0; 6]);
}

#[test]
fn what_is_optional_can_be_left_out() {
    let mut contents = Contents::sample();
    for name in ["expert_scale", "expert_rank", "topk_weights.0", "topk_weights.1"] {
        contents.remove(name);
    }
    let problem = parse(&contents.bytes()).unwrap();
    assert_eq!(problem.expert_rank, [0, 0, 0, 1, 1], "e / ceil(5 / 2)");
    assert!(!problem.weighted && problem.expert_scale.is_none());
    assert!(problem.ranks.iter().all(|rank| rank.topk_weights.is_empty() && rank.scales.is_empty()));
}

/// A problem of this shape, each value of it any bits, and so a solution whose ranks received `received` rows.
fn problem_and_solution(
    tokens: Vec<usize>,
    received: Vec<usize>,
    (hidden, topk, experts): (usize, usize, usize),
    dtype: DType,
    weighted: bool,
) -> impl Strategy<Value = (Problem, Solution)> {
    let scales = if dtype.is_scaled() { hidden.div_ceil(3) } else { 0 };
    let combine_dtype = dtype.default_combine();
    let floats = |count: usize| vec(any::<u32>().prop_map(f32::from_bits), count);
    let weights = move |rows: usize| floats(if weighted { rows * topk } else { 0 });
    let indexes = move |rows: usize| vec(-1..experts as i32, rows * topk);
    let ranks = tokens.len();
    let inputs = tokens.iter().map(|&tokens| {
        let x = vec(any::<u8>(), dtype.row_bytes(tokens * hidden));
        (Just(tokens), x, floats(tokens * scales), indexes(tokens), weights(tokens)).prop_map(
            |(tokens, x, scales, topk_idx, topk_weights)| RankInput { tokens, x, scales, topk_idx, topk_weights },
        )
    });
    let outputs = tokens.iter().zip(received).map(|(&tokens, rows)| {
        let received = (
            vec(any::<u8>(), dtype.row_bytes(rows * hidden)),
            floats(rows * scales),
            vec(any::<i32>(), rows * 2),
            indexes(rows),
            weights(rows),
        );
        let received = received.prop_map(|(x, scales, src, topk_idx, topk_weights)| Received {
            x,
            scales,
            src,
            topk_idx,
            topk_weights,
        });
        (vec(any::<u8>(), combine_dtype.row_bytes(tokens * hidden)), weights(tokens), received)
            .prop_map(|(out, out_weights, received)| RankOutput { out, out_weights, received })
    });
    let expert_scale = floats(experts).prop_map(move |scale| weighted.then_some(scale));
    let inputs: Vec<_> = inputs.collect();
    let outputs: Vec<_> = outputs.collect();
    (inputs, outputs, vec(0..ranks as u32, experts), expert_scale).prop_map(
        move |(inputs, outputs, expert_rank, expert_scale)| {
            let problem = Problem {
                dtype,
                combine_dtype,
                hidden,
                topk,
                scales,
                quantize: false,
                expert_rank,
                expert_scale,
                weighted,
                ranks: inputs,
            };
            (problem, Solution { ranks: outputs })
        },
    )
}

/// Shapes of all kinds: ranks without tokens or rows, fewer experts than ranks, a hidden size of 1, 16 slots.
fn any_problem_and_solution() -> impl Strategy<Value = (Problem, Solution)> {
    let ranks = (1..6_usize).prop_flat_map(|ranks| (vec(0..5_usize, ranks), vec(0..5_usize, ranks)));
    let shape = (1..10_usize, 1..17_usize, 1..9_usize);
    (ranks, shape, prop::sample::select(&DType::ALL[..]), any::<bool>()).prop_flat_map(
        |((tokens, received), (hidden, topk, experts), dtype, weighted)| {
            let shape = (in_a_file(dtype, hidden), topk, experts);
            problem_and_solution(tokens, received, shape, dtype, weighted)
        },
    )
}

/// The tensors that an output must have.
fn expected_output(problem: &Problem, solution: &Solution, dump_recv: bool) -> Contents {
    let mut expected = Contents::default();
    expected.metadata.insert("experts".into(), problem.experts().to_string());
    let (hidden, topk) = (problem.hidden, problem.topk);
    for (rank, (input, output)) in problem.ranks.iter().zip(&solution.ranks).enumerate() {
        let combine_dtype = file_type(problem.combine_dtype);
        expected.set(format!("out.{rank}"), combine_dtype, &[input.tokens, hidden], output.out.clone());
        let weights = f32s(&output.out_weights);
        if problem.weighted {
            expected.set(format!("out_weights.{rank}"), Dtype::F32, &[input.tokens, topk], weights);
        }
        if dump_recv {
            let received = &output.received;
            let rows = received.src.len() / 2;
            expected.set(format!("recv_x.{rank}"), file_type(problem.dtype), &[rows, hidden], received.x.clone());
            expected.set(format!("recv_src.{rank}"), Dtype::I32, &[rows, 2], i32s(&received.src));
            expected.set(format!("recv_topk_idx.{rank}"), Dtype::I32, &[rows, topk], i32s(&received.topk_idx));
            if problem.weighted {
                let weights = f32s(&received.topk_weights);
                expected.set(format!("recv_topk_weights.{rank}"), Dtype::F32, &[rows, topk], weights);
            }
            if problem.dtype.is_scaled() {
                let scales = f32s(&received.scales);
                expected.set(format!("recv_scales.{rank}"), Dtype::F32, &[rows, problem.scales], scales);
            }
        }
    }
    expected
}

/// Sees to it that `file` has these tensors and no other, each aligned to its elements.
#[track_caller]
fn assert_contents(file: &[u8], expected: &Contents) {
    let (header, metadata) = SafeTensors::read_metadata(file).unwrap();
    assert_eq!(metadata.metadata().as_ref(), Some(&expected.metadata));
    let found: BTreeMap<_, _> = SafeTensors::deserialize(file)
        .unwrap()
        .iter()
        .map(|(name, view)| (name.to_owned(), (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
        .collect();
    assert_eq!(found, expected.tensors);
    for (name, info) in metadata.tensors() {
        assert!(
            (8 + header + info.data_offsets.0).is_multiple_of(info.dtype.bitsize().div_ceil(8)),
            "{name} is not aligned"
        );
    }
}

/// Names in a directory.
fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn problems_round_trip((problem, _) in any_problem_and_solution(), wide: bool) {
        assert_same(&parse(&contents(&problem, wide).bytes()).unwrap(), &problem);
    }

    #[test]
    fn solutions_round_trip((problem, solution) in any_problem_and_solution(), dump_recv: bool) {
        let directory = tempfile::tempdir().unwrap();
        let paths = ["first", "second"].map(|name| directory.path().join(name));
        for path in &paths {
            write(path, &problem, &solution, dump_recv).unwrap();
        }
        let file = fs::read(&paths[0]).unwrap();
        assert_contents(&file, &expected_output(&problem, &solution, dump_recv));
        assert_eq!(file, fs::read(&paths[1]).unwrap(), "equal solutions are equal files");
        assert_eq!(names(directory.path()), ["first", "second"]);
    }

    /// No bytes make a reader panic, hang or allocate without measure.
    #[test]
    fn damaged_files_are_errors_or_problems(at in any::<prop::sample::Index>(), byte: u8, scaled: bool) {
        let mut file = if scaled { Contents::scaled() } else { Contents::sample() }.bytes();
        let at = at.index(file.len());
        file[at] = byte;
        if let Ok(problem) = parse(&file) {
            assert_eq!(problem.ranks.len(), 2);
        }
    }
}

#[test]
fn a_chunk_ends_anywhere() {
    // More than one chunk of 64 KiB, and not a multiple of it.
    let (tokens, topk) = (4099, 5);
    let topk_idx: Vec<_> = (0..tokens * topk).map(|slot| (slot % 1000) as i32 - 1).collect();
    let topk_weights: Vec<_> = (0..tokens * topk).map(|slot| slot as f32).collect();
    let rank = RankInput { tokens, x: vec![7; tokens * 2], scales: Vec::new(), topk_idx, topk_weights };
    let problem = Problem {
        dtype: DType::F16,
        combine_dtype: DType::F16,
        hidden: 1,
        topk,
        scales: 0,
        quantize: false,
        expert_rank: vec![0; 999],
        expert_scale: None,
        weighted: true,
        ranks: vec![rank],
    };
    for wide in [false, true] {
        assert_same(&parse(&contents(&problem, wide).bytes()).unwrap(), &problem);
    }
}
