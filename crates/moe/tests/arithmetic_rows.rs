//! The row kernels of every instruction set that this machine has, against one scalar loop, bit for bit.
//!
//! Rows end at a page that must not be touched, or lie between guard bytes at odd addresses; their elements are mostly
//! what floating point is worst at.

use std::ptr::NonNull;

use campanile_moe::{
    DType,
    arithmetic::{Isa, Kernels, Row, Store, coefficient},
    number,
};
use proptest::{collection::vec, prelude::*};
use rand_xoshiro::{
    Xoshiro256PlusPlus,
    rand_core::{Rng, SeedableRng},
};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const COMBINE: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
const STORES: [Store; 2] = [Store::Cached, Store::Streaming];
const GUARD: u8 = 0xa5;

fn kernels() -> impl Iterator<Item = &'static Kernels> {
    Isa::ALL.into_iter().filter_map(Kernels::for_isa)
}

/// The definition of the reduction, one element after the other.
fn reduced(dtype: DType, rows: &[Vec<u8>], hidden: usize) -> Vec<u8> {
    let mut out = vec![0; dtype.row_bytes(hidden)];
    match rows {
        [] => {}
        [row] => out.copy_from_slice(row),
        [first, others @ ..] => {
            for h in 0..hidden {
                let mut sum = number::read(dtype, first, h);
                for other in others {
                    sum += number::read(dtype, other, h);
                }
                number::write(dtype, &mut out, h, sum);
            }
        }
    }
    out
}

/// The definition of the scaling, one element after the other.
fn scaled(combine: DType, dtype: DType, x: &[u8], scales: &[f32], hidden: usize, c: f32) -> Vec<u8> {
    let mut out = vec![0; combine.row_bytes(hidden)];
    for h in 0..hidden {
        let mut value = number::read(dtype, x, h);
        if dtype.is_scaled() {
            value *= scales[h / hidden.div_ceil(scales.len())];
        }
        number::write(combine, &mut out, h, c * value);
    }
    out
}

/// An element that is hard on arithmetic, or a random one, as the low bits of a word.
fn element(dtype: DType, choice: u32, bits: u32) -> u32 {
    let (width, hard): (u32, &[u32]) = match dtype {
        DType::F32 => (
            32,
            &[
                0x7fc0_0000,
                0x7f80_0001,
                0x7fa5_5aa5,
                0x7fff_ffff,
                0x7f80_0000,
                0x7f7f_ffff,
                0x7f00_0000,
                0x0000_0000,
                0x0000_0001,
                0x007f_ffff,
                0x0080_0000,
                0x3f80_0000,
                0x3f80_0001,
                0x4b80_0000,
                0x3380_0000,
                0x3300_0000,
            ],
        ),
        DType::F16 => (
            16,
            &[
                0x7e00, 0x7c01, 0x7d55, 0x7fff, 0x7c00, 0x7bff, 0x7800, 0x0000, 0x0001, 0x03ff, 0x0400, 0x3c00, 0x3c01,
                0x6800, 0x1000, 0x1400,
            ],
        ),
        DType::BF16 => (
            16,
            &[
                0x7fc0, 0x7f81, 0x7faa, 0x7fff, 0x7f80, 0x7f7f, 0x7f00, 0x0000, 0x0001, 0x007f, 0x0080, 0x3f80, 0x3f81,
                0x4380, 0x3b80, 0x3c00,
            ],
        ),
        _ => (8, &[0x80, 0x7f, 0x00, 0x01, 0x07, 0x08, 0x7e, 0x38]),
    };
    match choice % 4 {
        // A hard one of either sign; one near another in size, so that sums round; any bits.
        0 => hard[bits as usize % hard.len()] | (bits >> 31) << (width - 1),
        1 | 2 => (hard[hard.len() - 5] | bits & 0x83ff) & (u32::MAX >> (32 - width)),
        _ => bits & (u32::MAX >> (32 - width)),
    }
}

fn row(dtype: DType, elements: impl Iterator<Item = (u32, u32)>) -> Vec<u8> {
    elements.flat_map(|(choice, bits)| element(dtype, choice, bits).to_le_bytes()[..dtype.bytes()].to_vec()).collect()
}

fn random_row(dtype: DType, hidden: usize, random: &mut Xoshiro256PlusPlus) -> Vec<u8> {
    let parts = dtype.row_bytes(hidden) / dtype.bytes();
    row(dtype, (0..parts).map(|_| (random.next_u32(), random.next_u32())))
}

/// Memory whose last page must not be touched.
struct Fenced {
    base: NonNull<u8>,
    bytes: usize,
}

