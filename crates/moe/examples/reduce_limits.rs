//! How near the reduction of combine comes to what the memory allows.
//!
//! Reduces bf16 rows of 7168 elements from 2, 4 and 6 ranks, and compares, interleaved in one run:
//! * `read`: the same rows only read, summed as integers: the limit;
//! * `wsum`: the hand-written AVX-512 weighted sum of the CPU baselines, whose rounding (`vcvtne2ps2bf16`) flushes
//!   subnormals and keeps NaN payloads, so that it may not replace ours;
//! * each instruction set's `reduce_rows`, with ordinary and with streaming stores.
//!
//! `cargo run --release -p campanile-moe --example reduce_limits [TOKENS [HIDDEN]]`

use std::{
    alloc::{Layout, alloc_zeroed, handle_alloc_error},
    hint::black_box,
    time::{Duration, Instant},
};

use campanile_moe::{
    DType,
    arithmetic::{Isa, Kernels, Store},
};
use rand_xoshiro::{
    Xoshiro256PlusPlus,
    rand_core::{Rng, SeedableRng},
};

/// Time spent on one line of the table.
const BUDGET: Duration = Duration::from_millis(1500);

/// A row reduction under test: `(dst, rows, hidden)`.
type Arm = Box<dyn Fn(*mut u8, &[*const u8], usize)>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let tokens = args.next().map(|tokens| tokens.parse()).transpose()?;
    let hidden: usize = args.next().map_or(Ok(7168), |hidden| hidden.parse())?;
    if hidden == 0 || !hidden.is_multiple_of(64) {
        return Err(format!("hidden is {hidden}; wsum takes multiples of 64").into());
    }
    let arms = arms();
    println!("bf16, hidden {hidden}; ns a token (median), ratio to wsum or, without it, to read");
    for tokens in tokens.map_or(vec![128, 1024], |tokens| vec![tokens]) {
        for contributions in [2, 4, 6] {
            print!("{tokens:5} tokens x {contributions}");
            let medians = measure(&arms, tokens, contributions, hidden);
            let base = medians[arms.iter().position(|(name, _)| name == "wsum").unwrap_or(0)];
            for ((name, _), median) in arms.iter().zip(medians) {
                print!("  {name} {median:.0} ({:.2})", median / base);
            }
            println!();
        }
    }
    Ok(())
}

/// Everything that is compared, the limit first.
fn arms() -> Vec<(String, Arm)> {
    let mut arms: Vec<(String, Arm)> = vec![("read".into(), Box::new(read))];
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512bf16") {
        // SAFETY: the instruction set was just checked; `measure` hands over rows of `hidden` elements.
        arms.push(("wsum".into(), Box::new(|dst, rows, hidden| unsafe { wsum(dst, rows, hidden) })));
    }
    for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
        for store in [Store::Cached, Store::Streaming] {
            let name = match store {
                Store::Cached => format!("{:?}", kernels.isa()),
                Store::Streaming => "streaming".into(),
            };
            arms.push((
                name.to_lowercase(),
                // SAFETY: `measure` hands over disjoint rows of `hidden` elements that nobody else touches.
                Box::new(move |dst, rows, hidden| unsafe {
                    kernels.reduce_rows(DType::BF16, dst, rows, hidden, store)
                }),
            ));
        }
    }
    arms
}

/// The median time of each arm in ns a token, from rounds of all arms in random order: what an arm leaves in the
/// caches, its neighbours pay for.
fn measure(arms: &[(String, Arm)], tokens: usize, contributions: usize, hidden: usize) -> Vec<f64> {
    let row = DType::BF16.row_bytes(hidden);
    let out = plane(tokens * row);
    let planes: Vec<_> = (0..contributions).map(|_| plane(tokens * row)).collect();
    let rows: Vec<Vec<*const u8>> = (0..tokens)
        .map(|token| planes.iter().map(|plane| plane.wrapping_add(token * row).cast_const()).collect())
        .collect();
    let mut times = vec![Vec::new(); arms.len()];
    let mut order: Vec<_> = (0..arms.len()).collect();
    let mut random = Xoshiro256PlusPlus::seed_from_u64(0);
    let start = Instant::now();
    while times[0].len() < 5 || start.elapsed() < BUDGET {
        for last in (1..order.len()).rev() {
            order.swap(last, random.next_u64() as usize % (last + 1));
        }
        for &arm in &order {
            let start = Instant::now();
            for (token, rows) in rows.iter().enumerate() {
                arms[arm].1(out.wrapping_add(token * row), rows, hidden);
            }
            times[arm].push(start.elapsed().as_nanos() as f64 / tokens as f64);
        }
    }
    times
        .iter_mut()
        .map(|times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        })
        .collect()
}

/// Touched memory that holds bf16 numbers near 1; never freed.
fn plane(bytes: usize) -> *mut u8 {
    let layout = Layout::from_size_align(bytes.max(1), 4096).expect("a plane fits the address space");
    // SAFETY: the layout is not empty.
    let plane = unsafe { alloc_zeroed(layout) };
    if plane.is_null() {
        handle_alloc_error(layout);
    }
    for i in 0..bytes / 2 {
        // SAFETY: within the allocation, which is aligned for u16.
        unsafe { plane.cast::<u16>().add(i).write(0x3f80 | (i * 7 % 64) as u16) }
    }
    plane
}

/// Reads the rows and nothing else.
fn read(_: *mut u8, rows: &[*const u8], hidden: usize) {
    let mut sums = [0_u64; 16];
    for &row in rows {
        // SAFETY: `measure` hands over rows of `hidden` elements that nobody writes.
        let row = unsafe { std::slice::from_raw_parts(row.cast::<[u64; 16]>(), DType::BF16.row_bytes(hidden) / 128) };
        for words in row {
            for (sum, word) in sums.iter_mut().zip(words) {
                *sum = sum.wrapping_add(*word);
            }
        }
    }
    black_box(sums);
}

/// The weighted sum of the hand-written baseline, with unit weights as its combine uses it: zero accumulators, fused
/// multiply-add, hardware rounding.
///
/// # Safety
/// `dst` and the rows hold `hidden` elements, a multiple of 64.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn wsum(dst: *mut u8, rows: &[*const u8], hidden: usize) {
    use std::{arch::x86_64::*, mem::transmute};
    let weights = black_box(&[1.0_f32; 64]);
    for h in (0..hidden).step_by(64) {
        let mut sums = [_mm512_setzero_ps(); 4];
        for (row, &weight) in rows.iter().zip(weights) {
            for (quarter, sum) in sums.iter_mut().enumerate() {
                // SAFETY: elements h .. h + 64 exist.
                let packed = unsafe { _mm256_loadu_si256(row.add(2 * (h + 16 * quarter)).cast()) };
                let wide = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(packed)));
                *sum = _mm512_fmadd_ps(wide, _mm512_set1_ps(weight), *sum);
            }
        }
        let [a, b, c, d] = sums;
        // SAFETY: elements h .. h + 64 exist; the types are registers of the same size.
        unsafe {
            let low = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(b, a));
            let high = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(d, c));
            _mm512_storeu_si512(dst.add(2 * h).cast(), low);
            _mm512_storeu_si512(dst.add(2 * h + 64).cast(), high);
        }
    }
}
