//! Emulated devices, and the cache of their kernels, which all tests share.

#![allow(dead_code, reason = "not every test that has this module needs all of it")]

use std::path::Path;

use campanile_gpu::{Cache, Device, Emulation, Gpu, Settings};

/// The devices; `None`, and a word about it, without a C++ compiler.
pub fn emulate(emulation: Emulation) -> Option<Vec<Device>> {
    let gpu = Gpu::emulator(emulation, &Settings::default()).unwrap();
    if !campanile_gpu::has_compiler(&gpu) {
        println!("not run: no C++ compiler for the emulator's kernels");
        return None;
    }
    Some(gpu.devices().unwrap())
}

pub fn cache() -> Cache {
    Cache::at(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"))
}
