//! Exact sums of floating-point numbers in 64-bit words, so that masks can hide their terms.
//!
//! A number is a whole count of units of `2^-100`, written as five signed digits of 44 bits, one word
//! each. Words are added without carries: sums of up to [`TERMS_MAX`] terms neither wrap around nor
//! depend on the order of additions. Rounding to units does not change a number above `2^-48`.

use whimbrel_core::{Error, Result, wire};

/// Words of a number.
pub const LANES: usize = 5;
/// Terms of a sum at most.
pub const TERMS_MAX: u32 = 1 << 18;
/// Terms are smaller than this, `2^119` (about 6.6e35).
pub const MAGNITUDE_MAX: f64 = f64::from_bits((119 + 1023) << 52);

/// Binary digits of a lane.
const DIGITS: i32 = 44;
const BASE: i64 = 1 << DIGITS;
/// The exponent of the unit.
const UNIT: i32 = -100;

/// A sum of vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lanes {
    pub(super) count: u32,
    pub(super) words: Vec<u64>,
}

wire!(Lanes { count, words });

impl Lanes {
    /// The empty sum of vectors of this length.
    pub fn new(length: usize) -> Self {
        Self { count: 0, words: vec![0; LANES * length] }
    }

    /// Adds the words of `terms` vectors; refuses words that no such vectors have.
    pub fn add(&mut self, words: &[u64], terms: u32) -> Result<()> {
        let count = self.count.checked_add(terms).filter(|count| *count <= TERMS_MAX);
        let count = count.ok_or_else(|| {
            Error::numerical(format!("a sum over more than {TERMS_MAX} clients is not exact"))
        })?;
        let largest = (BASE as u64).saturating_mul(u64::from(terms));
        let possible = words.iter().all(|word| (*word as i64).unsigned_abs() <= largest);
        if words.len() != self.words.len() || !possible {
            return Err(Error::peer("words outside the range of a sum over clients"));
        }
        self.count = count;
        let both = self.words.iter_mut().zip(words);
        both.for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
        Ok(())
    }

    /// The sums, each rounded a few times.
    pub fn values(&self) -> Vec<f64> {
        self.words.chunks_exact(LANES).map(value).collect()
    }
}

/// The words of a vector; refuses numbers beyond [`MAGNITUDE_MAX`].
pub fn words(numbers: &[f64]) -> Result<Vec<u64>> {
    match numbers.iter().find(|x| x.is_nan() || x.abs() >= MAGNITUDE_MAX) {
        Some(x) => Err(Error::numerical(format!("{x:e} is too large for an exact sum"))),
        None => Ok(numbers.iter().flat_map(|x| split(*x)).collect()),
    }
}

/// The digits of a number, least first, each with its sign.
fn split(x: f64) -> [u64; LANES] {
    let bits = x.to_bits();
    let (fraction, exponent) = (bits & ((1 << 52) - 1), ((bits >> 52) & 0x7ff) as i32);
    // |x| = mantissa 2^shift units
    let (mut mantissa, mut shift) = match exponent {
        0 => (fraction, -1074 - UNIT),
        _ => (fraction | 1 << 52, exponent - 1075 - UNIT),
    };
    if shift < 0 {
        let half = 1u64.checked_shl((-shift - 1) as u32).unwrap_or(0);
        mantissa = (mantissa + half).checked_shr(-shift as u32).unwrap_or(0);
        shift = 0;
    }
    let mut rest = u128::from(mantissa) << (shift % DIGITS);
    let mut digits = [0; LANES];
    for digit in digits.iter_mut().skip((shift / DIGITS) as usize) {
        let part = (rest % BASE as u128) as u64;
        *digit = if x < 0.0 { part.wrapping_neg() } else { part };
        rest /= BASE as u128;
    }
    digits
}

/// The number of these sums of digits.
fn value(lanes: &[u64]) -> f64 {
    let (mut digits, mut carry) = ([0; LANES], 0);
    for (at, lane) in lanes.iter().enumerate() {
        let sum = *lane as i64 + carry;
        let is_top = at + 1 == LANES;
        digits[at] = if is_top { sum } else { sum.rem_euclid(BASE) };
        carry = sum.div_euclid(BASE);
    }
    let horner = |sum: f64, digit: &i64| sum * BASE as f64 + *digit as f64;
    let unit = f64::from_bits(((UNIT + 1023) as u64) << 52);
    digits.iter().rev().fold(0.0, horner) * unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::{ExactSum, Key};

    fn sum(numbers: &[f64]) -> f64 {
        let mut lanes = Lanes::new(1);
        numbers.iter().for_each(|x| lanes.add(&words(&[*x]).unwrap(), 1).unwrap());
        lanes.values()[0]
    }

    #[test]
    fn one_number_comes_back() {
        let mut draws = [0.0; 400];
        Key::root(3).stream().fill_normal(&mut draws);
        for (at, x) in draws.iter().enumerate() {
            let x = x * 2f64.powi(at as i32 % 150 - 40);
            assert_eq!(sum(&[x]).to_bits(), x.to_bits(), "{x:e}");
        }
        for x in [0.0, 1.0, -1.0, MAGNITUDE_MAX.next_down(), -MAGNITUDE_MAX.next_down()] {
            assert_eq!(sum(&[x]), x);
        }
        let unit = 2f64.powi(UNIT);
        for (x, rounded) in [(0.5, 1.0), (0.49, 0.0), (-2.6, -3.0), (1e-200, 0.0)] {
            assert_eq!(sum(&[x * unit]), rounded * unit, "{x}");
        }
        assert_eq!(sum(&[f64::MIN_POSITIVE, -5e-324]), 0.0);
    }

    #[test]
    fn sums_are_exact_in_every_order() {
        let mut draws = vec![0.0; 3000];
        Key::root(5).stream().fill_normal(&mut draws);
        draws.iter_mut().enumerate().for_each(|(at, x)| *x *= 2f64.powi(at as i32 % 61 - 20));
        let forward = sum(&draws);
        let mut exact = ExactSum::new(1);
        draws.iter().for_each(|x| exact.add(&[*x], 1.0).unwrap());
        assert!((forward - exact.value()[0]).abs() <= 1e-15 * forward.abs());
        draws.reverse();
        assert_eq!(sum(&draws).to_bits(), forward.to_bits());
        let cancelled: Vec<f64> = draws.iter().copied().chain(draws.iter().map(|x| -x)).collect();
        assert_eq!(sum(&[&cancelled[..], &[3e-9]].concat()), 3e-9);
    }

    #[test]
    fn the_most_terms_do_not_wrap_around() {
        let all = words(&[-MAGNITUDE_MAX.next_down()]).unwrap();
        let many: Vec<u64> = all.iter().map(|w| w.wrapping_mul(u64::from(TERMS_MAX))).collect();
        let mut lanes = Lanes::new(1);
        lanes.add(&many, TERMS_MAX).unwrap();
        assert_eq!(lanes.values()[0], -MAGNITUDE_MAX.next_down() * f64::from(TERMS_MAX));
        assert!(lanes.add(&all, 1).is_err(), "one term too many");
    }

    #[test]
    fn numbers_and_words_out_of_range_are_refused() {
        for x in [MAGNITUDE_MAX, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(words(&[1.0, x]).is_err(), "{x}");
        }
        let mut lanes = Lanes::new(2);
        assert!(lanes.add(&[0; LANES], 1).is_err());
        assert!(lanes.add(&[3 << DIGITS; 2 * LANES], 2).is_err());
        assert_eq!(lanes, Lanes::new(2));
    }
}