const PAGE: usize = 4096;

impl Fenced {
    fn new(least: usize) -> Self {
        let bytes = least.next_multiple_of(PAGE) + PAGE;
        // SAFETY: a new private mapping, whose last page is then taken away.
        unsafe {
            let base =
                mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
                    .expect("the machine has a few pages");
            mprotect(base.byte_add(bytes - PAGE), PAGE, MprotectFlags::empty()).expect("a mapped page");
            Self { base: NonNull::new(base.cast()).expect("a mapping is not at 0"), bytes }
        }
    }

    /// The bytes that end `after` bytes before the fence, all others being guard bytes.
    fn at(&mut self, bytes: usize, after: usize) -> &mut [u8] {
        let usable = self.bytes - PAGE;
        // SAFETY: the mapping without its last page is this value's own.
        let all = unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), usable) };
        all.fill(GUARD);
        &mut all[usable - after - bytes..usable - after]
    }

    /// Whether all but those bytes are still guard bytes.
    fn is_intact(&self, bytes: usize, after: usize) -> bool {
        let usable = self.bytes - PAGE;
        // SAFETY: as above.
        let all = unsafe { std::slice::from_raw_parts(self.base.as_ptr(), usable) };
        let (before, after) = (&all[..usable - after - bytes], &all[usable - after..]);
        before.iter().chain(after).all(|&byte| byte == GUARD)
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: made by `new`; no slice outlives the value.
        unsafe { munmap(self.base.as_ptr().cast(), self.bytes) }.expect("a mapping of this process");
    }
}

/// One fenced memory for each row, and one for the result.
struct Bench {
    rows: Vec<Fenced>,
    dst: Fenced,
}

impl Bench {
    fn new(rows: usize, bytes: usize) -> Self {
        Self { rows: (0..rows).map(|_| Fenced::new(bytes + 64)).collect(), dst: Fenced::new(bytes + 64) }
    }

    /// Reduces with every instruction set; row i ends `after[i]` bytes before its fence, the result `after[0]`.
    fn check(&mut self, dtype: DType, rows: &[Vec<u8>], hidden: usize, after: &[usize]) {
        let bytes = dtype.row_bytes(hidden);
        let expected = reduced(dtype, rows, hidden);
        let pointers: Vec<*const u8> = (self.rows.iter_mut().zip(rows).zip(after))
            .map(|((memory, row), &after)| {
                let place = memory.at(bytes, after);
                place.copy_from_slice(row);
                place.as_ptr()
            })
            .collect();
        for kernels in kernels() {
            for store in STORES {
                let dst = self.dst.at(bytes, after[0]);
                // SAFETY: all of them have `bytes` bytes and are disjoint.
                unsafe { kernels.reduce_rows(dtype, dst.as_mut_ptr(), &pointers, hidden, store) };
                let case = format!("{dtype}, hidden {hidden}, {} rows, {:?}, {store:?}", rows.len(), kernels.isa());
                equal(dtype, dst, &expected, &case);
                assert!(self.dst.is_intact(bytes, after[0]), "{case}: wrote outside the row");
            }
        }
    }
}

fn equal(dtype: DType, got: &[u8], expected: &[u8], case: &str) {
    let width = dtype.bytes();
    let wrong = got.chunks(width).zip(expected.chunks(width)).position(|(got, expected)| got != expected);
    if let Some(h) = wrong {
        let part = h * width..(h + 1) * width;
        panic!("{case}: element {h} is {:02x?}, expected {:02x?}", &got[part.clone()], &expected[part]);
    }
}

#[test]
fn every_number_of_rows_and_every_tail() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    for dtype in COMBINE {
        let mut bench = Bench::new(16, dtype.row_bytes(70));
        for hidden in (1..=70).filter(|hidden| hidden % 7 < 3 || *hidden < 18) {
            for n in 0..=16 {
                let rows: Vec<_> = (0..n).map(|_| random_row(dtype, hidden, &mut random)).collect();
                let after: Vec<usize> = (0..=n).map(|i| if hidden % 2 == 0 { 0 } else { (i * 5) % 64 }).collect();
                bench.check(dtype, &rows, hidden, &after);
            }
        }
    }
}

#[test]
fn long_rows() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(2);
    for (hidden, counts) in [(7168, 1..=4), (16384, 8..=9)] {
        for dtype in COMBINE {
            let mut bench = Bench::new(9, dtype.row_bytes(hidden));
            for n in counts.clone() {
                let rows: Vec<_> = (0..n).map(|_| random_row(dtype, hidden, &mut random)).collect();
                bench.check(dtype, &rows, hidden, &vec![0; n + 1]);
            }
        }
    }
}

