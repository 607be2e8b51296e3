//! The tensors and metadata of a file, as the `safetensors` crate writes them.

use std::collections::{BTreeMap, HashMap};

use campanile::moe::{DType, Problem};
use safetensors::tensor::{Dtype, TensorView, serialize};

/// The tensors and metadata of a file, right or wrong.
#[derive(Clone, Default)]
pub(super) struct Contents {
    pub(super) metadata: HashMap<String, String>,
    pub(super) tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl Contents {
    /// Two ranks of 3 and 2 tokens, hidden 4, top-2 of 5 experts, bf16, with weights and everything that is optional.
    pub(super) fn sample() -> Self {
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
    pub(super) fn scaled() -> Self {
        let mut contents = Self::sample();
        for (rank, tokens) in [3, 2].into_iter().enumerate() {
            contents.set(format!("x.{rank}"), Dtype::F8_E4M3, &[tokens, 4], vec![0x38; tokens * 4]);
            contents.set(format!("scales.{rank}"), Dtype::F32, &[tokens, 2], f32s(&vec![2.0; tokens * 2]));
        }
        contents
    }

    pub(super) fn set(&mut self, name: impl Into<String>, dtype: Dtype, shape: &[usize], data: Vec<u8>) {
        self.tensors.insert(name.into(), (dtype, shape.to_vec(), data));
    }

    /// A tensor of zeros.
    pub(super) fn zeros(&mut self, name: &str, dtype: Dtype, shape: &[usize]) {
        self.set(name, dtype, shape, vec![0; shape.iter().product::<usize>() * dtype.bitsize() / 8]);
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.tensors.remove(name).expect("the sample has it");
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let views = self.tensors.iter().map(|(name, (dtype, shape, data))| {
            (name.as_str(), TensorView::new(*dtype, shape.clone(), data).expect("a tensor is as large as its shape"))
        });
        serialize(views, Some(self.metadata.clone())).expect("it is a small file")
    }
}

pub(super) fn i32s(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(super) fn i64s(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(super) fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// What a file calls a type.
pub(super) fn file_type(dtype: DType) -> Dtype {
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
pub(super) fn contents(problem: &Problem, wide: bool) -> Contents {
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
pub(super) fn assert_same(a: &Problem, b: &Problem) {
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

/// The least number of elements, from `hidden` on, that rows of a file may have.
pub(super) fn in_a_file(dtype: DType, hidden: usize) -> usize {
    if dtype == DType::F4E2M1 { hidden.next_multiple_of(2) } else { hidden }
}
