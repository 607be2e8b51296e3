//! Times of the layouts: the map alone and with the rows copied, then the combine of results that lie in them.
//!
//! `arrange` and `combine` are a launch each (a combine by pull is two) between two events, behind a round of the same kind.
//! Medians over iterations, the slowest rank. Bytes are those that a copy reads and writes.

use campanile_core::MoeCombine;
use campanile_gpu::{Cache, Device};
use campanile_moe::DType;
use campanile_moe::exchange::Layout;
use campanile_moe::gpu::exchange::{Arranged, DeviceProblem};
use campanile_moe::gpu::{GpuMoe, GpuMoeOptions, Index};
use campanile_moe::protocol::Set;
use serde_json::json;

use crate::bench::{Meeting, Shape, median};
use crate::case::{PATIENCE, Result};

const SET: Set = Set(0);

pub fn run(devices: &[Device], options: &GpuMoeOptions, cache: &Cache, small: bool) -> Result<()> {
    let (hidden, iterations) = if small { (64, 4) } else { (7168, 40) };
    let mut rows = Vec::new();
    println!(
        "{:>6} {:>12} {:>6} {:>5} {:>9} {:>9} {:>9}",
        "tokens", "layout", "rows", "by", "arrange", "GB/s", "combine"
    );
    for tokens in if small { vec![16, 1] } else { vec![4096, 128, 1] } {
        let shape = Shape { tokens, hidden, dtype: DType::BF16, quantize: false };
        let problem = shape.problem(devices.len());
        for layout in [Layout::Compact, Layout::ExpertMajor] {
            for (copied, by) in [(false, MoeCombine::Pull), (true, MoeCombine::Pull), (true, MoeCombine::Push)] {
                let config = shape.config(&problem, by);
                let operations = GpuMoe::in_process(devices, &config, options, cache)?;
                let part = |moe| DeviceProblem::new(moe, &problem, Index::I32, 0);
                let parts = operations.iter().map(part).collect::<std::result::Result<Vec<_>, _>>()?;
                let arranged = operations.iter().map(|moe| Arranged::new(moe, layout, 16, copied, 0, cache));
                let arranged = arranged.collect::<std::result::Result<Vec<_>, _>>()?;
                let meeting = Meeting::new(devices.len());
                let times = std::thread::scope(|scope| {
                    let ranks = operations.iter().zip(&parts).zip(&arranged);
                    let threads: Vec<_> = ranks
                        .map(|((moe, part), arranged)| {
                            let meeting = &meeting;
                            scope.spawn(move || time_rank(moe, part, arranged, meeting, iterations))
                        })
                        .collect();
                    let join = |thread: std::thread::ScopedJoinHandle<'_, Result<[f64; 2]>>| {
                        thread.join().map_err(|_| "a rank panicked")?
                    };
                    threads.into_iter().map(join).collect::<Result<Vec<_>>>()
                })?;
                let slowest = |at: usize| times.iter().map(|times| times[at]).fold(0.0, f64::max);
                let (arrange, combine) = (slowest(0), slowest(1));
                let map = arranged[0].layout.read(&parts[0].stream)?.rows;
                let received = operations[0].received(SET, &parts[0].stream)?.src.len() / 2;
                let bytes = if copied { (map.len() + received) * hidden * 2 } else { 0 };
                let rate = bytes as f64 / arrange / 1e3;
                println!(
                    "{tokens:>6} {:>12} {:>6} {:>5} {arrange:>9.1} {rate:>9.0} {combine:>9.1}",
                    layout.name(),
                    if copied { "copied" } else { "mapped" },
                    by.to_string(),
                );
                rows.push(json!({
                    "ranks": devices.len(), "tokens": tokens, "hidden": hidden, "layout": layout.name(), "copied": copied,
                    "combine": by.to_string(), "rows": map.len(), "arrange_us": arrange, "arrange_gbs": rate,
                    "combine_us": combine,
                }));
            }
        }
    }
    println!("{}", json!({ "layouts": rows }));
    Ok(())
}

/// Medians of arrange and combine, microseconds.
fn time_rank(
    moe: &GpuMoe,
    part: &DeviceProblem,
    arranged: &Arranged,
    meeting: &Meeting,
    iterations: usize,
) -> Result<[f64; 2]> {
    let stream = &part.stream;
    let events = (0..4).map(|_| moe.device().event()).collect::<std::result::Result<Vec<_>, _>>()?;
    let mut times = [vec![], vec![]];
    for _ in 0..iterations {
        meeting.meet()?;
        // SAFETY: part and layout outlive the stream's work, which is waited for in every iteration.
        unsafe {
            arranged.launch_round(moe, SET, part)?;
            moe.dispatch(SET, stream, &part.tokens)?;
            events[0].record(stream)?;
            moe.arrange(SET, stream, &arranged.layout, arranged.copy.as_ref())?;
            events[1].record(stream)?;
            arranged.arrange_and_scale(moe, SET, stream, part.factors())?;
            events[2].record(stream)?;
            moe.combine_from(SET, stream, arranged.outputs(), &part.out)?;
            events[3].record(stream)?;
        }
        events[3].synchronize(PATIENCE)?;
        moe.check()?;
        for (times, at) in times.iter_mut().zip([1, 3]) {
            times.push(events[at].since(&events[at - 1])?.as_secs_f64() * 1e6);
        }
    }
    Ok(times.map(median))
}
