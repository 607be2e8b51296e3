//! The data plane allocates nothing, and makes no system call when its peers are ready.
//!
//! Two ranks are driven by one thread, phase by phase, so that whatever a phase waits for is there. Allocations are
//! counted by the allocator of this program, system calls by a seccomp filter of that thread, which turns each into a
//! signal whose handler counts it.

mod allocations;

use std::sync::atomic::{AtomicUsize, Ordering};

use campanile::core::{MoeCombine, MoeMode};
use campanile::moe::routing::{Router, Routing};
use campanile::{
    AllGather, Broadcast, CommError, CommOptions, Moe, MoeConfig, MoeError, Outputs, Path, Problem, Set, Tokens,
    threads,
};

use allocations::ALLOCATIONS;

const HIDDEN: usize = 1000;
const TOPK: usize = 4;
const TOKENS: usize = 100;

/// The operation of every rank, to be driven by one thread.
fn operations(ranks: usize, path: Path, mode: MoeMode, combine: MoeCombine) -> Vec<Moe> {
    let options = CommOptions { path, ..CommOptions::default() };
    let made = threads::<_, MoeError>(ranks, &options, |comm| {
        let map = Problem::block_map(16, ranks);
        Moe::new(&comm, MoeConfig { mode, combine, ..MoeConfig::new(TOKENS, HIDDEN, TOPK, map) })
    });
    made.into_iter().collect::<Result<_, _>>().expect("the operations are made")
}

/// Buffers of one rank.
struct Buffers {
    x: Vec<u8>,
    topk_idx: Vec<i32>,
    topk_weights: Vec<f32>,
    out: Vec<u8>,
    out_weights: Vec<f32>,
}

impl Buffers {
    fn new(rank: usize, ranks: usize) -> Self {
        let routed = Router::new(Routing::Uniform, TOPK, 1).route(rank, ranks, TOKENS, &Problem::block_map(16, ranks));
        Self {
            x: vec![0x3f; TOKENS * HIDDEN * 2],
            topk_idx: routed.topk_idx,
            topk_weights: routed.topk_weights,
            out: vec![0; TOKENS * HIDDEN * 2],
            out_weights: vec![0.0; TOKENS * TOPK],
        }
    }

    fn tokens(&self) -> Tokens<'_> {
        Tokens {
            dtype: campanile::DType::BF16,
            count: TOKENS,
            x: &self.x,
            stride: HIDDEN * 2,
            scales: &[],
            topk_idx: &self.topk_idx,
            topk_weights: &self.topk_weights,
        }
    }
}

/// One round of two ranks, phase by phase.
fn round(ranks: &mut [(Moe, Buffers); 2], set: Set) -> Result<(), MoeError> {
    let [(a, of_a), (b, of_b)] = ranks;
    let sent = (a.dispatch_send(set, &of_a.tokens())?, b.dispatch_send(set, &of_b.tokens())?);
    let handles = (a.dispatch_receive(sent.0)?, b.dispatch_receive(sent.1)?);
    let sent = (a.combine_send(handles.0, Outputs::InPlace)?, b.combine_send(handles.1, Outputs::InPlace)?);
    a.combine_receive(sent.0, &mut of_a.out, Some(&mut of_a.out_weights))?;
    b.combine_receive(sent.1, &mut of_b.out, Some(&mut of_b.out_weights))
}

fn pair(path: Path, mode: MoeMode, combine: MoeCombine) -> [(Moe, Buffers); 2] {
    let [a, b]: [Moe; 2] = operations(2, path, mode, combine).try_into().expect("two ranks");
    [(a, Buffers::new(0, 2)), (b, Buffers::new(1, 2))]
}

const WAYS: [(Path, MoeMode, MoeCombine); 4] = [
    (Path::Auto, MoeMode::Throughput, MoeCombine::Pull),
    (Path::Auto, MoeMode::LowLatency, MoeCombine::Pull),
    (Path::Auto, MoeMode::Auto, MoeCombine::Push),
    (Path::Queue, MoeMode::Auto, MoeCombine::Push),
];

#[test]
fn rounds_allocate_nothing() {
    for (path, mode, combine) in WAYS {
        let mut ranks = pair(path, mode, combine);
        // The first uses may make queues and choose kernels.
        round(&mut ranks, Set(0)).and_then(|()| round(&mut ranks, Set(1))).expect("the first rounds");
        let before = ALLOCATIONS.get();
        for n in 0..10 {
            round(&mut ranks, Set(n % 2)).expect("a round");
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "path {}, {mode}, {combine}", path.name());
        drop(std::hint::black_box(Vec::<u8>::with_capacity(100)));
        assert!(ALLOCATIONS.get() > before, "the counter counts");
    }
}

#[test]
fn barriers_allocate_nothing() {
    let ended = threads::<_, CommError>(2, &CommOptions::default(), |comm| {
        let mut barrier = campanile::Barrier::new(&comm)?;
        barrier.wait()?;
        let before = ALLOCATIONS.get();
        for _ in 0..1000 {
            barrier.wait()?;
        }
        Ok(ALLOCATIONS.get() - before)
    });
    assert_eq!(ended.into_iter().collect::<Result<Vec<_>, _>>().expect("no rank fails"), [0, 0]);
}

const MESSAGE: usize = 40_000;

