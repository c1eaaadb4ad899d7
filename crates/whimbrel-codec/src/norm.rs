//! Norms without overflow or underflow, and their encoding.

use whimbrel_core::{Error, Result, kernel};

use crate::Scalar;
use crate::scalar::{BLOCK, check_finite};

/// The norm that scales a block: `||x||_p` for an integer `p >= 1`, or the largest magnitude.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Norm {
    /// `(sum |x_i|^p)^(1/p)`.
    P(u32),
    /// `max |x_i|`.
    Infinity,
}

/// Sums of squares in this range are free of overflow and underflow.
const SAFE_SQUARES: std::ops::Range<f64> = 1e-280..1e300;

impl Norm {
    /// The norm of `x`; an error if `x` or its norm is not finite. `room` as in [`Scalar::widen`].
    pub(crate) fn of<T: Scalar>(self, x: &[T], room: &mut [f64; BLOCK]) -> Result<f64> {
        match self {
            Self::P(1) => {
                let sum = accumulate(x, room, add_magnitudes).iter().sum::<f64>();
                if sum <= T::LARGEST {
                    return Ok(sum);
                }
            }
            Self::P(2) => {
                let squares = accumulate(x, room, add_squares).iter().sum::<f64>();
                if SAFE_SQUARES.contains(&squares) {
                    return Ok(squares.sqrt());
                }
            }
            _ => {}
        }
        check_finite(x)?;
        let largest = accumulate(x, room, keep_largest).iter().fold(0.0, |a: f64, &b| a.max(b));
        if largest == 0.0 {
            return Ok(0.0);
        }
        let norm = match self {
            Self::Infinity => largest,
            Self::P(p) => {
                // ||x|| = largest ||x / largest||; the division is by a power of two, hence exact, and
                // in two steps, because the power itself may overflow.
                let (first, second) = reciprocal_power(largest);
                let sum: f64 = x.iter().map(|v| power(v.wide().abs() * first * second, p)).sum();
                let root = root(sum, p).max(largest * first * second);
                root / first / second
            }
        };
        if norm <= T::LARGEST {
            Ok(norm)
        } else {
            Err(Error::numerical(format!(
                "the norm of the vector to compress exceeds {:e}, the largest number of its type",
                T::LARGEST
            )))
        }
    }
}

const LANES: usize = 16;

/// Runs a kernel over the blocks of `x`; lane `l` accumulates coordinates `l, l + 16, ...`.
fn accumulate<T: Scalar>(
    x: &[T],
    room: &mut [f64; BLOCK],
    kernel: fn(&mut [f64; LANES], &[f64]),
) -> [f64; LANES] {
    let mut lanes = [0.0; LANES];
    for block in x.chunks(BLOCK) {
        kernel(&mut lanes, T::widen(block, room));
    }
    lanes
}

/// Applies `add` to each lane with the lane's coordinates.
#[inline(always)]
fn each_lane(lanes: &mut [f64; LANES], x: &[f64], add: impl Fn(f64, f64) -> f64) {
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for l in 0..LANES {
            lanes[l] = add(lanes[l], chunk[l]);
        }
    }
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *lane = add(*lane, *v);
    }
}

kernel! {
    fn add_squares(lanes: &mut [f64; LANES], x: &[f64]) {
        each_lane(lanes, x, |lane, v| lane + v * v);
    }
}

kernel! {
    fn add_magnitudes(lanes: &mut [f64; LANES], x: &[f64]) {
        each_lane(lanes, x, |lane, v| lane + v.abs());
    }
}

kernel! {
    fn keep_largest(lanes: &mut [f64; LANES], x: &[f64]) {
        each_lane(lanes, x, |lane, v| if v.abs() > lane { v.abs() } else { lane });
    }
}

/// Two powers of two whose product scales `x` into [1, 2).
fn reciprocal_power(x: f64) -> (f64, f64) {
    let scaled = if x < f64::MIN_POSITIVE { x * exp2(64) } else { x };
    let exponent = (scaled.to_bits() >> 52) as i32 - 1023;
    let exponent = if x < f64::MIN_POSITIVE { exponent - 64 } else { exponent };
    let half = -exponent / 2;
    (exp2(half), exp2(-exponent - half))
}

/// `2^n` for `-1022 <= n <= 1023`.
#[inline(always)]
pub(crate) fn exp2(n: i32) -> f64 {
    f64::from_bits(((n + 1023) as u64) << 52)
}

fn power(base: f64, exponent: u32) -> f64 {
    let (mut result, mut square, mut left) = (1.0, base, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result *= square;
        }
        square *= square;
        left >>= 1;
    }
    result
}

/// `x^(1/p)` for `x >= 1`, by Newton's iteration from above until it stops decreasing.
fn root(x: f64, p: u32) -> f64 {
    match p {
        1 => return x,
        2 => return x.sqrt(),
        _ => {}
    }
    // 2^ceil((e+1)/p) is above the root and within a factor 4 of it.
    let exponent = (x.to_bits() >> 52) as i32 - 1023;
    let mut y = exp2((exponent + 1).div_euclid(p as i32) + 1);
    let p_real = f64::from(p);
    loop {
        let next = y - (y - x / power(y, p - 1)) / p_real;
        if next >= y {
            return y;
        }
        y = next;
    }
}

