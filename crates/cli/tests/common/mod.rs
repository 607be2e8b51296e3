//! The program as a user runs it, and the files that it is given.

#![allow(dead_code, reason = "not every test that has this module needs all of it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use safetensors::tensor::{Dtype, TensorView};

/// Compiled kernels, for all tests.
fn kernels() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels")
}

pub fn campanile(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command
        .args(arguments)
        .env_remove("CAMPANILE_TIMEOUT")
        .env("CAMPANILE_KERNEL_CACHE", kernels())
        .output()
        .expect("the program starts")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn good(arguments: &[&str]) -> String {
    let output = campanile(arguments);
    assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

pub fn refused(arguments: &[&str], fragments: &[&str]) {
    let output = campanile(arguments);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    for fragment in fragments {
        assert!(message.contains(fragment), "{arguments:?}: {fragment:?} is not in {message}");
    }
}

/// Whether rows of that type have scales.
pub fn is_scaled(dtype: Dtype) -> bool {
    dtype.bitsize() <= 8
}

/// A problem file with adversarial payloads.
pub struct File {
    pub tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
    experts: usize,
}

impl File {
    pub fn new(tokens: &[usize], hidden: usize, topk: usize, experts: usize, dtype: Dtype, seed: u64) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut tensors = BTreeMap::new();
        for (rank, &tokens) in tokens.iter().enumerate() {
            // Any bits: NaN, infinities, zeroes and subnormals among them.
            let x = (0..tokens * hidden * dtype.bitsize() / 8).map(|_| random.next_u32() as u8).collect();
            tensors.insert(format!("x.{rank}"), (dtype, vec![tokens, hidden], x));
            let slot = |random: &mut Xoshiro256PlusPlus| (random.next_u32() as usize % (experts + 1)) as i32 - 1;
            let idx = (0..tokens * topk).flat_map(|_| slot(&mut random).to_le_bytes()).collect();
            tensors.insert(format!("topk_idx.{rank}"), (Dtype::I32, vec![tokens, topk], idx));
            let weight = |random: &mut Xoshiro256PlusPlus| f32::from_bits(random.next_u32() & 0xc1ff_ffff);
            let weights = (0..tokens * topk).flat_map(|_| weight(&mut random).to_le_bytes()).collect();
            tensors.insert(format!("topk_weights.{rank}"), (Dtype::F32, vec![tokens, topk], weights));
            if is_scaled(dtype) {
                let blocks = hidden.div_ceil(3);
                let scales =
                    (0..tokens * blocks).flat_map(|_| (random.next_u32() as f32 / 1e9).to_le_bytes()).collect();
                tensors.insert(format!("scales.{rank}"), (Dtype::F32, vec![tokens, blocks], scales));
            }
        }
        let scale = (0..experts).flat_map(|expert| (0.5 + expert as f32).to_le_bytes()).collect();
        tensors.insert("expert_scale".to_owned(), (Dtype::F32, vec![experts], scale));
        Self { tensors, experts }
    }

    pub fn map(mut self, ranks: &[i32]) -> Self {
        let bytes = ranks.iter().flat_map(|rank| rank.to_le_bytes()).collect();
        self.tensors.insert("expert_rank".to_owned(), (Dtype::I32, vec![ranks.len()], bytes));
        self
    }

    pub fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let views = self.tensors.iter().map(|(name, (dtype, shape, data))| {
            (name, TensorView::new(*dtype, shape.clone(), data).expect("the shape fits the data"))
        });
        let metadata = [("experts".to_owned(), self.experts.to_string())].into();
        let path = folder.join(name);
        std::fs::write(&path, safetensors::serialize(views, Some(metadata)).expect("it serializes"))
            .expect("it is written");
        path
    }
}

pub fn path(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}
