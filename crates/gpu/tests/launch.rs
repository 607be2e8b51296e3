//! A launch allocates nothing: neither a plan's, nor a graph's, nor asking whether it is done.
//!
//! On the HIP side of the table, through the shim, whose own allocations are its own allocator's; the emulator as a table
//! does allocate.

#[path = "../../../tests/allocations/mod.rs"]
mod allocations;
mod emulated;

use std::time::Duration;

use campanile_gpu::{Backend, Coherence, Compile, CompileError, Gpu, Grid, Plan, Residency, Settings, Source};

use allocations::ALLOCATIONS;
use emulated::cache;

#[derive(Clone, Copy)]
#[repr(C)]
struct Copy16 {
    source: u64,
    target: u64,
    count: u64,
}

#[test]
fn a_launch_allocates_nothing() {
    let test = std::env::current_exe().unwrap();
    let shim = test.ancestors().nth(2).unwrap().join("examples/libamdhip64.so");
    let libamdhip64 = Some(shim.to_str().expect("the path of the target folder is UTF-8").to_owned());
    let gpu = Gpu::open(Backend::Hip, &Settings { libamdhip64, ..Settings::default() }).unwrap();
    let device = gpu.device(0).unwrap();
    let module = match device.compile(&Source::smoke(), &Compile::default(), &cache()) {
        Ok(module) => module,
        Err(error @ CompileError::Source { .. }) if error.to_string().contains("CAMPANILE_CXX") => {
            println!("not run: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let grid = Grid { blocks: 2, threads: 64, shared_bytes: 0 };
    let plan = Plan::<Copy16>::new(&module, "smoke_copy", grid, Residency::Any).unwrap();
    let stream = device.stream().unwrap();
    let memory = device.allocate(4096, Coherence::Coarse).unwrap();
    let argument = Copy16 { source: memory.address(), target: memory.address() + 2048, count: 128 };
    // SAFETY: the memory outlives the wait at the end.
    let graph = unsafe { stream.capture(|stream| plan.launch(stream, &argument)).unwrap() };

    let before = ALLOCATIONS.get();
    for _ in 0..10 {
        // SAFETY: as above.
        unsafe {
            plan.launch(&stream, &argument).unwrap();
            graph.launch(&stream).unwrap();
        }
        let _ = stream.done().is_ok();
    }
    let allocated = ALLOCATIONS.get() - before;
    stream.synchronize(Duration::from_secs(20)).unwrap();
    assert_eq!(allocated, 0);
    assert!(ALLOCATIONS.get() > 0, "allocations are counted");
}
