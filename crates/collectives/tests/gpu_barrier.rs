//! The barrier as a kernel, in the emulator: any number of ranks, both waves, other orders of threads; teams, deadlines,
//! aborts, graphs, and kernels that join it with many blocks.

#[path = "../../gpu/tests/emulated/mod.rs"]
mod emulated;

use std::sync::Arc;
use std::time::Duration;

use campanile::bootstrap::ThreadBootstrap;
use campanile::p2p::P2pPlugin;
use campanile_collectives::gpu::{BarrierView, GpuBarrier, GpuBarrierError};
use campanile_core::{Arena, CommOptions, Communicator, GpuChoice, Rank, Team};
use campanile_gpu::view::{CommunicatorView, RegionView};
use campanile_gpu::{
    Coherence, Compile, Device, DeviceCommunicator, DeviceFailure, DeviceMemory, Emulation, FailureKind, Grid, Plan,
    Residency, Settings, Source, Stream,
};

use emulated::{cache, emulate};

const PATIENCE: Duration = Duration::from_secs(60);

/// `MeetArguments` of `kernels/device/smoke.cpp`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Meet {
    comm: CommunicatorView,
    barrier: BarrierView,
    cells: RegionView,
    wrong: u64,
    first: u32,
    rounds: u32,
}

fn devices(ranks: usize, wave: u32, schedule: u64) -> Option<Vec<Device>> {
    emulate(Emulation { devices: ranks as u32, wave, schedule, ..Emulation::default() })
}

/// One rank of a test: kernels of all its blocks write a cell at every member, meet, and look.
struct Part {
    barrier: GpuBarrier,
    stream: Stream,
    meet: Plan<Meet>,
    cells: RegionView,
    wrong: DeviceMemory,
}

impl Part {
    /// Those of the members of `team`, whose barriers have been passed `epoch` times.
    fn all(devices: &[Device], team: &Team, blocks: u32, epoch: u64, deadline: Duration) -> Vec<Self> {
        let mut arena = Arena::new();
        let region = arena.carve("cells", "u32[4]", 16, devices.len() * blocks as usize).unwrap();
        let ranks = DeviceCommunicator::in_process(devices, &arena, 3 + devices.len(), deadline).unwrap();
        let members = ranks.into_iter().filter(|comm| team.position(Rank::new(comm.rank())).is_some());
        let part = |comm: DeviceCommunicator| {
            let device = comm.device().clone();
            let module = device.compile(&Source::device_smoke(), &Compile::default(), &cache()).unwrap();
            let grid = Grid { blocks, threads: 2 * device.wave(), shared_bytes: 0 };
            let (stream, wrong) = (device.stream().unwrap(), device.allocate(64, Coherence::Coarse).unwrap());
            stream.upload(&wrong, 0, &[0; 64]).unwrap();
            Self {
                barrier: GpuBarrier::starting_at(&Arc::new(comm), team, 3, epoch, &cache()).unwrap(),
                stream,
                meet: Plan::new(&module, "device_meet", grid, Residency::Together).unwrap(),
                cells: RegionView::from(&region),
                wrong,
            }
        };
        members.map(part).collect()
    }

    fn meet(&self, first: u32, rounds: u32) {
        let (comm, barrier) = (self.barrier.comm().view(), self.barrier.view());
        let argument = Meet { comm, barrier, cells: self.cells, wrong: self.wrong.address(), first, rounds };
        // SAFETY: everything lives until `finish` has waited.
        unsafe { self.meet.launch(&self.stream, &argument).unwrap() };
    }

    fn enter(&self) {
        // SAFETY: as above.
        unsafe { self.barrier.enter(&self.stream).unwrap() };
    }

    fn finish(&self) {
        self.stream.synchronize(PATIENCE).unwrap();
        self.barrier.check().unwrap();
        let mut wrong = [0; 64];
        self.stream.download(&self.wrong, 0, &mut wrong).unwrap();
        assert_eq!(wrong, [0; 64], "somebody was not waited for");
    }

