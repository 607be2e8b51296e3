//! Files are made and read back by the `safetensors` crate, of which the code under test uses neither reader nor writer.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use campanile::moe::{DType, Problem, RankInput, RankOutput, Received, Solution};
use proptest::collection::vec;
use proptest::prelude::*;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

use super::input::parse;
use super::{FileError, GenerateOptions, generate, read, write};

/// The tensors and metadata of a file, right or wrong.
#[derive(Clone, Default)]
struct Contents {
    metadata: HashMap<String, String>,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl Contents {
    /// Two ranks of 3 and 2 tokens, hidden 4, top-2 of 5 experts, bf16, with weights and everything that is optional.
    fn sample() -> Self {
        let mut contents = Self::default();
        contents.metadata.insert("experts".into(), "5".into());
        for (rank, tokens) in [3, 2].into_iter().enumerate() {
            contents.set(format!("x.{rank}"), Dtype::BF16, &[tokens, 4], (0..tokens * 8).map(|i| i as u8).collect());
            contents.set(format!("topk_idx.{rank}"), Dtype::I32, &[tokens, 2], i32s(&vec![4; tokens * 2]));
            contents.set(format!("topk_weights.{rank}"), Dtype::F32, &[tokens, 2], f32s(&vec![0.5; tokens * 2]));
        }
        contents.set("expert_scale", Dtype::F32, &[5], f32s(&[1.0; 5]));
        contents.set("expert_rank", Dtype::I32, &[5], i32s(&[1, 0, 1, 0, 1]));
        contents
    }

    /// The same as F8_E4M3 with a scale for each two elements.
    fn scaled() -> Self {
        let mut contents = Self::sample();
        for (rank, tokens) in [3, 2].into_iter().enumerate() {
            contents.set(format!("x.{rank}"), Dtype::F8_E4M3, &[tokens, 4], vec![0x38; tokens * 4]);
            contents.set(format!("scales.{rank}"), Dtype::F32, &[tokens, 2], f32s(&vec![2.0; tokens * 2]));
        }
        contents
    }

    fn set(&mut self, name: impl Into<String>, dtype: Dtype, shape: &[usize], data: Vec<u8>) {
        self.tensors.insert(name.into(), (dtype, shape.to_vec(), data));
    }

    /// A tensor of zeros.
    fn zeros(&mut self, name: &str, dtype: Dtype, shape: &[usize]) {
        self.set(name, dtype, shape, vec![0; shape.iter().product::<usize>() * dtype.bitsize() / 8]);
    }

    fn remove(&mut self, name: &str) {
        self.tensors.remove(name).expect("the sample has it");
    }

    fn bytes(&self) -> Vec<u8> {
        let views = self.tensors.iter().map(|(name, (dtype, shape, data))| {
            (name.as_str(), TensorView::new(*dtype, shape.clone(), data).expect("a tensor is as large as its shape"))
        });
        serialize(views, Some(self.metadata.clone())).expect("it is a small file")
    }
}

fn i32s(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn i64s(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A file with any text as header.
fn raw(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Sees to it that `file` is refused, with each of `fragments` in the message.
#[track_caller]
fn refused(file: &[u8], fragments: &[&str]) {
    let message = parse(file).expect_err("the file must be refused").to_string();
    for fragment in fragments {
        assert!(message.contains(fragment), "{fragment:?} is not in: {message}");
    }
}

/// [`refused`] for the sample after a change.
#[track_caller]
fn refused_with(change: impl FnOnce(&mut Contents), fragments: &[&str]) {
    let mut contents = Contents::sample();
    change(&mut contents);
    refused(&contents.bytes(), fragments);
}

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

#[test]
fn what_is_not_safetensors_is_refused() {
    refused(b"", &["not a safetensors file", "0 bytes"]);
    refused(b"1234567", &["not a safetensors file", "7 bytes"]);
    refused(b"x,y,z\n1,2,3\n4,5,6\n", &["announce a header", "100000000", "not a safetensors file"]);
    refused(&u64::MAX.to_le_bytes(), &["18446744073709551615"]);
    refused(&100_000_001_u64.to_le_bytes(), &["100000001", "allows 100000000"]);
    refused(&[&9_u64.to_le_bytes()[..], b"{}"].concat(), &["truncated", "9 bytes", "only 2"]);
    refused(&raw("", b""), &["not a safetensors file", "JSON"]);
    refused(&raw("[]", b""), &["not a safetensors file", "an object from names to tensors"]);
    refused(&raw("{\"x.0\": ", b""), &["not a safetensors file", "EOF"]);
    refused(&raw("\u{0}\u{1}", b""), &["not a safetensors file"]);
    refused(&raw(r#"{"__metadata__": {"experts": 5}}"#, b""), &["__metadata__", "object of strings"]);
}

#[test]
fn header_entries_are_checked() {
    let entry = |entry: &str, data: usize| raw(&format!(r#"{{"x.0": {entry}}}"#), &vec![0; data]);
    refused(&entry("7", 0), &["\"x.0\"", "bad entry"]);
    refused(&entry(r#"{"dtype": "F32", "shape": [1, 1]}"#, 4), &["\"x.0\"", "data_offsets"]);
    refused(&entry(r#"{"dtype": "F7", "shape": [1, 1], "data_offsets": [0, 4]}"#, 4), &["\"x.0\"", "F7"]);
    refused(&entry(r#"{"dtype": "F32", "shape": [-1, 1], "data_offsets": [0, 4]}"#, 4), &["\"x.0\"", "-1"]);
    refused(
        &entry(r#"{"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 4]}"#, 4),
        &["\"x.0\"", "[1, 2]", "takes 8"],
    );
    refused(&entry(r#"{"dtype": "F32", "shape": [1, 1], "data_offsets": [4, 0]}"#, 4), &["\"x.0\"", "(4, 0)"]);
    refused(
        &entry(r#"{"dtype": "F32", "shape": [1, 1], "data_offsets": [4, 8]}"#, 8),
        &["\"x.0\"", "starts at byte 4", "at 0"],
    );
    refused(&entry(r#"{"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}"#, 9), &["5 bytes follow"]);
    let most = u64::MAX;
    let vast = format!(r#"{{"dtype": "F32", "shape": [{most}, 1024], "data_offsets": [0, {most}]}}"#);
    refused(&entry(&vast, 4), &["\"x.0\"", "takes 75557863725914323415040"]);
    let twice = r#"{"x.0": {"dtype": "F32", "shape": [0, 1], "data_offsets": [0, 0]}, "x.0": {"dtype": "F32", "shape": [0, 2], "data_offsets": [0, 0]}}"#;
    refused(&raw(twice, b""), &["\"x.0\"", "twice"]);
    let overlap = r#"{"x.0": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}, "x.1": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}}"#;
    refused(&raw(overlap, &[0; 4]), &["\"x.1\"", "starts at byte 0", "at 4"]);
}

#[test]
fn any_truncation_is_refused_and_names_the_tensor() {
    let file = Contents::sample().bytes();
    let whole = SafeTensors::deserialize(&file).unwrap();
    let data = file.len() - whole.iter().map(|(_, view)| view.data().len()).sum::<usize>();
    let first_cut = |length: usize| {
        let end = |view: &TensorView| view.data().as_ptr_range().end as usize - file.as_ptr() as usize;
        whole.iter().filter(|(_, view)| end(view) > length).min_by_key(|(_, view)| end(view)).unwrap().0.to_owned()
    };
    for length in 0..file.len() {
        let message = parse(&file[..length]).expect_err("a part is no file").to_string();
        if length >= data {
            let tensor = first_cut(length);
            assert!(message.contains(&format!("truncated: tensor {tensor:?}")), "{length}: {message}");
        }
    }
}

#[test]
fn missing_and_unknown_tensors_are_named() {
    refused(&raw("{}", b""), &["\"x.0\" is missing", "from 0 without a gap"]);
    refused_with(|file| file.remove("topk_idx.1"), &["\"topk_idx.1\" is missing", "x.1 is there"]);
    refused_with(|file| file.remove("x.1"), &["\"x.1\" is missing", "topk_idx.1 is there"]);
    refused_with(|file| file.remove("x.0"), &["\"x.0\" is missing"]);
    refused_with(|file| file.zeros("x.3", Dtype::BF16, &[0, 4]), &["\"x.2\" is missing", "x.3 is there"]);
    let last = format!("x.{}", usize::MAX);
    refused_with(|file| file.zeros(&last, Dtype::BF16, &[0, 4]), &["\"x.2\" is missing", &last]);
    refused_with(
        |file| file.remove("topk_weights.1"),
        &["\"topk_weights.1\" is missing", "all ranks", "topk_weights.0"],
    );
    refused_with(|file| file.remove("topk_weights.0"), &["\"topk_weights.0\" is missing", "topk_weights.1"]);
    let known = ["x.R", "scales.R", "topk_idx.R", "topk_weights.R", "expert_scale", "expert_rank"];
    for typo in ["topk_idx", "topk_ids.0", "x", "x.", "x.-1", "x.+1", "x.01", "x.0.0", "X.0", "expert_scales", "x.R"] {
        let named = format!("{typo:?} is not known");
        let expected = [&[&*named], &known[..]].concat();
        refused_with(|file| file.zeros(typo, Dtype::F32, &[1]), &expected);
    }
    // A name is quoted, so that it cannot write on the terminal.
    refused_with(|file| file.zeros("x\u{1b}[2J", Dtype::F32, &[1]), &[r#""x\u{1b}[2J""#]);
}

#[test]
fn types_are_checked() {
    for dtype in [Dtype::F64, Dtype::I8, Dtype::F8_E5M2, Dtype::F8_E5M2FNUZ] {
        refused_with(
            |file| file.zeros("x.0", dtype, &[3, 4]),
            &["\"x.0\"", &dtype.to_string(), "F32, F16, BF16, F8_E4M3, F8_E4M3FNUZ, F4"],
        );
    }
    refused_with(|file| file.zeros("x.1", Dtype::F16, &[2, 4]), &["\"x.1\" is F16", "x.0 is BF16", "same type"]);
    refused_with(|file| file.zeros("topk_idx.1", Dtype::I16, &[2, 2]), &["\"topk_idx.1\" is I16", "I32, I64"]);
    refused_with(|file| file.zeros("topk_weights.0", Dtype::F64, &[3, 2]), &["\"topk_weights.0\" is F64", "F32"]);
    refused_with(|file| file.zeros("expert_scale", Dtype::F16, &[5]), &["\"expert_scale\" is F16", "F32"]);
    refused_with(|file| file.zeros("expert_rank", Dtype::I64, &[5]), &["\"expert_rank\" is I64", "I32"]);
}

#[test]
fn shapes_are_checked() {
    refused_with(|file| file.zeros("x.0", Dtype::BF16, &[12]), &["\"x.0\"", "[12]", "two dimensions"]);
    refused_with(|file| file.zeros("x.1", Dtype::BF16, &[2, 2, 2]), &["\"x.1\"", "[2, 2, 2]", "two dimensions"]);
    refused_with(|file| file.zeros("topk_idx.0", Dtype::I32, &[]), &["\"topk_idx.0\"", "[]", "two dimensions"]);
    refused_with(|file| file.zeros("x.0", Dtype::BF16, &[3, 0]), &["\"x.0\" has H = 0", "1 to"]);
    refused_with(|file| file.zeros("topk_idx.0", Dtype::I32, &[3, 0]), &["\"topk_idx.0\" has K = 0", "1 to"]);
    refused_with(
        |file| file.zeros("x.0", Dtype::BF16, &[0, 1 << 40]),
        &["\"x.0\" has H = 1099511627776", "to 16777216"],
    );
    refused_with(
        |file| file.zeros("topk_idx.0", Dtype::I32, &[0, 1 << 20]),
        &["\"topk_idx.0\" has K = 1048576", "to 65536"],
    );
    refused_with(|file| file.zeros("x.1", Dtype::BF16, &[2, 5]), &["\"x.1\"", "[2, 5]", "[2, 4]", "H of x.0"]);
    refused_with(
        |file| file.zeros("topk_idx.1", Dtype::I32, &[3, 2]),
        &["\"topk_idx.1\"", "[3, 2]", "[2, 2]", "T of x.1, K of topk_idx.0"],
    );
    refused_with(|file| file.zeros("topk_idx.1", Dtype::I32, &[2, 3]), &["\"topk_idx.1\"", "[2, 3]", "[2, 2]"]);
    refused_with(
        |file| file.zeros("topk_weights.0", Dtype::F32, &[3, 1]),
        &["\"topk_weights.0\"", "[3, 1]", "[3, 2]", "T of x.0, K of topk_idx.0"],
    );
    refused_with(|file| file.zeros("expert_scale", Dtype::F32, &[4]), &["\"expert_scale\"", "[4]", "[5]", "experts"]);
    refused_with(|file| file.zeros("expert_rank", Dtype::I32, &[5, 1]), &["\"expert_rank\"", "[5, 1]", "[5]"]);
    // 2^31 tokens of no bytes cannot be: H is at least 1. So the limit on tokens is met by the header alone.
    let tokens = 1_u64 << 31;
    let header = format!(
        r#"{{"__metadata__": {{"experts": "1"}},
        "x.0": {{"dtype": "F8_E4M3", "shape": [0, 1], "data_offsets": [0, 0]}},
        "x.1": {{"dtype": "F8_E4M3", "shape": [{tokens}, 1], "data_offsets": [0, {tokens}]}}}}"#
    );
    refused(&raw(&header, b""), &["\"x.1\"", "truncated"]);
}

#[test]
fn scales_go_with_fp8_only() {
    let refused_with = |change: &dyn Fn(&mut Contents), fragments: &[&str]| {
        let mut contents = Contents::scaled();
        change(&mut contents);
        refused(&contents.bytes(), fragments);
    };
    refused_with(&|file| file.remove("scales.1"), &["\"scales.1\" is missing", "F8_E4M3"]);
    refused_with(&|file| file.zeros("scales.0", Dtype::F32, &[3, 0]), &["\"scales.0\" has S = 0", "1 to 4"]);
    refused_with(&|file| file.zeros("scales.0", Dtype::F32, &[3, 5]), &["\"scales.0\" has S = 5", "1 to 4"]);
    refused_with(
        &|file| file.zeros("scales.1", Dtype::F32, &[2, 1]),
        &["\"scales.1\"", "[2, 1]", "[2, 2]", "S of scales.0"],
    );
    refused_with(&|file| file.zeros("scales.1", Dtype::BF16, &[2, 2]), &["\"scales.1\" is BF16", "F32"]);
    refused_with(&|file| file.zeros("x.1", Dtype::BF16, &[2, 4]), &["\"x.1\" is BF16", "x.0 is F8_E4M3"]);
    refused_with(
        &|file| (0..2).for_each(|rank| file.zeros(&format!("x.{rank}"), Dtype::BF16, &[3 - rank, 4])),
        &["\"scales.0\" is not allowed", "x.0 is BF16"],
    );
}

#[test]
fn rows_of_fp4_start_on_bytes() {
    let fp4 = |hidden: usize| {
        let mut contents = Contents::scaled();
        for (rank, tokens) in [3, 2].into_iter().enumerate() {
            contents.zeros(
                &format!("x.{rank}"),
                Dtype::F4,
                &[if hidden.is_multiple_of(2) { tokens } else { 0 }, hidden],
            );
        }
        contents
    };
    let problem = parse(&fp4(6).bytes()).unwrap();
    assert_eq!((problem.dtype, problem.hidden, problem.ranks[0].x.len()), (DType::F4E2M1, 6, 9));
    refused(&fp4(5).bytes(), &["\"x.0\" of F4 has H = 5", "start within bytes", "an even H"]);
    let mut plain = fp4(6);
    plain.remove("scales.0");
    refused(&plain.bytes(), &["\"scales.0\" is missing", "x is F4"]);
}

#[test]
fn experts_are_checked() {
    let set = |value: &str| {
        let value = value.to_owned();
        move |file: &mut Contents| _ = file.metadata.insert("experts".into(), value)
    };
    refused_with(|file| file.metadata.clear(), &["\"experts\" is missing"]);
    for wrong in ["", "many", "5.0", "-5", "0", "16777217", "99999999999999999999999"] {
        refused_with(set(wrong), &[&format!("\"experts\" is {wrong:?}"), "\"1\" to \"16777216\""]);
    }
    refused_with(set("6"), &["\"expert_scale\"", "[5]", "[6]"]);
    refused_with(
        |file| file.set("expert_rank", Dtype::I32, &[5], i32s(&[0, 1, 2, 0, 0])),
        &["expert 2", "rank 2", "0 to 1"],
    );
    refused_with(|file| file.set("expert_rank", Dtype::I32, &[5], i32s(&[0, -1, 0, 0, 0])), &["expert 1", "rank -1"]);
    refused_with(
        |file| (0..2).for_each(|rank| file.remove(&format!("topk_weights.{rank}"))),
        &["\"expert_scale\" is not allowed", "topk_weights"],
    );
}

#[test]
fn indexes_are_checked() {
    for (value, shown) in [(5, "5"), (-2, "-2"), (i32::MIN, "-2147483648"), (i32::MAX, "2147483647")] {
        refused_with(
            |file| file.set("topk_idx.1", Dtype::I32, &[2, 2], i32s(&[-1, 4, 0, value])),
            &["\"topk_idx.1\"", "slot 1 of token 1", &format!("is {shown};"), "0 to 4", "-1 to drop"],
        );
    }
    // As I32 each of these would be a valid index.
    for value in [1 << 32, (1 << 32) + 4, i64::MIN, -(1 << 32) - 1] {
        refused_with(
            |file| file.set("topk_idx.0", Dtype::I64, &[3, 2], i64s(&[0, 0, value, 0, 0, 0])),
            &["\"topk_idx.0\"", "slot 0 of token 1", &format!("is {value};")],
        );
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("none.safetensors");
    let error = read(&path).unwrap_err();
    assert!(matches!(error, FileError::System { .. }), "{error}");
    assert!(error.to_string().contains("none.safetensors"), "{error}");
    let error = read(directory.path()).unwrap_err();
    assert!(matches!(error, FileError::NotAFile { .. }), "{error}");
    fs::write(&path, &Contents::sample().bytes()[..300]).unwrap();
    let error = read(&path).unwrap_err();
    assert!(matches!(error, FileError::Format { .. }), "{error}");
    assert!(error.to_string().contains("none.safetensors: truncated"), "{error}");
}

/// What a file calls a type.
fn file_type(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F8E4M3 => Dtype::F8_E4M3,
        DType::F8E4M3FNUZ => Dtype::F8_E4M3FNUZ,
        _ => Dtype::F4,
    }
}

/// The file of a problem, with indexes as I64 if `wide`.
fn contents(problem: &Problem, wide: bool) -> Contents {
    let mut contents = Contents::default();
    contents.metadata.insert("experts".into(), problem.experts().to_string());
    let dtype = file_type(problem.dtype);
    for (rank, input) in problem.ranks.iter().enumerate() {
        let tokens = input.tokens;
        contents.set(format!("x.{rank}"), dtype, &[tokens, problem.hidden], input.x.clone());
        if problem.dtype.is_scaled() {
            contents.set(format!("scales.{rank}"), Dtype::F32, &[tokens, problem.scales], f32s(&input.scales));
        }
        let name = format!("topk_idx.{rank}");
        if wide {
            let wide: Vec<_> = input.topk_idx.iter().copied().map(i64::from).collect();
            contents.set(name, Dtype::I64, &[tokens, problem.topk], i64s(&wide));
        } else {
            contents.set(name, Dtype::I32, &[tokens, problem.topk], i32s(&input.topk_idx));
        }
        if problem.weighted {
            let name = format!("topk_weights.{rank}");
            contents.set(name, Dtype::F32, &[tokens, problem.topk], f32s(&input.topk_weights));
        }
    }
    let map: Vec<_> = problem.expert_rank.iter().map(|&rank| rank as i32).collect();
    contents.set("expert_rank", Dtype::I32, &[problem.experts()], i32s(&map));
    if let Some(scale) = &problem.expert_scale {
        contents.set("expert_scale", Dtype::F32, &[problem.experts()], f32s(scale));
    }
    contents
}

/// Bits, which tell NaNs apart and make them equal to themselves.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[track_caller]
fn assert_same(a: &Problem, b: &Problem) {
    assert_eq!((a.dtype, a.combine_dtype, a.hidden), (b.dtype, b.combine_dtype, b.hidden));
    assert_eq!((a.topk, a.scales, a.weighted), (b.topk, b.scales, b.weighted));
    assert_eq!(a.expert_rank, b.expert_rank);
    assert_eq!(a.expert_scale.as_deref().map(bits), b.expert_scale.as_deref().map(bits));
    assert_eq!(a.ranks.len(), b.ranks.len());
    for (a, b) in a.ranks.iter().zip(&b.ranks) {
        assert_eq!((a.tokens, &a.x, &a.topk_idx), (b.tokens, &b.x, &b.topk_idx));
        assert_eq!((bits(&a.scales), bits(&a.topk_weights)), (bits(&b.scales), bits(&b.topk_weights)));
    }
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

/// The least number of elements, from `hidden` on, that rows of a file may have.
fn in_a_file(dtype: DType, hidden: usize) -> usize {
    if dtype == DType::F4E2M1 { hidden.next_multiple_of(2) } else { hidden }
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

#[test]
fn generated_problems_are_valid_files_and_reproducible() {
    for dtype in DType::ALL {
        for weighted in [false, true] {
            // E < R, E not a multiple of R, H not a multiple of a block.
            for (ranks, tokens, hidden, experts) in [(5, 3, 300, 3), (3, 0, 1, 7), (1, 2, 128, 1)] {
                let hidden = in_a_file(dtype, hidden);
                let options = GenerateOptions {
                    ranks,
                    tokens,
                    hidden,
                    topk: 2,
                    experts,
                    dtype,
                    weighted,
                    ..GenerateOptions::default()
                };
                let problem = generate(&options);
                assert_eq!(problem, generate(&options));
                assert_eq!(problem.ranks.len(), ranks);
                assert_eq!(problem.expert_scale.is_some(), weighted);
                assert_same(&parse(&contents(&problem, false).bytes()).unwrap(), &problem);
                let other = generate(&GenerateOptions { seed: 1, ..options });
                assert!(tokens == 0 || problem.ranks[0].x != other.ranks[0].x);
            }
        }
    }
}

#[test]
fn generated_values_are_spread_over_their_range() {
    for dtype in DType::ALL {
        let options = GenerateOptions { ranks: 2, tokens: 4, hidden: 1024, dtype, ..GenerateOptions::default() };
        let problem = generate(&options);
        let value = |rank: &RankInput, at: usize| {
            let (token, h) = (at / problem.hidden, at % problem.hidden);
            let scale = if dtype.is_scaled() { rank.scales[token * problem.scales + problem.scale_of(h)] } else { 1.0 };
            campanile::moe::number::read(dtype, &rank.x, at) * scale
        };
        for rank in &problem.ranks {
            let values: Vec<_> = (0..4096).map(|at| value(rank, at)).collect();
            assert!(values.iter().all(|value| value.abs() <= 1.0));
            assert!(values.iter().sum::<f32>().abs() < 200.0, "{dtype}: about as many on both sides of 0");
            assert!(values.iter().filter(|value| value.abs() > 0.25).count() > 1000, "{dtype}");
        }
        assert_ne!(problem.ranks[0].x, problem.ranks[1].x);
        assert!(problem.expert_scale.unwrap().iter().all(|scale| (0.5..1.5).contains(scale)));
    }
}
