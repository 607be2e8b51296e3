//! P2P and MoE by HIP's side of the call table, through the shim of `crates/gpu/tests/hip_shim`: what ranks exchange, what
//! `campanile info` says, and what errors say. The shim is test code. It stands for AMD's library and is not it: behind it
//! are the emulator's devices, of 64 lanes. Conformance through it is in `conformance.rs`.

mod emulated;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use campanile::core::MoeCombine;
use campanile::core::selection::Preference;
use campanile::gpu::{Backend, Cache, CallError, Coherence, Gpu, LoadError, Settings};
use campanile::moe::gpu::exchange::DeviceProblem;
use campanile::moe::gpu::{GpuMoe, GpuMoeError, GpuMoeOptions, Index};
use campanile::moe::{RankOutput, Received, Solution, model};
use campanile::{Config, GpuChoice, MoeConfig, Plugins, Set, threads_over};
use safetensors::tensor::{Dtype, TensorView};

#[path = "plugins/compiler.rs"]
mod compiler;
#[path = "plugins/library.rs"]
mod library;

const RANKS: usize = 3;
const TOKENS: usize = 5;
const HIDDEN: usize = 40;
/// Bounds every wait; nothing here takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

fn shim() -> String {
    library::Library::HipShim.file().display().to_string()
}

fn settings(libamdhip64: &str) -> Settings {
    Settings { libamdhip64: Some(libamdhip64.to_owned()), ..Settings::default() }
}

fn hip() -> Gpu {
    Gpu::open(Backend::Hip, &settings(&shim())).expect("the shim starts")
}

/// The program on HIP devices of the shim.
fn campanile(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(library::campanile());
    command.args(arguments).env("CAMPANILE_KERNEL_CACHE", emulated::kernels());
    command.env("CAMPANILE_GPU", "hip").env("CAMPANILE_LIBAMDHIP64", shim());
    command.envs(environment.iter().copied()).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn has_compiler() -> bool {
    let found = campanile::gpu::has_compiler(&hip());
    if !found {
        println!("not run: no C++ compiler for the emulator's kernels");
    }
    found
}

/// Three ranks, which are threads, dispatch to experts and combine by `combine`: what each has is the model's, bit for bit.
fn exchange(combine: MoeCombine) {
    if !has_compiler() {
        return;
    }
    let config = Config::default()
        .with_transport(Preference::of(["p2p"]).expect("one name"))
        .and_then(|config| config.with_gpu(GpuChoice::Hip))
        .and_then(|config| config.with_libamdhip64(Some(shim())))
        .and_then(|config| config.with_timeout(PATIENCE))
        .expect("these values are allowed");
    let (gpu, cache) = (hip(), Cache::at(emulated::kernels()));
    let plugins = Plugins::of(&config).unwrap();
    let ended = threads_over(&plugins, RANKS, &plugins.options(&config).unwrap(), |comm| {
        let (rank, device) = (comm.rank(), gpu.device(comm.device().expect("p2p has a device for each rank"))?);
        assert_eq!((device.label(), device.wave()), (format!("hip:{rank}"), 64));
        let config = MoeConfig { combine, ..emulated::moe_config(RANKS, TOKENS, HIDDEN) };
        let moe = GpuMoe::new(&comm, &device, config, &GpuMoeOptions::default(), &cache)?;
        let problem = emulated::problem(rank, RANKS, TOKENS, HIDDEN);
        let mut expected = model::solve(&problem);
        expected.ranks.iter_mut().for_each(|rank| rank.received = Received::default());
        let part = DeviceProblem::new(&moe, &problem, Index::I32, 0)?;
        for round in 0..3 {
            part.poison(0x5a)?;
            // SAFETY: the part is alive until its stream is done.
            unsafe { moe.launch_round(Set(round % 2), &part)? };
            moe.finish(&part.stream, PATIENCE)?;
            let mut got = Solution { ranks: vec![RankOutput::default(); RANKS] };
            got.ranks[rank] = part.output(&problem)?;
            model::compare(&problem, &expected, &got).unwrap();
        }
        assert_eq!(moe.combine_by(), combine);
        Ok::<_, GpuMoeError>(())
    });
    ended.into_iter().for_each(|ended| ended.unwrap());
}

#[test]
fn an_exchange_by_pull_is_that_of_the_model() {
    exchange(MoeCombine::Pull);
}

#[test]
fn an_exchange_by_push_is_that_of_the_model() {
    exchange(MoeCombine::Push);
}

/// A problem of three ranks, one of them without tokens, as a file.
fn problem_file(folder: &Path) -> PathBuf {
    let mut tensors = BTreeMap::new();
    for rank in 0..RANKS {
        let tokens = [3, 0, 7][rank];
        let problem = emulated::problem(rank, RANKS, tokens, HIDDEN);
        let input = &problem.ranks[rank];
        let indices: Vec<u8> = input.topk_idx.iter().flat_map(|expert| expert.to_le_bytes()).collect();
        let weights: Vec<u8> = input.topk_weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
        tensors.insert(format!("x.{rank}"), (Dtype::BF16, vec![tokens, HIDDEN], input.x.clone()));
        tensors.insert(format!("topk_idx.{rank}"), (Dtype::I32, vec![tokens, emulated::TOPK], indices));
        tensors.insert(format!("topk_weights.{rank}"), (Dtype::F32, vec![tokens, emulated::TOPK], weights));
    }
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name, TensorView::new(*dtype, shape.clone(), data).expect("the shape fits the data"))
    });
    let metadata = [("experts".to_owned(), emulated::EXPERTS.to_string())].into();
    let path = folder.join("in.safetensors");
    std::fs::write(&path, safetensors::serialize(views, Some(metadata)).unwrap()).unwrap();
    path
}