    fn failure(&self) -> DeviceFailure {
        self.stream.synchronize(PATIENCE).unwrap();
        match self.barrier.check() {
            Err(GpuBarrierError::Failed(failure)) => failure,
            other => panic!("{other:?}"),
        }
    }

    fn words(&self) -> Vec<u8> {
        let words = self.barrier.comm().signal_words();
        let mut bytes = vec![0; 8 * self.barrier.comm().signals()];
        self.stream.download(&words, 0, &mut bytes).unwrap();
        bytes
    }
}

/// Barriers of one block and of many, in turn.
fn meet(ranks: usize, wave: u32, schedule: u64, blocks: u32, team: &Team, epoch: u64) {
    let Some(devices) = devices(ranks, wave, schedule) else { return };
    let parts = Part::all(&devices, team, blocks, epoch, PATIENCE);
    assert_eq!(parts.len(), team.len());
    for part in &parts {
        part.enter();
        part.meet(1, 2);
        part.enter();
        part.meet(3, 1);
    }
    parts.iter().for_each(Part::finish);
}

#[test]
fn one_to_eight_ranks() {
    for ranks in 1..=8 {
        for (wave, schedule) in [(32, 0), (64, 7 + ranks as u64)] {
            meet(ranks, wave, schedule, 2, &Team::world(ranks), 0);
        }
    }
}

#[test]
fn any_order_of_threads() {
    for schedule in 1..6 {
        meet(3, 32, schedule, 3, &Team::world(3), 0);
    }
}

/// More ranks than travel in the argument.
#[test]
fn nine_ranks() {
    meet(9, 32, 0, 1, &Team::world(9), 0);
}

/// Words start near the wrap of the epoch.
#[test]
fn epochs_wrap() {
    meet(3, 64, 2, 2, &Team::world(3), u64::MAX - 2);
}

/// Some of the ranks, in another order; the others never come.
#[test]
fn a_team() {
    let team = Team::new([4, 1, 2].map(Rank)).unwrap();
    meet(5, 32, 3, 2, &team, 0);
}

/// As many blocks as are resident at once join on each of two devices.
#[test]
fn a_grid_of_sixteen_blocks_joins() {
    meet(2, 32, 5, 16, &Team::world(2), 0);
    meet(2, 64, 0, 16, &Team::world(2), 0);
}

/// A captured graph is launched 1000 times; the epoch lives on the device.
#[test]
fn a_graph_is_replayed() {
    const REPLAYS: u64 = 1000;
    let Some(devices) = devices(2, 32, 0) else { return };
    let parts = Part::all(&devices, &Team::world(2), 1, 0, PATIENCE);
    let capture = |part: &Part| {
        // SAFETY: as in `Part::meet`.
        let both = |stream: &Stream| unsafe { part.barrier.enter(stream).and_then(|()| part.barrier.enter(stream)) };
        part.stream.capture(both).unwrap()
    };
    let graphs: Vec<_> = parts.iter().map(capture).collect();
    for (part, graph) in parts.iter().zip(&graphs) {
        for _ in 0..REPLAYS {
            // SAFETY: as above.
            unsafe { graph.launch(&part.stream).unwrap() };
        }
    }
    for (rank, part) in parts.iter().enumerate() {
        part.finish();
        let word = (3 + 1 - rank) * 8;
        assert_eq!(part.words()[word..][..8], (2 * REPLAYS).to_ne_bytes(), "a barrier was left out");
    }
}

#[test]
fn a_missing_rank_is_named() {
    let Some(devices) = devices(4, 32, 0) else { return };
    let parts = Part::all(&devices, &Team::world(4), 2, 0, Duration::from_secs(2));
    for part in [&parts[0], &parts[1], &parts[3]] {
        part.enter();
    }
    for part in [&parts[0], &parts[1], &parts[3]] {
        let rank = part.barrier.comm().rank();
        let kind = FailureKind::Timeout;
        let wanted = DeviceFailure { rank, kind, operation: 0xba, peer: 2, slot: 3 + 2, expected: 1, seen: 0 };
        assert_eq!(part.failure(), wanted);
    }
    // Nothing is published after a failure, by one block or by many.
    let words = parts[2].words();
    parts[0].enter();
    parts[0].meet(1, 1);
    parts[0].failure();
    assert_eq!(parts[2].words(), words);
    let error = parts[0].barrier.check().unwrap_err().to_string();
    assert!(error.contains("rank 0, operation 186: waited for word 5 of rank 2 to reach 1, saw 0"), "{error}");
}

