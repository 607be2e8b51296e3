//! Which stores a stream copies with.
//!
//! | copy | bytes | stores | why |
//! |---|---|---|---|
//! | into a ring | part below 2 KiB | ordinary | over before a line has left the core; readers find it in its cache |
//! | into a ring | part of 2 KiB or more | streaming | readers have the lines of the slot's last use: an ordinary store asks for each of them back, one by one |
//! | out of a ring or an input | below 8 MiB a call | ordinary | the caller's buffer is in the caches, or is read next |
//! | out of a ring or an input | 8 MiB or more a call | streaming | it is not: its lines would be read from memory to be overwritten |
//!
//! Measured on a Zen 4 guest of two cores, 2 ranks, buffers reused, µs, ordinary / streaming. Into the ring, broadcast by
//! `campanile bench`, best 10th percentile of interleaved launches: 4 KiB 0.73 / 0.91, 32 KiB 4.5 / 3.2, 256 KiB 30 / 19, 16
//! MiB 1986 / 1396. The same ring by hand in C, with the cores at another distance: 1 KiB 0.18 / 0.29, 2 KiB 0.32 / 0.34,
//! 4 KiB 1.8 / 0.39, 16 KiB 7.5 / 1.3. So the least part that streams is one that loses little where cores are near. Tried
//! besides, by hand: vector loops instead of `memcpy` (equal), prefetching for write, all lines of a part or 1 KiB ahead
//! (equal to four times slower). Out of an input, all-gather: 1 MiB 31 / 77, 4 MiB 128 / 309, 16 MiB 660 / 669.

use campanile_host::copy::Copier;

/// Parts from this size on are streamed into the ring.
const STREAM_IN_FROM: usize = 2 << 10;
/// Calls that write this much into the caller's memory stream.
const STREAM_OUT_FROM: usize = 8 << 20;

/// For a part of `bytes` into the ring.
pub(crate) fn into_ring(bytes: usize) -> Copier {
    if bytes >= STREAM_IN_FROM { Copier::streaming() } else { Copier::TEMPORAL }
}

/// For what a call writes into the caller's memory, `bytes` in all.
pub(crate) fn out(bytes: usize) -> Copier {
    if bytes >= STREAM_OUT_FROM { Copier::streaming() } else { Copier::TEMPORAL }
}
