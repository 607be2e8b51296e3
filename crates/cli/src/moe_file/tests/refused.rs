//! Files that are wrong in every way, and what is said of them.

use std::fs;

use campanile::moe::DType;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::super::input::parse;
use super::super::{FileError, read};
use super::contents::{Contents, i32s, i64s};

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