#[test]
fn an_abort_frees_all_blocks() {
    let Some(devices) = devices(2, 64, 0) else { return };
    let parts = Part::all(&devices, &Team::world(2), 5, 0, Duration::from_secs(1000));
    let part = &parts[0];
    part.meet(1, 1);
    assert!(part.stream.synchronize(Duration::from_millis(30)).is_err(), "it waits for rank 1");
    part.barrier.comm().abort();
    assert_eq!((part.failure().kind, part.failure().peer), (FailureKind::Aborted, 1));
}

/// Over a communicator, whose transport maps the windows: a barrier of all, and one of two of three ranks.
#[test]
fn over_a_communicator() {
    let Some(devices) = devices(3, 32, 0) else { return };
    std::thread::scope(|scope| {
        for bootstrap in ThreadBootstrap::world(3) {
            let devices = &devices;
            scope.spawn(move || {
                let plugin = P2pPlugin::new(GpuChoice::Emulator, Settings::default());
                let options = CommOptions { timeout: PATIENCE, ..CommOptions::default() };
                let comm = Communicator::new(Arc::new(bootstrap), &plugin, options).unwrap();
                let device = &devices[comm.device().unwrap() as usize % devices.len()];
                let of_device = Arc::new(DeviceCommunicator::new(&comm, device, &Arena::new(), 5).unwrap());
                let all = GpuBarrier::new(&of_device, comm.team(), 0, &cache()).unwrap();
                let two = Team::new([Rank(2), Rank(0)]).unwrap();
                let two = (comm.rank() != 1).then(|| GpuBarrier::new(&of_device, &two, 3, &cache()).unwrap());
                let stream = device.stream().unwrap();
                for barrier in [Some(&all), two.as_ref(), Some(&all)].into_iter().flatten() {
                    // SAFETY: the barriers live until the stream is done.
                    unsafe { barrier.enter_times(&stream, 3).unwrap() };
                }
                stream.synchronize(PATIENCE).unwrap();
                all.check().unwrap();
                let mut words = [0; 40];
                stream.download(&of_device.signal_words(), 0, &mut words).unwrap();
                let words: Vec<u8> = words.chunks_exact(8).map(|word| word[0]).collect();
                // What the others have raised here; one block needs no word of its own rank.
                let seen = [[0, 6, 6, 3, 0], [6, 0, 6, 0, 0], [6, 6, 0, 0, 3]][comm.rank()];
                assert_eq!(words, seen, "rank {}", comm.rank());
                comm.agree("done", &[]).unwrap();
            });
        }
    });
}

#[test]
fn misuse_is_refused() {
    let Some(devices) = devices(2, 32, 0) else { return };
    let ranks = DeviceCommunicator::in_process(&devices, &Arena::new(), 3, PATIENCE).unwrap();
    let comm = Arc::new(ranks.into_iter().next().unwrap());
    let make = |team: &[usize], first| {
        let team = Team::new(team.iter().copied().map(Rank::new)).unwrap();
        GpuBarrier::new(&comm, &team, first, &cache())
    };
    assert!(matches!(make(&[1], 0), Err(GpuBarrierError::NoMember { rank: 0 })));
    assert!(matches!(make(&[0, 2], 0), Err(GpuBarrierError::Stranger { stranger: Rank(2), ranks: 2 })));
    assert!(matches!(make(&[0, 1], 2), Err(GpuBarrierError::Words { first_slot: 2, members: 2, words: 3 })));
    assert!(make(&[1, 0], 1).is_ok());
    assert!(GpuBarrier::in_process(&[], PATIENCE, &cache()).unwrap().is_empty());
}
