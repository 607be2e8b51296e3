//! Whether to stream: decided by what it took.
//!
//! Streaming stores win or lose by up to two, depending on what else uses the caches, whether the bytes are read again
//! before they are written again, and on which core of the machine the reader runs; none of that can be known from sizes.
//! So both ways are tried and the faster one is kept, for each size of work on its own; the other one is tried again now
//! and then. The bits that are moved are the same.
//!
//! What one way leaves in the caches is paid for by the next use, so only the second use in a row of a way counts. A
//! descheduled thread makes single samples worthless, so a way is judged by the best of its last few.

/// Uses of a way in a row: the first pays for what the other way left, the second is measured.
const RUN: u32 = 2;
/// Runs of each way at the start.
const TRIALS: u32 = 2;
/// Uses of the better way between two runs of the other.
const RETRY_AFTER: u32 = 126;
/// Samples by which a way is judged.
const SAMPLES: usize = 3;

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
    /// Nanoseconds a byte of the last samples: ordinary, streaming.
    samples: [[f32; SAMPLES]; 2],
    /// Where the next sample of each goes.
    next: [usize; 2],
}

impl Size {
    const NEW: Self = Self { uses: 0, run: 0, current: false, samples: [[f32::INFINITY; SAMPLES]; 2], next: [0; 2] };

    fn best(&self, streaming: bool) -> f32 {
        self.samples[usize::from(streaming)].iter().copied().fold(f32::INFINITY, f32::min)
    }

    fn wanted(&self) -> bool {
        let trials = 2 * RUN * TRIALS;
        if self.uses < trials {
            return (self.uses / RUN) % 2 == 1;
        }
        let better = self.best(true) < self.best(false);
        // The last run of a cycle goes to the other way.
        if self.uses - trials < RETRY_AFTER { better } else { !better }
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
        if size.run >= RUN {
            let way = usize::from(size.current);
            size.samples[way][size.next[way]] = nanoseconds as f32 / bytes.max(1) as f32;
            size.next[way] = (size.next[way] + 1) % SAMPLES;
        }
        size.uses += 1;
        if size.uses == 2 * RUN * TRIALS + RETRY_AFTER + RUN {
            size.uses = 2 * RUN * TRIALS;
        }
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