/// The results of two numbers: all specials meet all specials, in every lane.
#[test]
fn every_pair_of_hard_numbers() {
    for dtype in COMBINE {
        let hard: Vec<u32> = (0..32).map(|i| element(dtype, 0, (i % 16) | ((i / 16) << 31))).collect();
        let bytes = |words: Vec<u32>| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()[..dtype.bytes()].to_vec()).collect()
        };
        let first = bytes(hard.iter().flat_map(|&a| hard.iter().map(move |_| a)).collect());
        let second = bytes(hard.iter().flat_map(|_| hard.iter().copied()).collect());
        Bench::new(2, first.len()).check(dtype, &[first, second], 32 * 32, &[0, 0, 0]);
    }
}

/// What the arithmetic of x86 does of itself, and must not reach a result.
#[test]
fn the_traps_of_x86() {
    let inf_minus_inf = [0x7f80_u16, 0xff80];
    let signalling = [0xff81_u16, 0x3f80];
    let subnormals = [0x0001_u16, 0x0001];
    let minus_zero = [0x8000_u16, 0x8000];
    let overflow = [0x7f7f_u16, 0x7f00];
    for (pair, expected) in [
        (inf_minus_inf, 0x7fc0_u16), // the default NaN of x86 is negative
        (signalling, 0x7fc0),        // and a payload is handed on
        (subnormals, 0x0002),        // vcvtne2ps2bf16 makes this 0
        (minus_zero, 0x8000),        // a sum that starts at +0 loses the sign
        (overflow, 0x7f80),
    ] {
        let rows: Vec<Vec<u8>> = pair.iter().map(|bits| bits.to_le_bytes().repeat(40)).collect();
        assert_eq!(reduced(DType::BF16, &rows, 40), expected.to_le_bytes().repeat(40));
        Bench::new(2, 80).check(DType::BF16, &rows, 40, &[0, 0, 0]);
    }
    // The order matters: 2^24 + 1 + 1 rounds twice, 1 + 1 + 2^24 does not.
    let [big, one] = [16_777_216_f32, 1.0].map(|value| value.to_le_bytes().to_vec());
    assert_eq!(reduced(DType::F32, &[big.clone(), one.clone(), one.clone()], 1), big);
    Bench::new(3, 4).check(DType::F32, &[big, one.clone(), one], 1, &[0; 4]);
}

#[test]
fn the_result_may_replace_a_row() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
    for dtype in COMBINE {
        for (hidden, n) in [(1, 1), (33, 2), (77, 3), (300, 9)] {
            let rows: Vec<_> = (0..n).map(|_| random_row(dtype, hidden, &mut random)).collect();
            let expected = reduced(dtype, &rows, hidden);
            for kernels in kernels() {
                for target in 0..n {
                    let mut memory = rows.clone();
                    let pointers: Vec<*mut u8> = memory.iter_mut().map(|row| row.as_mut_ptr()).collect();
                    let sources: Vec<*const u8> = pointers.iter().map(|row| row.cast_const()).collect();
                    // SAFETY: rows of `hidden` elements; the result is one of them, the others are disjoint.
                    unsafe { kernels.reduce_rows(dtype, pointers[target], &sources, hidden, Store::Cached) };
                    equal(dtype, &memory[target], &expected, &format!("{dtype}, {n} rows, into {target}"));
                }
            }
        }
    }
}

/// Scales with every instruction set and compares.
fn check_scale(combine: DType, dtype: DType, x: &[u8], scales: &[f32], hidden: usize, c: f32) {
    let expected = scaled(combine, dtype, x, scales, hidden, c);
    let mut source = Fenced::new(x.len());
    let place = source.at(x.len(), 0);
    place.copy_from_slice(x);
    let row = Row { dtype, data: place.as_ptr(), scales };
    let mut memory = Fenced::new(expected.len());
    for kernels in kernels() {
        let dst = memory.at(expected.len(), 0);
        // SAFETY: rows of `hidden` elements, disjoint.
        unsafe { kernels.scale_row(dst.as_mut_ptr(), combine, row, hidden, c) };
        let case = format!("{dtype} to {combine}, hidden {hidden}, c {c:?}, {:?}", kernels.isa());
        equal(combine, dst, &expected, &case);
        assert!(memory.is_intact(expected.len(), 0), "{case}: wrote outside the row");
    }
}

