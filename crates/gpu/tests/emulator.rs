//! What the emulator keeps of a real device: asynchrony, sticky faults, refused handles, captures.

mod emulated;

use std::time::Duration;

use campanile_gpu::calls::StreamHandle;
use campanile_gpu::{
    Cache, CallError, Coherence, Compile, CompileError, Device, Emulation, Gpu, Grid, Memory, Module, Plan, Residency,
    Settings, Source,
};

use emulated::cache;

const PATIENCE: Duration = Duration::from_secs(20);

fn device(emulation: Emulation) -> Device {
    Gpu::emulator(emulation, &Settings::default()).unwrap().device(0).unwrap()
}

/// Kernels of a test, compiled; `None`, said, without a compiler.
fn compile(device: &Device, text: &str) -> Option<Module> {
    let source = Source::new("test.cpp", format!("#include \"portable.h\"\nusing namespace campanile;\n{text}"));
    match device.compile(&source, &Compile::default(), &cache()) {
        Ok(module) => Some(module),
        Err(CompileError::NoCompiler(reason)) => {
            println!("not run: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Words {
    words: u64,
}

fn plan(module: &Module, kernel: &str, blocks: u32, threads: u32) -> Plan<Words> {
    Plan::new(module, kernel, Grid { blocks, threads, shared_bytes: 0 }, Residency::Any).unwrap()
}

/// A barrier in divergent code ends the launch with an error that stays, and nothing hangs.
#[test]
fn divergence_is_a_sticky_fault() {
    for wave in [32, 64] {
        let device = device(Emulation { wave, ..Emulation::default() });
        let text = "struct Words { u32* words; };
            CAMPANILE_KERNEL(split_barrier, 256, Words, a) {
              if (thread_index() < 13) block_barrier(); else wave_barrier();
            }
            CAMPANILE_KERNEL(split_vote, 256, Words, a) { if (lane() < 13) wave_ballot(true); else block_barrier(); }
            CAMPANILE_KERNEL(fine, 256, Words, a) { a.words[grid_thread_index()] = 1; }";
        let Some(module) = compile(&device, text) else { return };
        for kernel in ["split_barrier", "split_vote"] {
            let device = Gpu::emulator(Emulation { wave, ..Emulation::default() }, &Settings::default());
            let device = device.unwrap().device(0).unwrap();
            let module = compile(&device, text).unwrap();
            let stream = device.stream().unwrap();
            let memory = device.allocate(4096, Coherence::Coarse).unwrap();
            let words = Words { words: memory.address() };
            // SAFETY: the memory outlives the waits below.
            unsafe { plan(&module, kernel, 2, 128).launch(&stream, &words).unwrap() };
            let error = stream.synchronize(PATIENCE).expect_err("the kernel is divergent");
            assert!(error.to_string().contains("divergent code"), "{error}");
            assert_eq!(error.code(), Some(719), "{error}");
            // SAFETY: as above.
            let later = unsafe { plan(&module, "fine", 1, 64).launch(&stream, &words) };
            assert!(later.is_err(), "{kernel}: the fault was forgotten");
            assert!(stream.done().is_err());
        }
        // Another table is another device.
        let stream = device.stream().unwrap();
        let memory = device.allocate(4096, Coherence::Coarse).unwrap();
        // SAFETY: the memory outlives the wait.
        unsafe { plan(&module, "fine", 1, 64).launch(&stream, &Words { words: memory.address() }).unwrap() };
        stream.synchronize(PATIENCE).unwrap();
    }
}

/// The CPU takes what a GPU does not: the emulator refuses it.
#[test]
fn accesses_that_are_not_aligned_are_faults() {
    let text = "struct Words { u32* words; };
        static u8* odd(Words a) { return reinterpret_cast<u8*>(a.words) + 4; }
        CAMPANILE_KERNEL(row, 64, Words, a) { store16(reinterpret_cast<Vec16*>(odd(a)), Vec16{}); }
        CAMPANILE_KERNEL(word, 64, Words, a) { load_relaxed<Scope::System>(reinterpret_cast<u64*>(odd(a))); }
        CAMPANILE_KERNEL(element, 64, Words, a) { store(reinterpret_cast<u16*>(odd(a) + 1), u16{}); }
        CAMPANILE_KERNEL(fine, 64, Words, a) { store(odd(a) + 1, u8{}); store(a.words + 1, 1u); }";
    for (kernel, bytes) in [("row", 16), ("word", 8), ("element", 2), ("fine", 0)] {
        let device = device(Emulation::default());
        let Some(module) = compile(&device, text) else { return };
        let (stream, memory) = (device.stream().unwrap(), device.allocate(64, Coherence::Coarse).unwrap());
        // SAFETY: the memory outlives the wait.
        unsafe { plan(&module, kernel, 1, 64).launch(&stream, &Words { words: memory.address() }).unwrap() };
        match stream.synchronize(PATIENCE) {
            Ok(()) => assert_eq!(kernel, "fine"),
            Err(error) => assert!(error.to_string().contains(&format!("an access of {bytes} bytes at")), "{error}"),
        }
    }
}

/// Threads that have ended are not waited for, by the block or by the wave.
#[test]
fn ended_threads_are_not_waited_for() {
    for wave in [32, 64] {
        let device = device(Emulation { wave, ..Emulation::default() });
        let text = "struct Words { u32* words; };
            CAMPANILE_KERNEL(early, 256, Words, a) {
              if (lane() % 4 == 3) return;
              block_barrier();
              a.words[thread_index()] = popcount(wave_ballot(true));
            }";
        let Some(module) = compile(&device, text) else { return };
        let stream = device.stream().unwrap();
        let memory = device.allocate(4 * 128, Coherence::Coarse).unwrap();
        // SAFETY: a word a thread; the download waits.
        unsafe { plan(&module, "early", 1, 128).launch(&stream, &Words { words: memory.address() }).unwrap() };
        let mut bytes = vec![0; 4 * 128];
        stream.download(&memory, 0, &mut bytes).unwrap();
        for (thread, word) in bytes.chunks_exact(4).enumerate() {
            let wanted = if thread % 4 == 3 { 0 } else { wave / 4 * 3 };
            assert_eq!(word, wanted.to_ne_bytes(), "wave {wave}, thread {thread}");
        }
    }
}

/// A kernel whose result depends on the order of its threads is found by another schedule; the same one repeats itself.
#[test]
fn schedules_differ_and_repeat() {
    let text = "struct Words { u32* words; };
        CAMPANILE_KERNEL(order, 256, Words, a) {
          a.words[thread_index()] = fetch_add_relaxed<Scope::Device>(a.words + 256, 1u);
        }
        CAMPANILE_KERNEL(settled, 256, Words, a) {
          CAMPANILE_SHARED u32 shared[256];
          shared[thread_index()] = thread_index();
          block_barrier();
          a.words[thread_index()] = shared[(thread_index() + 77) % 128];
        }";
    let run = |kernel: &str, schedule: u64| {
        let device = device(Emulation { schedule, ..Emulation::default() });
        let module = compile(&device, text)?;
        let stream = device.stream().unwrap();
        let memory = device.allocate(4 * 257, Coherence::Coarse).unwrap();
        stream.upload(&memory, 0, &[0; 4 * 257]).unwrap();
        // SAFETY: 257 words; the download waits.
        unsafe { plan(&module, kernel, 1, 128).launch(&stream, &Words { words: memory.address() }).unwrap() };
        let mut bytes = vec![0; 4 * 128];
        stream.download(&memory, 0, &mut bytes).unwrap();
        Some(bytes)
    };
    let Some(in_order) = run("order", 0) else { return };
    let words: Vec<u8> = (0..128u32).flat_map(u32::to_ne_bytes).collect();
    assert_eq!(in_order, words);
    let others: std::collections::HashSet<_> = (1..9).map(|schedule| run("order", schedule)).collect();
    assert!(others.len() > 4, "{} orders of 8", others.len());
    assert_eq!(run("order", 5), run("order", 5));
    let settled = run("settled", 0);
    assert!((1..9).all(|schedule| run("settled", schedule) == settled));
}

/// Kernels of two devices, and the host, at once: each waits for the other.
#[test]
fn devices_are_concurrent() {
    let gpu = Gpu::emulator(Emulation { devices: 2, ..Emulation::default() }, &Settings::default()).unwrap();
    let (first, second) = (gpu.device(0).unwrap(), gpu.device(1).unwrap());
    let text = "struct Words { u64* words; };
        CAMPANILE_KERNEL(ping, 64, Words, a) {
          if (thread_index() != 0) return;
          for (u64 i = 1; i <= 100; i++) {
            store_release<Scope::System>(a.words, i);
            while (load_acquire<Scope::System>(a.words + 1) < i) pause();
          }
        }
        CAMPANILE_KERNEL(pong, 64, Words, a) {
          if (thread_index() != 0) return;
          for (u64 i = 1; i <= 100; i++) {
            while (load_acquire<Scope::System>(a.words) < i) pause();
            store_release<Scope::System>(a.words + 1, i);
          }
        }";
    let Some(module) = compile(&first, text) else { return };
    let other = compile(&second, text).unwrap();
    let (one, two) = (first.stream().unwrap(), second.stream().unwrap());
    let memory = first.allocate(16, Coherence::Uncached).unwrap();
    one.upload(&memory, 0, &[0; 16]).unwrap();
    let words = Words { words: memory.address() };
    // SAFETY: both words live until both streams have been waited for.
    unsafe {
        plan(&module, "ping", 1, 64).launch(&one, &words).unwrap();
        plan(&other, "pong", 1, 64).launch(&two, &words).unwrap();
    }
    one.synchronize(PATIENCE).unwrap();
    two.synchronize(PATIENCE).unwrap();
    first.synchronize(PATIENCE).unwrap();
    let mut bytes = [0; 16];
    one.download(&memory, 0, &mut bytes).unwrap();
    assert_eq!(bytes[..8], 100u64.to_ne_bytes());
    assert_eq!(bytes[8..], 100u64.to_ne_bytes());
}

#[test]
fn handles_that_are_not_alive_are_refused() {
    let device = device(Emulation::default());
    let calls = device.gpu().calls();
    let dead = {
        let stream = device.stream().unwrap();
        stream.handle()
    };
    // SAFETY: handles are looked up.
    unsafe {
        for stream in [dead, StreamHandle { raw: 12, device: 0 }] {
            let error = calls.stream_done(stream).expect_err("it is not alive");
            assert_eq!(error.code(), Some(400), "{error}");
        }
        assert_eq!(calls.free(0, 0x1000).expect_err("nothing is there").code(), Some(1));
    }
    // As CUDA has it; the types above the table know memory of 0 bytes.
    assert_eq!(calls.allocate(0, 0, Coherence::Coarse).expect_err("it has no byte").code(), Some(1));
    assert_eq!(device.allocate(0, Coherence::Coarse).unwrap().bytes(), 0);
    assert_eq!(device.allocate_virtual(1, Coherence::Coarse).unwrap().bytes() % 4096, 0);
    // SAFETY: it is no code at all.
    let error = unsafe { device.load(b"no module") }.expect_err("it is none");
    assert_eq!(error.code(), Some(200), "{error}");
}

/// A stream that is destroyed while it waits for a word goes away, and what was behind the word is not done.
#[test]
fn a_destroyed_stream_does_not_wait() {
    let device = device(Emulation::default());
    let (word, memory) = (device.allocate_host(8).unwrap(), device.allocate_host(8).unwrap());
    let event = device.event().unwrap();
    {
        let stream = device.stream().unwrap();
        // SAFETY: both live until the event below, which is recorded last.
        unsafe {
            stream.wait_value(word.address(), 1).unwrap();
            stream.fill(&memory, 0xff).unwrap();
        }
        event.record(&stream).unwrap();
        assert!(matches!(event.synchronize(Duration::from_millis(5)), Err(CallError::Timeout { .. })));
    }
    event.synchronize(PATIENCE).unwrap();
    // SAFETY: pinned memory, which nobody uses any more.
    assert_eq!(unsafe { memory.as_ptr().read() }, 0);
}

/// Waiting for a stream that is being captured is an error, and ends the capture.
#[test]
fn a_capture_is_not_waited_for() {
    let device = device(Emulation::default());
    let stream = device.stream().unwrap();
    let error = stream.capture(|stream| stream.synchronize(PATIENCE)).expect_err("it is being captured");
    assert_eq!(error.code(), Some(900), "{error}");
    stream.synchronize(PATIENCE).unwrap();
    let memory = device.allocate_host(8).unwrap();
    // SAFETY: the memory outlives the graph's only launch, which is waited for.
    let graph = unsafe {
        let graph = stream.capture(|stream| stream.fill(&memory, 7)).unwrap();
        assert_eq!(memory.as_ptr().read(), 0);
        graph.launch(&stream).unwrap();
        graph
    };
    stream.synchronize(PATIENCE).unwrap();
    // SAFETY: the stream is idle.
    assert_eq!(unsafe { memory.as_ptr().read() }, 7);
    drop(graph);
}

/// A macro reaches the kernel, and is a part of the cache's key.
#[test]
fn options_are_data() {
    let device = device(Emulation::default());
    let text = "struct Words { u32* words; };
        CAMPANILE_KERNEL(value, 64, Words, a) { a.words[thread_index()] = VALUE; }";
    let source = Source::new("test.cpp", format!("#include \"portable.h\"\nusing namespace campanile;\n{text}"));
    if !campanile_gpu::has_compiler(device.gpu()) {
        println!("not run: no C++ compiler");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    let stream = device.stream().unwrap();
    let memory = device.allocate(4 * 64, Coherence::Coarse).unwrap();
    // Modules that are loaded at the same time are not taken for each other.
    let mut loaded = Vec::new();
    for value in [3u32, 4, 3] {
        let module = device.compile(&source, &Compile::default().define("VALUE", value), &cache).unwrap();
        loaded.push(module.clone());
        // SAFETY: a word a thread; the download waits.
        unsafe { plan(&module, "value", 1, 64).launch(&stream, &Words { words: memory.address() }).unwrap() };
        let mut bytes = [0; 4];
        stream.download(&memory, 0, &mut bytes).unwrap();
        assert_eq!(bytes, value.to_ne_bytes());
    }
    let entries = std::fs::read_dir(folder.path()).unwrap();
    assert_eq!(entries.filter(|entry| entry.as_ref().unwrap().path().extension().is_none()).count(), 2);
    let missing = device.compile(&source, &Compile::default(), &cache).expect_err("VALUE is not defined");
    assert!(missing.to_string().contains("VALUE"), "{missing}");
}

/// Memory is freed when no work uses it any more, also that of a stream which was destroyed, as on GPUs.
#[test]
fn freeing_waits_for_the_work_of_destroyed_streams() {
    let device = device(Emulation::default());
    let (stream, ended) = (device.stream().unwrap(), device.event().unwrap());
    let memory = device.allocate(32 << 20, Coherence::Coarse).unwrap();
    for value in 0..8 {
        // SAFETY: dropping the memory waits for it, which is what is tested.
        unsafe { stream.fill(&memory, value).unwrap() };
    }
    ended.record(&stream).unwrap();
    drop(stream);
    drop(memory);
    assert!(ended.done().unwrap());
}

/// What a machine does not have is refused when it is asked for, not when it is touched.
#[test]
fn memory_that_is_not_there_is_refused() {
    let device = device(Emulation::default());
    for bytes in [1 << 50, usize::MAX, usize::MAX - 100] {
        let error = device.allocate(bytes, Coherence::Coarse).expect_err("too much");
        assert_eq!(error.code(), Some(2), "{error}");
        let error = device.allocate_virtual(bytes, Coherence::Uncached).expect_err("too much");
        assert!(error.to_string().contains(&bytes.to_string()[..4]), "{error}");
        assert!(device.allocate_host(bytes).is_err());
    }
}

/// A peer could shrink memory that is not sealed, and our loads would fault.
#[test]
fn memory_that_a_peer_could_shrink_is_refused() {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    let device = device(Emulation::default());
    let fd = memfd_create("peer", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, 64 << 10).unwrap();
    let error = device.import(std::os::fd::AsFd::as_fd(&fd), 64 << 10).expect_err("not sealed");
    assert!(error.to_string().contains("not sealed"), "{error}");
}
