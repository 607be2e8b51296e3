//! An error bound that trusts nobody: the same sums in f64, and how far f32 may stray from them.
//!
//! Midpoint-radius arithmetic: a [`Ball`] holds the exact real value of an expression and every value that correctly
//! rounded f32 arithmetic can have computed for it. The rules, for â within r of a and b̂ within s of b:
//!
//! * |â·b̂ − a·b| ≤ |a|·s + |b|·r + r·s, and |(â + b̂) − (a + b)| ≤ r + s;
//! * rounding to a type of unit roundoff u moves a value z by at most u·|z| + η, where η is half the least subnormal.
//!   f32: u = 2⁻²⁴, η = 2⁻¹⁵⁰; bf16: 2⁻⁸, 2⁻¹³⁴; f16: 2⁻¹¹, 2⁻²⁵; E4M3: 2⁻⁴, 2⁻¹⁰; E4M3 FNUZ: 2⁻⁴, 2⁻¹¹;
//! * the midpoints are computed in f64, which adds at most 2⁻⁵² of each result (no f64 underflow: a product has at
//!   most four f32 factors), and the radii too, so each is enlarged by 2⁻⁴⁰ of itself.
//!
//! Applied once for each operation of the definition, in its order, the radius of the last ball bounds
//! |out − midpoint|, whatever the number of slots and destinations. It is first-order tight: with m slots on a rank, n
//! destinations and combine type roundoff v it grows as (m + n)·u + 2·v times the sum of the magnitudes.
//!
//! Quantisation is one of the operations: the midpoint is that of the row before it, so the bound holds it to the accuracy
//! of the type.
//!
//! Elements for which a type's finite range may be left, or whose operands are not finite, have no such bound; they
//! are counted as excluded (and checked bit for bit all the same).

use super::{Token, quantize};
use crate::{DType, Problem, RankInput, Solution, number};

/// How a solution compares with the f64 reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bound {
    /// Elements of `out` that were held against their bound.
    pub elements: usize,
    /// Elements without a bound: NaN, infinity, or an overflow that cannot be ruled out.
    pub excluded: usize,
    /// The largest |out − reference| over the elements.
    pub error: f64,
    /// The largest |out − reference| ÷ bound over the elements; at most 1 for correctly rounded arithmetic.
    pub ratio: f64,
    /// Where that is: rank, token, element.
    pub worst: Option<(usize, usize, usize)>,
}

impl Bound {
    /// Whether every element is within its bound.
    pub fn holds(&self) -> bool {
        self.ratio <= 1.0
    }
}

/// Holds every `out` of `solution` against the f64 reference.
///
/// # Panics
/// May panic when the problem is not valid, or the solution has other shapes than it asks for; see
/// [`Problem::validate`] and [`compare()`](super::compare()).
pub fn bound(problem: &Problem, solution: &Solution) -> Bound {
    let mut bound = Bound::default();
    for (rank, (input, output)) in problem.ranks.iter().zip(&solution.ranks).enumerate() {
        let sent = quantize::sent(problem, input);
        for index in 0..sent.tokens {
            let token = Token::new(problem, &sent, index);
            let factors: Vec<Ball> = token.slots_by_owner().values().map(|slots| factor(&token, slots)).collect();
            for (h, x) in row(&token, input).into_iter().enumerate() {
                let reference = element(problem, &factors, x);
                let out = number::read(problem.combine_dtype, &output.out, index * problem.hidden + h);
                let error = (f64::from(out) - reference.midpoint).abs();
                if !reference.midpoint.is_finite() {
                    bound.excluded += 1;
                    continue;
                }
                bound.elements += 1;
                bound.error = bound.error.max(error);
                let ratio = if error == 0.0 { 0.0 } else { error / reference.radius };
                // An element that should be finite and is not has a NaN or infinite error: never within the bound.
                let ratio = if ratio.is_nan() { f64::INFINITY } else { ratio };
                if bound.worst.is_none() || ratio > bound.ratio {
                    (bound.ratio, bound.worst) = (ratio, Some((rank, index, h)));
                }
            }
        }
    }
    bound
}

/// The factor c of the rank that owns these slots.
fn factor(token: &Token<'_>, slots: &[usize]) -> Ball {
    if !token.problem.weighted {
        return Ball::exact(1.0);
    }
    let mut c = Ball::exact(0.0);
    for (i, &slot) in slots.iter().enumerate() {
        let mut product = Ball::exact(token.weights[slot]);
        if let Some(expert_scale) = &token.problem.expert_scale {
            product = (product * Ball::exact(expert_scale[token.topk_idx[slot] as usize])).rounded(DType::F32);
        }
        // The first sum, from zero, is exact.
        c = if i == 0 { product } else { (c + product).rounded(DType::F32) };
    }
    c
}