#[test]
fn scaling_between_all_types() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(4);
    let factors = [1.0, -0.0, 0.7, -1.0e-39, 3.0e38, f32::INFINITY, f32::from_bits(0x7fa0_0001)];
    for dtype in DType::ALL {
        for combine in COMBINE {
            for hidden in [1, 2, 31, 64, 70, 7168] {
                let scales: &[usize] = if dtype.is_scaled() { &[1, 7, 56, hidden] } else { &[0] };
                for &count in scales.iter().filter(|&&count| count <= hidden) {
                    let c = factors[random.next_u32() as usize % factors.len()];
                    let x = random_row(dtype, hidden, &mut random);
                    let scales: Vec<f32> = (0..count)
                        .map(|_| f32::from_bits(element(DType::F32, random.next_u32(), random.next_u32())))
                        .collect();
                    check_scale(combine, dtype, &x, &scales, hidden, c);
                    check_scale(combine, dtype, &x, &scales, hidden, 1.0);
                }
            }
        }
    }
}

/// The definition of quantisation, one element after the other.
fn quantized(dtype: DType, x: &[u8], hidden: usize, scales: usize) -> (Vec<u8>, Vec<f32>) {
    let block = hidden.div_ceil(scales);
    let value = |h| number::read(DType::BF16, x, h);
    let amax = |i: usize| {
        let block = hidden.min(i * block)..hidden.min((i + 1) * block);
        block.map(|h| value(h).abs()).filter(|x| !x.is_nan()).fold(1e-10, f32::max)
    };
    let mut codes = vec![0; hidden];
    for h in 0..hidden {
        number::write(dtype, &mut codes, h, value(h) * (dtype.largest() / amax(h / block)));
    }
    (codes, (0..scales).map(|i| amax(i) / dtype.largest()).collect())
}

/// Quantises with every instruction set and compares.
fn check_quantize(dtype: DType, x: &[u8], hidden: usize, scales: usize) -> (Vec<u8>, Vec<f32>) {
    let expected = quantized(dtype, x, hidden, scales);
    let mut source = Fenced::new(x.len());
    let place = source.at(x.len(), 0);
    place.copy_from_slice(x);
    let mut memory = Fenced::new(hidden);
    for kernels in kernels() {
        let (dst, mut got) = (memory.at(hidden, 0), vec![f32::NAN; scales]);
        // SAFETY: rows of `hidden` elements, disjoint.
        unsafe { kernels.quantize_row(dst.as_mut_ptr(), &mut got, dtype, place.as_ptr(), hidden) };
        let case = format!("{dtype}, hidden {hidden}, {scales} scales, {:?}", kernels.isa());
        equal(dtype, dst, &expected.0, &case);
        let bits = |scales: &[f32]| scales.iter().map(|scale| scale.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got), bits(&expected.1), "{case}");
        assert!(memory.is_intact(hidden, 0), "{case}: wrote outside the row");
    }
    expected
}

const QUANTIZED: [DType; 2] = [DType::F8E4M3, DType::F8E4M3FNUZ];

#[test]
fn quantising_any_bits() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(5);
    for dtype in QUANTIZED {
        for hidden in [1, 2, 5, 31, 64, 70, 7168] {
            // Of 5 elements, the last of 4 blocks has none.
            for scales in [1, 2, 4, 7, 56, hidden].into_iter().filter(|&scales| scales <= hidden) {
                check_quantize(dtype, &random_row(DType::BF16, hidden, &mut random), hidden, scales);
                // Numbers of ordinary size, of which the codes use the whole range.
                let mut x = vec![0; 2 * hidden];
                for h in 0..hidden {
                    let value = (random.next_u32() as f32 / u32::MAX as f32 - 0.5) * 100.0;
                    number::write(DType::BF16, &mut x, h, value);
                }
                let (codes, scales) = check_quantize(dtype, &x, hidden, scales);
                let largest = codes.iter().map(|&code| code & 0x7f).max().unwrap();
                assert_eq!(largest, if dtype == DType::F8E4M3 { 0x7e } else { 0x7f }, "amax is coded as the largest");
                for h in 0..hidden {
                    let scale = scales[h / hidden.div_ceil(scales.len())];
                    let error = (number::read(dtype, &codes, h) * scale - number::read(DType::BF16, &x, h)).abs();
                    let bound = (number::read(DType::BF16, &x, h).abs() / 16.0).max(scale / 512.0);
                    assert!(error <= bound * 1.001, "{dtype} {h}: {error} of {bound}");
                }
            }
        }
    }
}

