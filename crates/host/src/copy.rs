//! Copies between memories that a core reaches by load and store.
//!
//! Two ways. A **temporal** copy is `memcpy`: the destination's lines are read into the writer's cache, changed
//! there, and written back at some time. A **streaming** copy stores past the caches: the destination is not read
//! first, so a copy of what does not fit in the caches moves two thirds of the bytes; but a reader then fetches it
//! from memory, and streaming stores are weakly ordered.
//!
//! **Ordering.** After streaming copies call [`streaming_fence`] once, before the release store that announces the
//! bytes: a release store orders ordinary stores only. One fence covers all copies before it on this thread.
//!
//! **Which one.** [`Copier::for_bytes`] decides once, for all the bytes that go round and round, not per row:
//! streaming if they exceed the core's L2. Measured with `examples/copy_limits.rs` (rows of 14 KiB, huge pages, GB/s
//! of two cores together, temporal / streaming; in an exchange each core writes into the other's buffer, then reads
//! its own):
//!
//! | bytes a core writes | copy, Zen 4 | exchange, Zen 4 | 1 buffer there and back, Sapphire Rapids (µs) |
//! |---|---|---|---|
//! | 64 KiB | 95 / 110 | 3.9 / 23 | 2.5 / 4.6 |
//! | 1 MiB | 82 / 103 | 4.2 / 38 | 69 / 69 |
//! | 8 MiB | 66 / 93 | 5 / 34 | |
//! | 16 MiB | 38 / 56 | 7 / 26 | 3062 / 1381 |
//! | 64 MiB | 26 / 37 | 16 / 23 | |
//! | 256 MiB | 26 / 38 | 18 / 22 | |
//!
//! The two Zen cores are on different L3 slices (140 ns a line one way), though the virtual machine says otherwise:
//! every line that one has written and the other wants crosses between them, so streaming wins at any size. On
//! Sapphire Rapids (L2 2 MiB, one L3) a small buffer is cheaper to fetch from the other's L2, and the two meet near 1
//! MiB. In MoE dispatch there, streaming is 7 % slower at 3.7 MB a rank (2 ranks) and 1.4 to 1.6 times faster from
//! 6.6 MB on (4 and 8 ranks). L2 is the size that is wrong by the least: what a virtual machine says of L3 is of no
//! use.
//!
//! **Streaming stores** are the widest of the machine: AVX-512, AVX2, SSE2. On aarch64 both ways are `memcpy`: its
//! non-temporal pair store (STNP) is only a hint, which most cores ignore.

use std::sync::OnceLock;

use crate::cache::Caches;

/// A copy of `len` bytes from `src` to `dst`.
type Kernel = unsafe fn(dst: *mut u8, src: *const u8, len: usize);

/// One way of copying, chosen once and used for many copies.
#[derive(Debug, Clone, Copy)]
pub struct Copier {
    /// `None`: temporal.
    streaming: Option<Kernel>,
}

impl Copier {
    /// Copies through the caches.
    pub const TEMPORAL: Self = Self { streaming: None };

    /// Copies past the caches, where the machine can; else [`TEMPORAL`](Self::TEMPORAL).
    #[must_use]
    pub fn streaming() -> Self {
        Self { streaming: streaming_kernel().map(|(kernel, _)| kernel) }
    }

    /// The better way for a destination set of `bytes` bytes in all: what one core writes before it writes the same
    /// bytes again (to all peers, in all buffer sets).
    #[must_use]
    pub fn for_bytes(bytes: usize) -> Self {
        if bytes >= streaming_threshold(host_caches()) { Self::streaming() } else { Self::TEMPORAL }
    }

    /// Whether [`streaming_fence`] is needed after [`copy`](Self::copy).
    #[inline]
    #[must_use]
    pub const fn is_streaming(&self) -> bool {
        self.streaming.is_some()
    }

    /// Copies `len` bytes from `src` to `dst`, any alignment, any length.
    ///
    /// # Safety
    /// `src` is valid for `len` bytes of loads, `dst` for `len` bytes of stores, the two do not overlap, and nobody
    /// stores to `src` or accesses `dst` meanwhile. Where the copier [is streaming](Self::is_streaming), `dst` may be
    /// accessed by others only after a [`streaming_fence`] and whatever announces the bytes.
    #[inline]
    pub unsafe fn copy(&self, dst: *mut u8, src: *const u8, len: usize) {
        match self.streaming {
            // SAFETY: the caller's promise is the kernel's.
            Some(kernel) => unsafe { kernel(dst, src, len) },
            // SAFETY: as above.
            None => unsafe { std::ptr::copy_nonoverlapping(src, dst, len) },
        }
    }

