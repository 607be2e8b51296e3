//! The MoE operation on emulated devices, over a communicator whose ranks are threads: configurations that differ, ranks
//! that cannot, that abort or never come, and who goes on without them.

mod emulated;

use std::sync::{Arc, Barrier};
use std::time::Duration;

use campanile::gpu::{Cache, Device, Pins};
use campanile::moe::gpu::exchange::DeviceProblem;
use campanile::moe::gpu::{GpuMoe, GpuMoeError, GpuMoeOptions, Index};
use campanile::moe::model;
use campanile::moe::{RankOutput, Received, Solution};
use campanile::{
    CommError, Communicator, FaultKind, Moe, MoeConfig, MoeError, MoeMode, Plugins, Rank, Set, Team, threads_over,
};

use emulated::{moe_config, problem};

const RANKS: usize = 3;
const TOKENS: usize = 5;
const HIDDEN: usize = 40;
/// Bounds every wait; nothing here takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a rank has.
struct Place<'a> {
    comm: &'a Arc<Communicator>,
    device: &'a Device,
    cache: &'a Cache,
}

impl Place<'_> {
    fn rank(&self) -> usize {
        self.comm.rank()
    }

    fn moe(&self, options: &GpuMoeOptions) -> Result<GpuMoe, GpuMoeError> {
        self.moe_of(moe_config(self.comm.ranks(), TOKENS, HIDDEN), options)
    }

    fn moe_of(&self, config: MoeConfig, options: &GpuMoeOptions) -> Result<GpuMoe, GpuMoeError> {
        GpuMoe::new(self.comm, self.device, config, options, self.cache)
    }

    fn part(&self, moe: &GpuMoe) -> Result<DeviceProblem, GpuMoeError> {
        DeviceProblem::new(moe, &problem(self.rank(), self.comm.ranks(), TOKENS, HIDDEN), Index::I32, 0)
    }
}