/// The elements of a token as the experts see them.
fn row(token: &Token<'_>, input: &RankInput) -> Vec<Ball> {
    let Token { problem, index, x, scales, .. } = *token;
    let rounded = |ball: Ball| ball.rounded(DType::F32);
    if problem.quantize {
        let (x, largest) = (quantize::row(problem, input, index), problem.dtype.largest());
        let amax = quantize::amax(problem, x);
        let element = |h| {
            let amax = amax[problem.scale_of(h)];
            let (scale, inverse) = (rounded(Ball::quotient(amax, largest)), rounded(Ball::quotient(largest, amax)));
            let x = Ball::exact(number::read(problem.x_dtype(), x, h));
            rounded(rounded(x * inverse).rounded(problem.dtype) * scale)
        };
        return (0..problem.hidden).map(element).collect();
    }
    let element = |h| {
        let x = Ball::exact(number::read(problem.dtype, x, h));
        if problem.dtype.is_scaled() { rounded(x * Ball::exact(scales[problem.scale_of(h)])) } else { x }
    };
    (0..problem.hidden).map(element).collect()
}

/// An element of the result, of that element of the row and the factor of each destination in ascending order.
fn element(problem: &Problem, factors: &[Ball], x: Ball) -> Ball {
    // What is f32 already is not rounded again to be f32.
    let narrow = |ball: Ball| match problem.combine_dtype {
        DType::F32 => ball,
        combine => ball.rounded(combine),
    };
    let y = |&c: &Ball| narrow((c * x).rounded(DType::F32));
    match factors {
        [] => Ball::exact(0.0),
        [c] => y(c),
        [first, others @ ..] => narrow(others.iter().fold(y(first), |sum, c| (sum + y(c)).rounded(DType::F32))),
    }
}

/// All reals within `radius` of `midpoint`; the whole line, or nothing known, where the midpoint is not finite.
#[derive(Clone, Copy, Debug)]
struct Ball {
    midpoint: f64,
    radius: f64,
}

/// Enlarges a radius by more than the rounding errors of the few operations that made it.
const OUTWARD: f64 = 1.0 + 1.0 / (1_u64 << 40) as f64;

/// Twice the unit roundoff of f64.
const MIDPOINT_ROUNDOFF: f64 = f64::EPSILON;

impl Ball {
    fn exact(value: f32) -> Self {
        Self { midpoint: f64::from(value), radius: 0.0 }
    }

    fn quotient(dividend: f32, divisor: f32) -> Self {
        let midpoint = f64::from(dividend) / f64::from(divisor);
        Self { midpoint, radius: midpoint.abs() * MIDPOINT_ROUNDOFF }
    }

    /// Adds what rounding to `dtype` can do; unknown if it can overflow.
    fn rounded(self, dtype: DType) -> Self {
        let (roundoff, half_subnormal) = match dtype {
            DType::F32 => (-24, -150),
            DType::BF16 => (-8, -134),
            DType::F16 => (-11, -25),
            DType::F8E4M3 => (-4, -10),
            DType::F8E4M3FNUZ => (-4, -11),
            DType::F4E2M1 => (-2, -2),
        };
        let magnitude = self.midpoint.abs() + self.radius;
        // What is a little larger than the largest is rounded to it, by saturation too; what quantisation scales to the
        // largest can be.
        let saturates = if dtype.is_scaled() { 1.0 + power_of_two(roundoff - 1) } else { 1.0 };
        if magnitude.is_nan() || magnitude > f64::from(dtype.largest()) * saturates {
            return Self { midpoint: f64::NAN, ..self };
        }
        let radius = self.radius + power_of_two(roundoff) * magnitude + power_of_two(half_subnormal);
        Self { radius: radius * OUTWARD, ..self }
    }
}

/// 2ⁿ, for n of normal numbers; unlike `powi`, specified to be exact.
const fn power_of_two(n: i64) -> f64 {
    f64::from_bits(((1023 + n) as u64) << 52)
}

impl std::ops::Mul for Ball {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        let midpoint = self.midpoint * other.midpoint;
        let radius = self.midpoint.abs() * other.radius
            + other.midpoint.abs() * self.radius
            + self.radius * other.radius
            + midpoint.abs() * MIDPOINT_ROUNDOFF;
        Self { midpoint, radius: radius * OUTWARD }
    }
}

impl std::ops::Add for Ball {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let midpoint = self.midpoint + other.midpoint;
        let radius = self.radius + other.radius + midpoint.abs() * MIDPOINT_ROUNDOFF;
        Self { midpoint, radius: radius * OUTWARD }
    }
}