    /// [`streaming_fence`] if this copier is streaming. Call it once after a run of copies, before they are announced.
    #[inline]
    pub fn fence(&self) {
        if self.is_streaming() {
            streaming_fence();
        }
    }
}

/// Copies `len` bytes past the caches where the machine can: see [`Copier::streaming`]. Not fenced.
///
/// # Safety
/// As [`Copier::copy`].
#[inline]
pub unsafe fn copy_streaming(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise is the same.
    unsafe { Copier::streaming().copy(dst, src, len) }
}

/// Makes all streaming stores of this thread visible before any later store of it (`sfence`). Nothing on aarch64, where
/// streaming copies are ordinary ones.
#[inline]
pub fn streaming_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the sfence instruction belongs to SSE, which every x86_64 has.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// The stores that streaming copies use here: `avx512`, `avx2`, `sse2`, or `none` where they are temporal.
#[must_use]
pub fn streaming_isa() -> &'static str {
    streaming_kernel().map_or("none", |(_, isa)| isa)
}

/// The size of the destination set, in bytes, from which streaming is used: see the [module](self).
fn streaming_threshold(caches: &Caches) -> usize {
    /// For a machine that does not tell its L2: that of current server cores, 1 to 2 MiB.
    const USUAL_L2: usize = 1 << 20;
    if caches.l2 > 0 { caches.l2 } else { USUAL_L2 }
}

fn host_caches() -> &'static Caches {
    static CACHES: OnceLock<Caches> = OnceLock::new();
    CACHES.get_or_init(|| Caches::of_cpu(std::path::Path::new("/"), 0))
}

#[cfg(not(target_arch = "x86_64"))]
fn streaming_kernel() -> Option<(Kernel, &'static str)> {
    None
}

