//! Exponentials of `f32` with the same bits on every machine: multiplications, additions and bit
//! operations in a fixed order, without branches, so that loops over them are vectorised.

use std::f32::consts::LOG2_E;

/// `ln 2 = LN2_HIGH + LN2_LOW`; the high part has few bits, so that `k * LN2_HIGH` is exact.
const LN2_HIGH: f32 = f32::from_bits(0x3F31_8000);
const LN2_LOW: f32 = f32::from_bits(0xB95E_8083);
/// Adding this rounds to an integer and leaves that integer in the lowest bits.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// `e^x` to about one ulp: 0 below -86.9, infinite above 88.7; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let limited = if x > 88.8 { 88.8 } else { x };
    let limited = if limited < -86.9 { -86.9 } else { limited };

    // x = k ln 2 + r with |r| <= ln(2) / 2
    let shifted = limited * LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = (limited - k * LN2_HIGH) - k * LN2_LOW;

    // The Taylor polynomial: its remainder is below 2^-27.
    let (r2, r4) = (r * r, (r * r) * (r * r));
    let low = (1.0 / 2.0 + r * (1.0 / 6.0)) + (1.0 / 24.0 + r * (1.0 / 120.0)) * r2;
    let y = 1.0 + (r + r2 * (low + r4 * (1.0 / 720.0 + r * (1.0 / 5040.0))));

    // 2^k in two factors, since 2^128 overflows.
    let y = y * f32::from_bits((shifted.to_bits() << 23).wrapping_add(126 << 23)) * 2.0;
    if x < -86.9 { 0.0 } else { y }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The hyperbolic tangent, to a few ulp of 1.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_right_to_an_ulp_and_a_half() {
        for i in -86_900..=88_700 {
            let x = i as f32 * 1e-3;
            let right = whimbrel_core::math::exp(f64::from(x));
            // The error of r, half an ulp of |r| <= 0.35, is a third of an ulp of the result; the
            // polynomial's last sum and its remainder are 0.6.
            let tolerance = 1.5 * f64::from(f32::EPSILON) * right;
            assert!((f64::from(exp(x)) - right).abs() <= tolerance, "{x}");
            let right = (1.0 - 1.0 / right) / (1.0 + 1.0 / right);
            let half = f64::from(tanh(0.5 * x));
            assert!((half - right).abs() <= 3.0 * f64::from(f32::EPSILON), "{x}");
        }
        assert_eq!((exp(0.0), exp(-100.0), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
        assert_eq!((exp(89.0), exp(f32::INFINITY)), (f32::INFINITY, f32::INFINITY));
        assert!(exp(f32::NAN).is_nan());
        assert_eq!((sigmoid(-200.0), sigmoid(200.0), sigmoid(0.0)), (0.0, 1.0, 0.5));
        assert_eq!((tanh(-90.0), tanh(90.0), tanh(0.0)), (-1.0, 1.0, 0.0));
    }
}
