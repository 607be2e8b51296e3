//! Ranks that are threads of one process: [`measure`].

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use super::rank::{PATIENCE, SIGNALS};
use super::{ARMS, LeftOut, LinkError, LinkLayout, LinkOptions, LinkRank, LinkReport, LinkRow};
use crate::{Cache, Device, DeviceCommunicator};

/// Measures all of [`ARMS`] between as many ranks as there are devices; a device may be several ranks'.
///
/// ```
/// use campanile_gpu::link::{Arm, LinkOptions, Pattern, measure};
/// use campanile_gpu::{Cache, Emulation, Gpu, Settings};
///
/// let gpu = Gpu::emulator(Emulation::default(), &Settings::default())?;
/// # if !campanile_gpu::has_compiler(&gpu) { return Ok(()); }
/// let devices = [gpu.device(0)?, gpu.device(1)?];
/// let options = LinkOptions { bytes: 1 << 16, iterations: 2, warmup: 0, round_trips: 5, sms: Some(1) };
/// let report = measure(&devices, &options, &Cache::none())?;
/// assert!(report.gbps(Arm::PeerStores, Pattern::AllToAll) > Some(0.0));
/// assert!(report.flag_us() > Some(0.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`LinkError`]: fewer than two ranks or no iteration, no peer access, no compiler, a flag that is not answered.
pub fn measure(devices: &[Device], options: &LinkOptions, cache: &Cache) -> Result<LinkReport, LinkError> {
    let least = [("ranks:", devices.len(), "2 are"), ("iterations:", options.iterations, "1 is")];
    for ((what, given, least), minimum) in least.into_iter().zip([2, 1]) {
        if given < minimum {
            return Err(LinkError::Options { what, given, least });
        }
    }
    if options.round_trips == 0 {
        return Err(LinkError::Options { what: "round trips:", given: 0, least: "1 is" });
    }
    let layout = LinkLayout::new(devices.len(), options).map_err(crate::DeviceCommunicatorError::from)?;
    let ranks = DeviceCommunicator::in_process(devices, &layout.arena, SIGNALS, PATIENCE)?;
    let ranks = ranks.into_iter().map(|comm| LinkRank::new(comm, &layout, options, cache));
    let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
    let meeting = Meeting { ranks: ranks.len(), arrived: AtomicUsize::new(0), failed: AtomicBool::new(false) };
    let results: Vec<Result<Times, LinkError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| run(rank, options, &meeting))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    // The error that came first is not the one that says that another rank has failed.
    let (mut times, mut alone) = (Vec::new(), None);
    for result in results {
        match result {
            Ok(rank) => times.push(rank),
            Err(error @ LinkError::Alone { .. }) => alone = Some(error),
            Err(error) => return Err(error),
        }
    }
    if let Some(error) = alone {
        return Err(error);
    }
    let (mut rows, mut left_out) = (Vec::new(), Vec::<LeftOut>::new());
    for (number, (arm, pattern)) in ARMS.into_iter().enumerate() {
        if let Some(reason) = ranks.iter().find_map(|rank| rank.lacks(arm)) {
            if left_out.iter().all(|left_out| left_out.arm != arm) {
                left_out.push(LeftOut { arm, reason: reason.to_owned() });
            }
            continue;
        }
        let slowest = |iteration: usize| times.iter().filter_map(|rank| rank[number][iteration]).fold(0.0, f64::max);
        let slowest: Vec<f64> = (0..options.iterations).map(slowest).collect();
        rows.push(LinkRow::new(arm, pattern, &slowest, layout.bytes(arm, pattern)));
    }
    let mut ordinals: Vec<u32> = devices.iter().map(Device::ordinal).collect();
    ordinals.sort_unstable();
    ordinals.dedup();
    Ok(LinkReport { ranks: ranks.len(), shared: ordinals.len() < devices.len(), rows, left_out })
}

/// Microseconds of a rank: by arm, by iteration; `None` where it took no part.
type Times = Vec<Vec<Option<f64>>>;

fn run(rank: &LinkRank, options: &LinkOptions, meeting: &Meeting) -> Result<Times, LinkError> {
    let mut times = vec![Vec::with_capacity(options.iterations); ARMS.len()];
    for iteration in 0..options.warmup + options.iterations {
        for (times, (arm, pattern)) in times.iter_mut().zip(ARMS) {
            meeting.meet()?;
            let took = rank.run(arm, pattern).inspect_err(|_| meeting.failed.store(true, Ordering::Release))?;
            if iteration >= options.warmup {
                times.push(took.map(|took| took.as_secs_f64() * 1e6));
            }
        }
    }
    Ok(times)
}

/// Where threads meet, so that they start together. It ends when one of them has failed.
struct Meeting {
    ranks: usize,
    arrived: AtomicUsize,
    failed: AtomicBool,
}

impl Meeting {
    fn meet(&self) -> Result<(), LinkError> {
        let deadline = Instant::now() + PATIENCE;
        let target = (self.arrived.fetch_add(1, Ordering::AcqRel) / self.ranks + 1) * self.ranks;
        while self.arrived.load(Ordering::Acquire) < target {
            if self.failed.load(Ordering::Acquire) || Instant::now() > deadline {
                return Err(LinkError::Alone { seconds: PATIENCE.as_secs() });
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}