#[cfg(target_arch = "x86_64")]
fn streaming_kernel() -> Option<(Kernel, &'static str)> {
    static KERNEL: OnceLock<(Kernel, &'static str)> = OnceLock::new();
    Some(*KERNEL.get_or_init(x86::widest))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_stream_si128, _mm256_loadu_si256, _mm256_stream_si256,
        _mm512_loadu_si512, _mm512_stream_si512,
    };

    use super::Kernel;

    /// The kernel with the widest stores that this machine has, and its name.
    pub fn widest() -> (Kernel, &'static str) {
        available()[0]
    }

    /// All kernels that this machine can run, widest first.
    pub fn available() -> Vec<(Kernel, &'static str)> {
        let mut kernels: Vec<(Kernel, &'static str)> = Vec::new();
        if is_x86_feature_detected!("avx512f") {
            kernels.push((avx512, "avx512"));
        }
        if is_x86_feature_detected!("avx2") {
            kernels.push((avx2, "avx2"));
        }
        kernels.push((sse2, "sse2"));
        kernels
    }

    /// Defines a streaming copy with vectors of `$vector`: a head of plain stores until the destination is aligned to
    /// a line (a streaming store must be aligned, and a line written in one go needs no reading), then four lines at
    /// a time, then vectors, then a tail of plain stores.
    macro_rules! streaming_copy {
        ($name:ident, $feature:literal, $vector:ty, $load:ident, $store:ident) => {
            /// # Safety
            /// As [`super::Copier::copy`]; the CPU has the feature that the kernel is named after.
            #[target_feature(enable = $feature)]
            unsafe fn $name(mut dst: *mut u8, mut src: *const u8, mut len: usize) {
                const VECTOR: usize = size_of::<$vector>();
                const LINE: usize = 64;
                const BLOCK: usize = 4 * LINE;
                let head = dst.align_offset(LINE).min(len);
                // SAFETY: `head`, each step and the rest are within the `len` bytes that the caller vouches for; the
                // destination of each streaming store is aligned to a line, or to the vector within the last line.
                unsafe {
                    std::ptr::copy_nonoverlapping(src, dst, head);
                    (dst, src, len) = (dst.add(head), src.add(head), len - head);
                    while len >= BLOCK {
                        let mut block = [std::mem::zeroed::<$vector>(); BLOCK / VECTOR];
                        for (index, vector) in block.iter_mut().enumerate() {
                            *vector = $load(src.add(index * VECTOR).cast());
                        }
                        for (index, vector) in block.into_iter().enumerate() {
                            $store(dst.add(index * VECTOR).cast(), vector);
                        }
                        (dst, src, len) = (dst.add(BLOCK), src.add(BLOCK), len - BLOCK);
                    }
                    while len >= VECTOR {
                        $store(dst.cast(), $load(src.cast()));
                        (dst, src, len) = (dst.add(VECTOR), src.add(VECTOR), len - VECTOR);
                    }
                    std::ptr::copy_nonoverlapping(src, dst, len);
                }
            }
        };
    }

    streaming_copy!(avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512);
    streaming_copy!(avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_stream_si256);
    streaming_copy!(sse2, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way of copying that this machine has.
    fn kernels() -> Vec<(Kernel, &'static str)> {
        let temporal: (Kernel, &'static str) = (temporal, "temporal");
        #[cfg(target_arch = "x86_64")]
        return std::iter::once(temporal).chain(x86::available()).collect();
        #[cfg(not(target_arch = "x86_64"))]
        vec![temporal]
    }

    unsafe fn temporal(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's promise is the same.
        unsafe { Copier::TEMPORAL.copy(dst, src, len) }
    }

    /// Longer than the unrolled body of 256 bytes with any head and tail, several times.
    const LONGEST: usize = 1100;
    const GUARD: usize = 128;
    const LINE: usize = 64;

    #[repr(align(64))]
    struct Aligned([u8; GUARD + LINE + LONGEST + GUARD]);

    #[test]
    fn every_alignment_and_length_and_not_a_byte_more() {
        let mut source = Aligned([0; _]);
        for (index, byte) in source.0.iter_mut().enumerate() {
            // 237 is odd, so no shift by a line or a block repeats it; and 0xEE, 238, the guard, never comes.
            *byte = (index % 237) as u8;
        }
        for (kernel, name) in kernels() {
            let mut target = Aligned([0xEE; _]);
            let mut expected = Aligned([0xEE; _]);
            for to in GUARD..GUARD + LINE {
                for len in 0..=LONGEST {
                    for from in [0, to % LINE, (to * 7 + len) % LINE] {
                        // SAFETY: both ranges are within their arrays, which are apart.
                        unsafe {
                            kernel(target.0.as_mut_ptr().add(to), source.0.as_ptr().add(from), len);
                        }
                        streaming_fence();
                        expected.0[to..to + len].copy_from_slice(&source.0[from..from + len]);
                        assert!(target.0 == expected.0, "{name}: {len} bytes from {from} to {to}");
                        target.0[to..to + len].fill(0xEE);
                        expected.0[to..to + len].fill(0xEE);
                    }
                }
            }
        }
    }

    /// The last line is left in part, so that without a fence it stays in the core's write buffer, behind its
    /// announcement.
    #[test]
    fn a_row_announced_after_the_fence_is_whole_for_another_core() {
        use crate::wait::{SpinPolicy, Step, Waiter};
        use std::sync::atomic::{AtomicUsize, Ordering};
        const ROW: usize = 4 * LINE + 48;
        const ROUNDS: usize = 500;
        let wait = |word: &AtomicUsize, round| {
            let mut waiter = Waiter::new(SpinPolicy::SHARED);
            while word.load(Ordering::Acquire) < round {
                match waiter.step() {
                    Step::Spin => std::hint::spin_loop(),
                    Step::Yield | Step::Sleep(_) => std::thread::yield_now(),
                }
            }
        };
        for (kernel, name) in kernels() {
            let row = crate::memory::SharedMemory::create("row", ROW, crate::memory::Pages::Small).expect("a page");
            let (written, read) = (AtomicUsize::new(0), AtomicUsize::new(0));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 1..=ROUNDS {
                        let source = [round as u8; ROW];
                        wait(&read, round - 1);
                        // SAFETY: both are ROW bytes; the reader has announced that it is done with the row.
                        unsafe { kernel(row.as_ptr(), source.as_ptr(), ROW) };
                        streaming_fence();
                        written.store(round, Ordering::Release);
                    }
                });
                let mut torn = 0;
                for round in 1..=ROUNDS {
                    wait(&written, round);
                    // SAFETY: ROW bytes, which the writer leaves alone until `read` is raised.
                    let bytes = unsafe { std::slice::from_raw_parts(row.as_ptr(), ROW) };
                    torn += usize::from(bytes.iter().rev().any(|&byte| byte != round as u8));
                    read.store(round, Ordering::Release);
                }
                assert_eq!(torn, 0, "{name}: rows of {ROUNDS}");
            });
        }
    }

    #[test]
    fn streams_from_the_size_of_the_l2_on() {
        let caches = |l2| Caches { l2, ..Caches::default() };
        assert_eq!(streaming_threshold(&caches(2 << 20)), 2 << 20);
        assert_eq!(streaming_threshold(&caches(0)), 1 << 20);
        assert!(!Copier::for_bytes(0).is_streaming());
        assert_eq!(Copier::for_bytes(usize::MAX).is_streaming(), Copier::streaming().is_streaming());
        assert_eq!(Copier::streaming().is_streaming(), streaming_isa() != "none");
    }
}