#[test]
fn quantising_what_has_no_scale() {
    for dtype in QUANTIZED {
        let nan = if dtype == DType::F8E4M3 { 0x7f } else { 0x80 };
        let minus_zero = if dtype == DType::F8E4M3 { 0x80 } else { 0 };
        let row = |values: [u16; 4]| -> Vec<u8> { values.iter().flat_map(|bits| bits.to_le_bytes()).collect() };
        let one = |values| {
            let (codes, scales) = check_quantize(dtype, &row(values), 4, 1);
            (codes, scales[0])
        };
        // Zeroes: the scale of the least amax.
        assert_eq!(one([0, 0x8000, 0, 0]), (vec![0, minus_zero, 0, 0], 1e-10 / dtype.largest()));
        // Subnormals are far below it.
        assert_eq!(one([1, 0x8001, 0x7f, 0]).1, 1e-10 / dtype.largest());
        // A NaN leaves the others alone.
        let (codes, scale) = one([0x7fc0, 0x3f80, 0xffff, 0]);
        assert_eq!((codes[0], codes[2], scale), (nan, nan, 1.0 / dtype.largest()));
        assert_eq!(number::read(dtype, &codes, 1), dtype.largest());
        // An infinity takes its block with it.
        let (codes, scale) = one([0x7f80, 0x3f80, 0xbf80, 0xff80]);
        assert_eq!((codes, scale), (vec![nan, 0, minus_zero, nan], f32::INFINITY));
    }
}

#[test]
#[should_panic(expected = "rows are not quantised to f4_e2m1")]
fn fp4_is_not_quantised_to() {
    let (mut dst, mut scales) = ([0], [0.0]);
    // SAFETY: rows of one element.
    unsafe {
        Kernels::get().quantize_row(dst.as_mut_ptr(), &mut scales, DType::F4E2M1, [0_u8; 2].as_ptr(), 1);
    }
}

#[test]
fn a_factor_of_one_is_still_arithmetic() {
    let x: Vec<u8> = [0xffff_u16, 0x7f81, 0x0001, 0x8000, 0xff80].iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let expected: Vec<u8> =
        [0x7fc0_u16, 0x7fc0, 0x0001, 0x8000, 0xff80].iter().flat_map(|bits| bits.to_le_bytes()).collect();
    assert_eq!(scaled(DType::BF16, DType::BF16, &x, &[], 5, 1.0), expected);
    check_scale(DType::BF16, DType::BF16, &x, &[], 5, 1.0);
}

#[test]
fn the_coefficient_is_summed_in_slot_order_from_plus_zero() {
    let big = 16_777_216.0;
    assert_eq!(coefficient(&[0, -1, 2, 1], &[big, 9.0, 1.0, 1.0], None), big);
    assert_eq!(coefficient(&[0, -1, 2, 1], &[1.0, 9.0, 1.0, big], None), big + 2.0);
    assert_eq!(coefficient(&[0, -1, 2, 0], &[0.5, 9.0, 1.0, 0.25], Some(&[2.0, 100.0, 3.0])), 4.5);
    assert_eq!(coefficient(&[1, -1], &[-0.0, 5.0], None).to_bits(), 0);
    assert_eq!(coefficient(&[-1, -1], &[4.0, 5.0], None).to_bits(), 0);
    assert_eq!(coefficient(&[3, -1], &[], None), 1.0);
}

#[test]
#[should_panic(expected = "f8_e4m3 is not a combine type")]
fn fp8_is_not_summed() {
    let mut dst = [0];
    // SAFETY: there is nothing to read, and one byte to write.
    unsafe { Kernels::get().reduce_rows(DType::F8E4M3, dst.as_mut_ptr(), &[], 1, Store::Cached) }
}

#[test]
fn the_widest_available_is_chosen() {
    let widest = Isa::ALL.into_iter().rfind(|isa| isa.is_available());
    assert_eq!(Some(Kernels::get().isa()), widest);
    for isa in Isa::ALL {
        assert_eq!(Kernels::for_isa(isa).map(Kernels::isa), isa.is_available().then_some(isa));
    }
}

proptest! {
    #[test]
    fn any_rows_anywhere(
        dtype in prop::sample::select(&COMBINE[..]),
        // The elements of a row of up to 70, for up to 16 rows; how far each row is from its fence.
        rows in (1_usize..70, 0_usize..=16).prop_flat_map(|(hidden, n)| vec(vec(any::<(u32, u32)>(), hidden), n)),
        after in vec(0_usize..64, 17),
    ) {
        let hidden = rows.first().map_or(5, Vec::len);
        let rows: Vec<_> = rows.into_iter().map(|elements| row(dtype, elements.into_iter())).collect();
        Bench::new(rows.len(), dtype.row_bytes(hidden)).check(dtype, &rows, hidden, &after);
    }
}