/// Rounds `value` up to a scale that [`put_scale`] can write for vectors of `T`: four bytes if an `f32`
/// holds 24 digits of it, otherwise eight. Rounding up keeps every coordinate below the norm that is
/// sent; an operator that uses the *sent* norm is unbiased for any rounding.
pub(crate) fn sent_scale<T: Scalar>(value: f64) -> f64 {
    // An f32 vector needs a scale representable in f32, even a subnormal one.
    let narrow_from = if T::WIDTH == 4 { 0.0 } else { f64::from(f32::MIN_POSITIVE) };
    if value >= narrow_from && value <= f64::from(f32::MAX) {
        let nearest = value as f32;
        let up = if f64::from(nearest) < value { nearest.next_up() } else { nearest };
        if up.is_finite() {
            return f64::from(up);
        }
    }
    value
}

const WIDE: u8 = 0x80;

/// Appends a non-negative scale, big-endian: as `f32` if that is exact, otherwise as `f64` with the sign
/// bit set.
pub(crate) fn put_scale(scale: f64, out: &mut Vec<u8>) {
    let narrow = scale as f32;
    if f64::from(narrow) == scale {
        out.extend_from_slice(&narrow.to_be_bytes());
    } else {
        out.extend_from_slice(&(-scale).to_be_bytes());
    }
}

/// Reads a finite scale and advances past its bytes.
pub(crate) fn take_scale(bytes: &mut &[u8]) -> Result<f64> {
    let truncated = || Error::peer("a packet ends inside a norm");
    let first = *bytes.first().ok_or_else(truncated)?;
    let scale = if first & WIDE == 0 {
        let (head, rest) = bytes.split_first_chunk::<4>().ok_or_else(truncated)?;
        *bytes = rest;
        f64::from(f32::from_be_bytes(*head))
    } else {
        let (head, rest) = bytes.split_first_chunk::<8>().ok_or_else(truncated)?;
        *bytes = rest;
        -f64::from_be_bytes(*head)
    };
    if (0.0..=f64::MAX).contains(&scale) {
        Ok(scale)
    } else {
        Err(Error::peer(format!("a packet has norm {scale}, which no finite vector has")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn norm(norm: Norm, x: &[f64]) -> f64 {
        norm.of(x, &mut [0.0; BLOCK]).unwrap()
    }

    #[test]
    fn norms_agree_with_their_definition() {
        let x: Vec<f64> = (0..1500).map(|i| f64::from(i % 37) - 11.5).collect();
        for p in [1, 2, 3, 4, 7, 64] {
            let naive = x.iter().map(|v| v.abs().powi(p)).sum::<f64>().powf(1.0 / f64::from(p));
            let ours = norm(Norm::P(p as u32), &x);
            assert!((ours - naive).abs() <= 1e-13 * naive, "p = {p}: {ours} and {naive}");
        }
        assert_eq!(norm(Norm::Infinity, &x), 24.5);
    }

    #[test]
    fn norms_scale_with_the_vector_to_the_ends_of_the_range() {
        let x = [3.0, -4.0, 0.0, 12.0];
        for p in [Norm::P(1), Norm::P(2), Norm::P(3), Norm::P(64), Norm::Infinity] {
            let unit = norm(p, &x);
            for exponent in [1015, 700, -700, -1000] {
                let scaled = x.map(|v| v * exp2(exponent));
                assert_eq!(norm(p, &scaled), unit * exp2(exponent), "{p:?}, 2^{exponent}");
            }
        }
        let smallest = f64::from_bits(1);
        assert_eq!(norm(Norm::P(2), &[3.0 * smallest, -4.0 * smallest]), 5.0 * smallest);
        assert!(Norm::P(2).of(&[1.5e308, 1.5e308], &mut [0.0; BLOCK]).is_err());
        assert!(Norm::P(1).of(&[f32::MAX, f32::MAX], &mut [0.0; BLOCK]).is_err());
    }

    #[test]
    fn sent_scales_are_no_smaller_and_come_back() {
        let mut stream = whimbrel_core::Key::root(6).stream();
        for _ in 0..10_000 {
            let scale = f64::from_bits(stream.next_u64() >> 1);
            if !scale.is_finite() {
                continue;
            }
            let sent = sent_scale::<f64>(scale);
            assert!(sent >= scale && sent <= scale * (1.0 + f64::from(f32::EPSILON)));
            let mut bytes = Vec::new();
            put_scale(sent, &mut bytes);
            let mut rest = bytes.as_slice();
            assert_eq!(take_scale(&mut rest), Ok(sent));
            assert!(rest.is_empty());
        }
        let mut bytes = Vec::new();
        put_scale(sent_scale::<f64>(0.1), &mut bytes);
        assert_eq!(bytes.len(), 4);
        assert!(take_scale(&mut [0x7F, 0xC0, 0, 0].as_slice()).is_err(), "NaN");
        assert!(take_scale(&mut [0xFF, 0xF0, 0, 0, 0, 0, 0, 0].as_slice()).is_err(), "infinity");
    }
}