/// It fits into the ring, also where that is small: between near ranks it has eight parts of 1 KiB, of which the reader may
/// still owe one.
const FITTING: usize = 6_000;

/// Both ends of a broadcast between two ranks, to be driven by one thread.
fn broadcasts(path: Path) -> [Broadcast; 2] {
    let options = CommOptions { path, ..CommOptions::default() };
    let made = threads::<_, CommError>(2, &options, |comm| Broadcast::new(&comm, FITTING));
    let made: Vec<_> = made.into_iter().collect::<Result<_, _>>().expect("the broadcasts are made");
    made.try_into().unwrap_or_else(|_| unreachable!("two ranks"))
}

/// Each rank broadcasts from its own memory and from its input. A message fits into the ring, so nobody waits.
fn broadcast_round(ranks: &mut [Broadcast; 2], data: &mut [u8]) -> Result<(), CommError> {
    let [a, b] = ranks;
    for bytes in [0, 1, 1000, FITTING] {
        a.send(&data[..bytes])?;
        b.receive(0, &mut data[..bytes])?;
        b.input()?[..bytes].fill(1);
        b.send_input(bytes)?;
        a.receive(1, &mut data[..bytes])?;
    }
    Ok(())
}

#[test]
fn broadcasts_allocate_nothing() {
    for path in [Path::Auto, Path::Queue] {
        let (mut ranks, mut data) = (broadcasts(path), vec![7; FITTING]);
        broadcast_round(&mut ranks, &mut data).expect("the first round");
        let before = ALLOCATIONS.get();
        (0..100).try_for_each(|_| broadcast_round(&mut ranks, &mut data)).expect("rounds");
        assert_eq!(ALLOCATIONS.get() - before, 0, "path {}", path.name());
    }
}

#[test]
fn all_gathers_allocate_nothing() {
    for path in [Path::Auto, Path::Queue] {
        let options = CommOptions { path, ..CommOptions::default() };
        let ended = threads::<_, CommError>(2, &options, |comm| {
            let mut all_gather = AllGather::new(&comm, MESSAGE)?;
            let (block, mut all) = (vec![1; MESSAGE], vec![0; 2 * MESSAGE]);
            let mut round = || {
                all_gather.run(&block, &mut all)?;
                all_gather.run_in_place(&mut all)?;
                all_gather.run_input(1000, &mut all[..2000])
            };
            round()?;
            let before = ALLOCATIONS.get();
            (0..100).try_for_each(|_| round())?;
            Ok(ALLOCATIONS.get() - before)
        });
        assert_eq!(ended.into_iter().collect::<Result<Vec<_>, _>>().expect("no rank fails"), [0, 0]);
    }
}

static SYSTEM_CALLS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: libc::c_int) {
    SYSTEM_CALLS.fetch_add(1, Ordering::Relaxed);
}

/// From here on every system call of this thread is counted and not made, but for those that end a thread.
fn count_system_calls() {
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let allowed = [
        libc::SYS_rt_sigreturn,
        libc::SYS_exit,
        libc::SYS_munmap,
        libc::SYS_madvise,
        libc::SYS_sigaltstack,
        libc::SYS_rt_sigprocmask,
    ];
    let mut program = vec![instruction(LOAD_NUMBER, 0, 0, 0)];
    for (at, number) in allowed.iter().enumerate() {
        program.push(instruction(JUMP_EQUAL, (allowed.len() - at) as u8, 0, *number as u32));
    }
    program.push(instruction(RETURN, 0, 0, libc::SECCOMP_RET_TRAP));
    program.push(instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: plain system calls; the handler does nothing but an atomic addition, the program and its description live
    // during the call that copies them.
    unsafe {
        let handler: extern "C" fn(libc::c_int) = count;
        assert_ne!(libc::signal(libc::SIGSYS, handler as libc::sighandler_t), libc::SIG_ERR, "the handler");
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0, "no new privileges");
        let set = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &filter);
        assert_eq!(set, 0, "the filter");
    }
}

#[test]
fn rounds_make_no_system_call_when_the_peer_is_ready() {
    let mut ways: Vec<_> = WAYS.into_iter().map(|(path, mode, combine)| pair(path, mode, combine)).collect();
    for ranks in &mut ways {
        round(ranks, Set(0)).and_then(|()| round(ranks, Set(1))).expect("the first rounds");
    }
    let mut data = vec![7; FITTING];
    let mut collectives = [Path::Auto, Path::Queue].map(broadcasts);
    for ranks in &mut collectives {
        broadcast_round(ranks, &mut data).expect("the first round");
    }
    let ended = std::thread::spawn(move || {
        count_system_calls();
        std::thread::yield_now();
        assert_eq!(SYSTEM_CALLS.swap(0, Ordering::Relaxed), 1, "the counter counts");
        for ranks in &mut ways {
            for n in 0..10 {
                round(ranks, Set(n % 2)).expect("a round");
            }
        }
        for ranks in &mut collectives {
            (0..100).try_for_each(|_| broadcast_round(ranks, &mut data)).expect("rounds");
        }
        assert_eq!(SYSTEM_CALLS.load(Ordering::Relaxed), 0);
        // Dropped by another thread: that takes system calls.
        (ways, collectives, data)
    });
    drop(ended.join().expect("no system call was made"));
}
