//! Whether to stream: decided by what it took.
//!
//! Streaming stores win or lose by up to two, depending on what else uses the caches, whether the bytes are read again
//! before they are written again, and on which core of the machine the reader runs; none of that can be known from sizes.
//! So both ways are tried and the faster one is kept, for each size of work on its own; the other one is tried again now
//! and then. The bits that are moved are the same.
//!
//! What one way leaves in the caches is paid for by the next uses, so a way is used some times in a row, and only the last of
//! them count. A descheduled thread makes single samples worthless, so a way is judged by the best of its last few.

/// Uses of a way in a row when it is tried.
const RUN: u32 = 4;
/// The first of them that pay for what the other way left.
const SETTLING: u32 = 2;
/// Uses at the start in which the ways take turns.
const TRIAL: u32 = 4 * RUN;
/// Uses of the better way between two runs of the other: soon at first, twice as late whenever it is confirmed.
const RETRY_AFTER: std::ops::RangeInclusive<u32> = 12..=384;
/// Samples by which a way is judged.
const SAMPLES: usize = 4;
/// Streaming must be this much faster: ordinary stores leave the bytes where a reader on this core finds them.
const MARGIN: f32 = 0.95;

/// A choice between ordinary and streaming stores, by size of work.
#[derive(Clone, Debug)]
pub(crate) struct StreamChoice {
    /// By the logarithm of the bytes.
    sizes: Vec<Size>,
}

#[derive(Clone, Copy, Debug)]
struct Size {
    /// Uses so far, in the current cycle once the trials are over.
    uses: u32,
    /// Uses in a row of `current`.
    run: u32,
    current: bool,
    /// Uses of the better way in this cycle.
    period: u32,
    /// What was better when this cycle began.
    better: bool,
    /// Nanoseconds a byte of the last samples: ordinary, streaming.
    samples: [[f32; SAMPLES]; 2],
    /// Where the next sample of each goes.
    next: [usize; 2],
}

impl Size {
    const NEW: Self = Self {
        uses: 0,
        run: 0,
        current: false,
        period: *RETRY_AFTER.start(),
        better: false,
        samples: [[f32::INFINITY; SAMPLES]; 2],
        next: [0; 2],
    };

    fn best(&self, streaming: bool) -> f32 {
        self.samples[usize::from(streaming)].iter().copied().fold(f32::INFINITY, f32::min)
    }

    /// Whether streaming is better by what is known.
    fn streaming_is_better(&self) -> bool {
        self.best(true) < MARGIN * self.best(false)
    }

    fn wanted(&self) -> bool {
        if self.uses < TRIAL {
            return (self.uses / RUN) % 2 == 1;
        }
        // The last run of a cycle goes to the other way.
        self.better != (self.uses - TRIAL >= self.period)
    }

    /// Moves on after a use.
    fn advance(&mut self) {
        self.uses += 1;
        if self.uses == TRIAL {
            self.better = self.streaming_is_better();
        }
        if self.uses == TRIAL + self.period + RUN {
            let better = self.streaming_is_better();
            let confirmed = better == self.better;
            self.period = if confirmed { (2 * self.period).min(*RETRY_AFTER.end()) } else { *RETRY_AFTER.start() };
            self.better = better;
            self.uses = TRIAL;
        }
    }
}

impl StreamChoice {
    pub(crate) fn new() -> Self {
        Self { sizes: vec![Size::NEW; usize::BITS as usize] }
    }

    fn size(&mut self, bytes: usize) -> &mut Size {
        &mut self.sizes[bytes.max(1).ilog2() as usize]
    }

    /// Whether to stream the next `bytes`.
    pub(crate) fn choose(&mut self, bytes: usize) -> bool {
        let size = self.size(bytes);
        let wanted = size.wanted();
        size.run = if wanted == size.current { size.run + 1 } else { 1 };
        size.current = wanted;
        wanted
    }

    /// The `bytes` that were chosen for last took so long.
    pub(crate) fn record(&mut self, bytes: usize, nanoseconds: u64) {
        let size = self.size(bytes);
        if size.run > SETTLING {
            let way = usize::from(size.current);
            size.samples[way][size.next[way]] = nanoseconds as f32 / bytes.max(1) as f32;
            size.next[way] = (size.next[way] + 1) % SAMPLES;
        }
        size.advance();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses of the streaming way in `uses`, where each way takes what `cost` says of (streaming, previous way).
    fn streamed(choice: &mut StreamChoice, uses: usize, cost: impl Fn(bool, bool) -> u64) -> usize {
        let mut previous = false;
        let mut count = 0;
        for _ in 0..uses {
            let streaming = choice.choose(1000);
            choice.record(1000, cost(streaming, previous));
            previous = streaming;
            count += usize::from(streaming);
        }
        count
    }

    #[test]
    fn the_faster_way_is_kept_and_the_other_one_retried() {
        for (ordinary, streaming) in [(100, 200), (200, 100)] {
            let mut choice = StreamChoice::new();
            let count = streamed(&mut choice, 1000, |s, _| if s { streaming } else { ordinary });
            if streaming < ordinary {
                assert!((950..1000).contains(&count), "{count}");
            } else {
                assert!((1..50).contains(&count), "{count}");
            }
        }
    }

    #[test]
    fn the_first_use_after_a_change_does_not_count() {
        // Ordinary stores are faster, but not right after streaming ones.
        let mut choice = StreamChoice::new();
        let count = streamed(&mut choice, 1000, |s, previous| match (s, previous) {
            (true, _) => 200,
            (false, true) => 1000,
            (false, false) => 100,
        });
        assert!(count < 50, "{count}");
    }

    #[test]
    fn a_change_of_the_machine_is_noticed() {
        let mut choice = StreamChoice::new();
        streamed(&mut choice, 500, |s, _| if s { 200 } else { 100 });
        let count = streamed(&mut choice, 2000, |s, _| if s { 200 } else { 400 });
        assert!(count > 1000, "{count}");
    }

    #[test]
    fn one_bad_sample_does_not_decide() {
        let mut choice = StreamChoice::new();
        let mut use_of_ordinary = 0;
        for n in 0..1000 {
            let streaming = choice.choose(1000);
            use_of_ordinary += usize::from(!streaming);
            let descheduled = n % 10 == 3;
            choice.record(
                1000,
                if descheduled {
                    1_000_000
                } else if streaming {
                    200
                } else {
                    100
                },
            );
        }
        assert!(use_of_ordinary > 900, "{use_of_ordinary}");
    }

    #[test]
    fn sizes_are_judged_apart() {
        let mut choice = StreamChoice::new();
        let mut last = [false; 2];
        for n in 0..100 {
            let bytes = [1000, 1_000_000][n % 2];
            last[n % 2] = choice.choose(bytes);
            let slow = (bytes == 1000) == last[n % 2];
            choice.record(bytes, if slow { 2 } else { 1 } * bytes as u64);
        }
        assert_eq!(last, [false, true]);
    }
}