/// Ranks that are processes map each other's windows by descriptors of HIP.
#[test]
fn processes_give_the_bytes_of_the_host() {
    if !has_compiler() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let input = problem_file(folder.path());
    let run = |device: &str| {
        let output = folder.path().join(device);
        let files = ["--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()];
        let ran =
            campanile(&[&["moe", "--device", device, "--dump-recv", "--timeout", "60"][..], &files].concat(), &[]);
        assert!(ran.status.success(), "{device}: {}{}", text(&ran.stdout), text(&ran.stderr));
        (std::fs::read(&output).unwrap(), text(&ran.stdout))
    };
    let ((host, _), (device, report)) = (run("host"), run("gpu"));
    assert!(host == device, "another result than the host's");
    assert!(report.contains("processes on gpu · transport p2p"), "{report}");
}

#[test]
fn info_says_what_the_devices_are_and_whom_they_reach() {
    let output = campanile(&["info", "--json"], &[("HIP_SHIM_APART", "2")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let transports = info["transports"].as_array().unwrap();
    let p2p = transports.iter().find(|transport| transport["name"] == "p2p").unwrap();
    let device = |ordinal: usize| {
        let device = &p2p["devices"][ordinal];
        assert_eq!((&device["device"], &device["usable"]), (&format!("hip:{ordinal}").into(), &true.into()));
        device["note"].as_str().unwrap().to_owned()
    };
    let first =
        "HIP shim over emulated device of 64 lanes at 0000:00:00.0, reaches hip:1, hip:3, no peer access to hip:2";
    assert_eq!(device(0), first);
    assert!(device(2).ends_with("no peer access to hip:0, hip:1, hip:3"), "{}", device(2));
    // A job that needs it says so too, and names both.
    let output = campanile(&["moe", "--device", "gpu", "--as", "threads"], &[("HIP_SHIM_APART", "2")]);
    let error = text(&output.stderr);
    assert!(!output.status.success());
    assert!(error.contains("no peer access from hip@0000:00:0") && error.contains("hip@0000:00:02.0"), "{error}");
}

#[test]
fn a_library_that_is_not_there_is_told_with_what_was_tried() {
    let nowhere = [("CAMPANILE_LIBAMDHIP64", "/nowhere/libamdhip64.so"), ("CAMPANILE_TRANSPORT", "p2p")];
    let output = campanile(&["moe", "--device", "gpu"], &nowhere);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    for part in ["HIP runtime (libamdhip64)", "/nowhere/libamdhip64.so", "No such file", "CAMPANILE_LIBAMDHIP64"] {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
    // The runtime's hipRTC is not taken for one that was asked for by name and is not there, unless there is none.
    let settings = Settings { libhiprtc: Some("/nowhere/libhiprtc.so".to_owned()), ..settings("libc.so.6") };
    let error = Gpu::open(Backend::Hip, &settings).unwrap_err();
    assert!(matches!(&error, LoadError::NotStarted { .. }));
    assert!(error.to_string().contains("libc.so.6 has no hipInit"), "{error}");
}

/// Every hipRTC gives the same version of its own; the runtime's is in the key of the cache of kernels too.
#[test]
fn the_compiler_is_named_with_the_version_of_the_runtime() {
    assert_eq!(hip().calls().compiler().unwrap(), "hipRTC 0.1 of HIP 7.2.0");
}

/// A runtime of another version, which has no call that is needed: the call is named when it is needed, and no earlier.
#[test]
fn a_symbol_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("old.c");
    let calls = "int hipInit(unsigned flags) { return 0; } int hipGetDeviceCount(int* count) { *count = 1; return 0; }
        int hipSetDevice(int device) { return 0; }
        int hipDeviceGetAttribute(int* value, int attribute, int device) { *value = 64; return 0; }";
    std::fs::write(&source, calls).unwrap();
    let flags = ["-std=c11", "-shared", "-fPIC", "-Wno-unused-parameter"];
    let Some(library) = compiler::build(&[source], folder.path().join("libamdhip64.so"), &flags) else { return };
    let gpu = Gpu::open(Backend::Hip, &settings(library.to_str().unwrap())).unwrap();
    let error = gpu.device(0).unwrap().allocate_virtual(1, Coherence::Uncached).unwrap_err();
    let named = format!("{} has no hipMemGetAllocationGranularity; another version", library.display());
    assert!(error.to_string().contains(&named), "{error}");
    let error = gpu.calls().compiler().unwrap_err().to_string();
    for part in ["hipRTC", "libhiprtc.so.7", "/opt/rocm/lib/libhiprtc.so", "CAMPANILE_LIBHIPRTC"] {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
}

#[test]
fn a_call_that_fails_is_told_with_its_arguments_and_the_words_of_hip() {
    let (gpu, properties) = (hip(), "kind: 1073741824, handle_types: 1, location: Location { kind: 1, id: 1 }");
    // Not what physical memory is a multiple of.
    let error = gpu.calls().allocation_create(1, 100, Coherence::Uncached).unwrap_err();
    assert!(matches!(&error, CallError::Failed { call: "hipMemCreate", code: 1, .. }), "{error:?}");
    let error = error.to_string();
    for part in ["hipMemCreate(allocation 0x", "bytes 100", properties, "= 1: hipErrorInvalidValue: "] {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
    // Events belong to streams of their device.
    let (event, stream) = (gpu.device(0).unwrap().event().unwrap(), gpu.device(1).unwrap().stream().unwrap());
    let error = event.record(&stream).unwrap_err().to_string();
    assert!(error.starts_with("hipEventRecord(event 0x") && error.contains("= 400: hipErrorInvalidHandle"), "{error}");
}

/// What an old HIP answers to a kind of memory that it does not know is not what its user needs to hear.
#[test]
fn a_runtime_without_uncached_memory_is_named_with_its_version() {
    let info = campanile(&["info"], &[("HIP_SHIM_VERSION", "60443483")]);
    assert!(info.status.success(), "{}", text(&info.stderr));
    let (said, left_out) =
        (text(&info.stdout), "device hip:0: left out, HIP cannot make uncached memory that is shared");
    for part in [left_out, "since 7.0.2", "HIP 6.4.43483: hipMemGetAllocationGranularity(", "= 1: hipErrorInvalidValue"]
    {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}
