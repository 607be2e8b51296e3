//! The kernels: compiled for each target with the instructions counted, and run in the emulator under ThreadSanitizer.
//!
//! No GPU and no SDK is needed. The compilers come from PyPI, pinned: clang and lld of the `ziglang` wheel for gfx942
//! and gfx950, NVRTC for sm_90 through this project's own loader, and nvdisasm. They are kept in `target/kernel-tools`.
//! Where they cannot be had, the check says what it did not run, and passes.
//!
//! `kernels/counts.toml` holds the memory, fence and barrier instructions of every kernel on every target, as the pinned
//! compilers make them: each change of it is a change of what a kernel does to memory, and is reviewed as one.
//! `cargo xtask kernels --bless` writes it anew. What may never be there is refused even so: see [`listing`].

mod counts;
mod emulator;
mod listing;
mod tools;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use campanile_gpu::{Compile, CrossCompiler, Settings, Source};

use crate::cargo::root;
use counts::Counts;
use tools::Tools;

/// AMD's targets; NVIDIA's is [`SM`].
const GFX: [&str; 2] = ["gfx942", "gfx950"];
const SM: &str = "sm_90";

/// What else is made of a source: the source, a definition, and what the names of its kernels then end with.
const VARIANTS: [(&str, [&str; 2], &str); 1] =
    [("moe/dispatch.cpp", ["CAMPANILE_MOE_QUANTIZE", "Type::F8E4M3"], "_quantize")];

pub fn check() -> anyhow::Result<()> {
    run(false)
}

pub fn bless() -> anyhow::Result<()> {
    run(true)
}

fn run(bless: bool) -> anyhow::Result<()> {
    emulator::check()?;
    let tools = match Tools::get() {
        Ok(tools) => tools,
        Err(reason) => {
            println!("NOT RUN: machine code for {}, {SM}: {reason:#}", GFX.join(", "));
            return Ok(());
        }
    };
    let sources = sources()?;
    let found = count(&tools, &sources)?;
    if bless {
        found.write()?;
        println!("{} kernels written to {}", found.len(), counts::FILE);
        return Ok(());
    }
    let differences = Counts::read()?.differences(&found);
    if !differences.is_empty() {
        bail!(
            "the instructions are not those of {}; if that is meant, `cargo xtask kernels --bless`:\n  {}",
            counts::FILE,
            differences.join("\n  ")
        );
    }
    println!("{} kernels of {} sources on {}, {SM}: as committed", found.len(), sources.len(), GFX.join(", "));
    Ok(())
}

fn kernels() -> PathBuf {
    root().join("kernels")
}

/// Every C++ file below `kernels/` but the emulator's, by its relative name.
fn sources() -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![kernels()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.extend((path.file_name() != Some("emulator".as_ref())).then_some(path));
            } else if path.extension() == Some("cpp".as_ref()) {
                found.push(path.strip_prefix(kernels())?.display().to_string());
            }
        }
    }
    if found.is_empty() {
        bail!("no kernel was found in {}", kernels().display());
    }
    found.sort();
    Ok(found)
}

/// The instructions of all kernels.
fn count(tools: &Tools, sources: &[String]) -> anyhow::Result<Counts> {
    let settings = Settings { libnvrtc: Some(tools.nvrtc().display().to_string()), ..Settings::default() };
    let nvrtc = CrossCompiler::nvrtc(&settings)?;
    let folder = tempfile::tempdir()?;
    let mut counts = Counts::default();
    let variants = VARIANTS.iter().map(|(source, definition, ending)| (*source, Some(*definition), *ending));
    for (source, definition, ending) in sources.iter().map(|source| (source.as_str(), None, "")).chain(variants) {
        for gfx in GFX {
            let text = tools.amd_listing(&kernels(), source, definition, gfx, folder.path())?;
            counts.add(gfx, ending, listing::amd(&text).with_context(|| format!("{source} for {gfx}"))?);
        }
        let text = std::fs::read_to_string(kernels().join(source))?;
        let mut source_with_headers = Source::new(source, text);
        for (name, text) in headers(source)? {
            source_with_headers = source_with_headers.with_header(name, text);
        }
        let compile = match definition {
            Some([name, value]) => Compile::default().define(name, value),
            None => Compile::default(),
        };
        let cubin = nvrtc.compile(&source_with_headers, SM, &compile)?;
        let text = tools.nvidia_listing(&cubin, folder.path())?;
        counts.add(SM, ending, listing::nvidia(&text).with_context(|| format!("{source} for {SM}"))?);
    }
    Ok(counts)
}

/// Headers that lie beside the source.
fn headers(source: &str) -> anyhow::Result<Vec<(String, String)>> {
    let folder = Path::new(source).parent().unwrap_or(Path::new(""));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(kernels().join(folder))? {
        let path = entry?.path();
        if path.extension() == Some("h".as_ref()) {
            let name = path.strip_prefix(kernels())?.display().to_string();
            found.push((name, std::fs::read_to_string(&path)?));
        }
    }
    Ok(found)
}