/// Runs `body` on three ranks; nothing without a compiler.
fn ranks<T: Send>(body: impl Fn(&Place<'_>) -> Result<T, GpuMoeError> + Sync) -> Option<Vec<Result<T, GpuMoeError>>> {
    let (gpu, cache) = emulated::devices()?;
    let config = emulated::config(PATIENCE);
    let plugins = Plugins::of(&config).unwrap();
    let options = plugins.options(&config).unwrap();
    Some(threads_over(&plugins, RANKS, &options, |comm| {
        let device = gpu.device(comm.device().expect("p2p has a device for each rank"))?;
        body(&Place { comm: &comm, device: &device, cache: &cache })
    }))
}

/// What every rank failed with.
fn errors<T>(ended: Vec<Result<T, GpuMoeError>>) -> Vec<GpuMoeError> {
    ended.into_iter().map(|ended| ended.err().expect("every rank fails")).collect()
}

fn verify(place: &Place<'_>, part: &DeviceProblem) -> Result<(), GpuMoeError> {
    let problem = problem(place.rank(), place.comm.ranks(), TOKENS, HIDDEN);
    let mut expected = model::solve(&problem);
    expected.ranks.iter_mut().for_each(|rank| rank.received = Received::default());
    let mut got = Solution { ranks: vec![RankOutput::default(); place.comm.ranks()] };
    got.ranks[place.rank()] = part.output(&problem)?;
    model::compare(&problem, &expected, &got).unwrap();
    Ok(())
}

#[test]
fn configs_that_differ_are_refused_with_field_and_rank() {
    let Some(ended) = ranks(|place| {
        let hidden = HIDDEN + usize::from(place.rank() == 2);
        place.moe_of(moe_config(RANKS, TOKENS, hidden), &GpuMoeOptions::default()).map(drop)
    }) else {
        return;
    };
    for (rank, error) in errors(ended).into_iter().enumerate() {
        let GpuMoeError::Comm(CommError::Mismatch { field, peer, .. }) = error else { panic!("{error}") };
        assert_eq!((field.as_str(), peer.index()), ("hidden", if rank == 2 { 0 } else { 2 }));
    }
}

#[test]
fn host_and_device_are_no_pair() {
    let Some(ended) = ranks(|place| match place.rank() {
        0 => Moe::new(place.comm, moe_config(RANKS, TOKENS, HIDDEN)).map(drop).map_err(|error| match error {
            MoeError::Comm(error) => error.into(),
            other => panic!("{other}"),
        }),
        _ => place.moe(&GpuMoeOptions::default()).map(drop),
    }) else {
        return;
    };
    for error in errors(ended) {
        assert!(matches!(&error, GpuMoeError::Comm(CommError::Mismatch { field, .. }) if field == "memory"), "{error}");
    }
}

#[test]
fn a_rank_that_cannot_build_its_part_is_an_error_on_all() {
    let Some(ended) = ranks(|place| {
        // No device has blocks of seven threads.
        let threads = (place.rank() == 1).then_some(7);
        let pins = Pins { threads, ..Pins::default() };
        let made = place.moe(&GpuMoeOptions { combine: pins, ..GpuMoeOptions::default() }).map(drop);
        // It is no fault: the communicator is as good as before.
        assert!(place.comm.error().is_none());
        place.moe(&GpuMoeOptions::default())?;
        made
    }) else {
        return;
    };
    for (rank, error) in errors(ended).into_iter().enumerate() {
        match error {
            GpuMoeError::Launch(_) => assert_eq!(rank, 1),
            GpuMoeError::Comm(CommError::Peer { peer, reason, .. }) => {
                assert!(rank != 1 && peer == Rank(1) && reason.contains("7 threads"), "{peer}: {reason}");
            }
            other => panic!("{other}"),
        }
    }
}

/// Also where one rank has the schedule for throughput, and the others that for latency.
#[test]
fn rounds_over_a_communicator_are_those_of_the_model() {
    let Some(ended) = ranks(|place| {
        let mode = if place.rank() == 1 { MoeMode::Throughput } else { MoeMode::LowLatency };
        let config = MoeConfig { mode, ..moe_config(RANKS, TOKENS, HIDDEN) };
        let moe = place.moe_of(config, &GpuMoeOptions::default())?;
        assert_eq!(moe.deadline(), place.comm.timeout());
        let part = place.part(&moe)?;
        for round in 0..5 {
            part.poison(0x5a)?;
            // SAFETY: the part is alive until its stream is done.
            unsafe { moe.launch_round(Set(round % 2), &part)? };
            moe.finish(&part.stream, PATIENCE)?;
            verify(place, &part)?;
        }
        Ok(())
    }) else {
        return;
    };
    ended.into_iter().for_each(|ended| ended.unwrap());
}

/// The kernels of the others end, nothing is launched or published afterwards, not by a graph either.
#[test]
fn an_abort_ends_the_kernels_of_all_and_what_comes_later() {
    let (launched, replayed) = (&Barrier::new(RANKS), &Barrier::new(RANKS));
    let Some(ended) = ranks(|place| {
        let moe = place.moe(&GpuMoeOptions { deadline: Some(PATIENCE), ..GpuMoeOptions::default() })?;
        let part = place.part(&moe)?;
        // SAFETY: the part is alive until its stream is done, here and below.
        let graph = part.stream.capture(|_| unsafe { moe.launch_round(Set(1), &part) })?;
        if place.rank() == 2 {
            launched.wait();
            moe.abort();
        } else {
            // SAFETY: as above.
            unsafe { moe.launch_round(Set(0), &part)? };
            launched.wait();
        }
        let ended = moe.finish(&part.stream, PATIENCE);
        // SAFETY: as above.
        let again = unsafe { moe.launch_round(Set(0), &part) }.unwrap_err();
        assert!(again.to_string().contains("abort"), "{again}");
        // SAFETY: as above.
        unsafe { graph.launch(&part.stream)? };
        moe.finish(&part.stream, PATIENCE).unwrap_err();
        replayed.wait();
        // Of set 1 no rank has published a word. Lines of 64 bytes, by set, then source.
        let mut words = vec![0; 2 * RANKS * 64];
        moe.read_words(&part.stream, &mut words)?;
        assert_eq!(words[RANKS * 64..], vec![0; RANKS * 64], "rank {}", place.rank());
        ended
    }) else {
        return;
    };
    for (rank, error) in errors(ended).into_iter().enumerate() {
        match error.fault() {
            Some(fault) => assert_eq!((fault.culprit, fault.kind), (Rank(2), FaultKind::Aborted), "{error}"),
            None => assert!(rank == 2 && error.to_string().contains("this rank called abort"), "{error}"),
        }
    }
}

/// By its number in the world, whatever it is called in the team of the operation.
#[test]
fn a_rank_that_never_comes_is_named_by_the_word_that_it_owes() {
    let over = &Barrier::new(2);
    let Some(ended) = ranks(|place| {
        let team = Team::new([Rank(2), Rank(0)]).expect("two ranks");
        let Some(comm) = place.comm.split(&team)? else { return Ok(()) };
        let place = Place { comm: &Arc::new(comm), ..*place };
        let moe =
            place.moe(&GpuMoeOptions { deadline: Some(Duration::from_millis(200)), ..GpuMoeOptions::default() })?;
        assert_eq!(moe.deadline(), Duration::from_millis(200));
        if place.rank() == 0 {
            over.wait();
            return moe.check();
        }
        let part = place.part(&moe)?;
        // SAFETY: the part is alive until its stream is done.
        unsafe { moe.launch_round(Set(1), &part)? };
        let ended = moe.finish(&part.stream, PATIENCE);
        over.wait();
        ended
    }) else {
        return;
    };
    let [here, _, late] = <[_; RANKS]>::try_from(ended).unwrap();
    let error = here.unwrap_err();
    let fault = error.fault().unwrap();
    assert_eq!((fault.culprit, fault.kind, fault.reporter), (Rank(2), FaultKind::Stalled, Rank(0)));
    let text = error.to_string();
    assert!(text.contains("dispatch receive on set 1: rank 0 did not bring META to (1, 0) in time"), "{text}");
    assert!(text.contains("rank 2 did not go on within the deadline"), "{text}");
    // The one that was late learns of it when it looks.
    assert_eq!(late.unwrap_err().fault(), Some(fault));
}

#[test]
fn survivors_go_on_without_a_rank_that_has_gone() {
    let launched = &Barrier::new(RANKS);
    let Some(ended) = ranks(|place| {
        let mut moe = place.moe(&GpuMoeOptions { deadline: Some(PATIENCE), ..GpuMoeOptions::default() })?;
        let part = place.part(&moe)?;
        if place.rank() == 2 {
            launched.wait();
            place.comm.abort();
            return Ok(());
        }
        // SAFETY: the part is alive until its stream is done, here and below.
        unsafe { moe.launch_round(Set(0), &part)? };
        launched.wait();
        let lost = moe.finish(&part.stream, PATIENCE).unwrap_err();
        assert_eq!(lost.fault().map(|fault| fault.culprit), Some(Rank(2)));
        let survivors = place.comm.mask(&[2])?;
        let active = [true, true, false];
        moe.go_on(&part.stream, &active, |what, bytes| survivors.gather(what, bytes))?;
        for round in 0..3 {
            // SAFETY: as above.
            unsafe { moe.launch_round(Set(round % 2), &part)? };
            moe.finish(&part.stream, PATIENCE)?;
        }
        survivors.agree("the end", &[])?;
        Ok(())
    }) else {
        return;
    };
    ended.into_iter().for_each(|ended| ended.unwrap());
}
