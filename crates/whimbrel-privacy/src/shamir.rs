//! Shamir's secret sharing (Communications of the ACM 22, 1979) of 127-bit seeds, over the integers
//! modulo the prime 2^127 - 1.
//!
//! A seed of this size has the strength of X25519, from which most seeds come, and its share takes
//! 16 bytes. The code is our own because coefficients are derived, so that a restarted client deals
//! the same shares; crates for sharing draw them from a generator. Field operations have neither
//! branches nor table lookups that depend on secrets.

use whimbrel_core::{Error, Result, Wire};

const PRIME: u128 = (1 << 127) - 1;

/// An integer modulo 2^127 - 1: a seed, a coefficient or a share.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub struct Element(u128);

impl Element {
    const ZERO: Self = Self(0);
    const ONE: Self = Self(1);

    /// The element of 16 uniform bytes, whose top bit is ignored.
    pub fn from_uniform(bytes: [u8; 16]) -> Self {
        reduced(u128::from_le_bytes(bytes) & PRIME)
    }

    /// The canonical bytes.
    pub fn to_le_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    fn point(holder: u32) -> Self {
        Self(u128::from(holder) + 1)
    }

    fn plus(self, other: Self) -> Self {
        reduced(self.0 + other.0)
    }

    fn minus(self, other: Self) -> Self {
        reduced(self.0 + (PRIME - other.0))
    }

    fn times(self, other: Self) -> Self {
        const LOW: u128 = (1 << 64) - 1;
        let ((a1, a0), (b1, b0)) = ((self.0 >> 64, self.0 & LOW), (other.0 >> 64, other.0 & LOW));
        // a1 and b1 have 63 bits, so the middle term fits; 2^127 = 1 and 2^128 = 2.
        let middle = a0 * b1 + a1 * b0;
        let (above, below) = (middle >> 63, (middle << 64) & PRIME);
        reduced(a0 * b0).plus(reduced(below)).plus(Self(above)).plus(reduced(2 * a1 * b1))
    }

    /// The inverse as the power PRIME - 2 (Fermat), whose bits are all 1 but bit 1.
    fn inverse(self) -> Self {
        (0..127).rev().fold(Self::ONE, |power, bit| {
            let square = power.times(power);
            if bit == 1 { square } else { square.times(self) }
        })
    }
}

impl Wire for Element {
    fn put(&self, out: &mut Vec<u8>) {
        self.to_le_bytes().put(out);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let value = u128::from_le_bytes(Wire::take(from)?);
        if value >= PRIME {
            return Err(Error::peer("a share is not below 2^127 - 1"));
        }
        Ok(Self(value))
    }
}

fn reduced(value: u128) -> Element {
    let folded = (value & PRIME) + (value >> 127);
    Element(folded - PRIME * u128::from(folded >= PRIME))
}

/// The share of one holder: the polynomial with these coefficients, the secret first, at its point.
/// As many shares as coefficients recover the secret; fewer are independent of it.
pub fn share(coefficients: &[Element], holder: u32) -> Element {
    let x = Element::point(holder);
    coefficients.iter().rev().fold(Element::ZERO, |sum, &c| sum.times(x).plus(c))
}

/// Lagrange's weights at zero for the shares of distinct holders.
pub fn weights(holders: &[u32]) -> Vec<Element> {
    let weight = |&holder: &u32| {
        let x = Element::point(holder);
        let others = holders.iter().filter(|&&other| other != holder).map(|&h| Element::point(h));
        let (top, bottom) = others.fold((Element::ONE, Element::ONE), |(top, bottom), other| {
            (top.times(other), bottom.times(other.minus(x)))
        });
        top.times(bottom.inverse())
    };
    holders.iter().map(weight).collect()
}

/// The secret from shares and the [`weights`] of their holders.
pub fn combine(weights: &[Element], shares: impl Iterator<Item = Element>) -> Element {
    weights.iter().zip(shares).fold(Element::ZERO, |sum, (w, share)| sum.plus(w.times(share)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The product by doubling and adding.
    fn product(a: u128, b: u128) -> u128 {
        let twice = |x: u128| (x * 2) % PRIME;
        (0..127).rev().fold(0, |sum, bit| (twice(sum) + (b >> bit & 1) * a) % PRIME)
    }

    fn element() -> impl Strategy<Value = Element> {
        let edges = prop::sample::select(vec![0, 1, 2, PRIME - 1, PRIME - 2, 1 << 126, 1 << 64]);
        prop_oneof![any::<u128>().prop_map(|x| reduced(x & PRIME)), edges.prop_map(Element)]
    }

    proptest! {
        #[test]
        fn the_field_agrees_with_plain_arithmetic(a in element(), b in element()) {
            prop_assert_eq!(a.times(b).0, product(a.0, b.0));
            prop_assert_eq!(a.plus(b).0, (a.0 + b.0) % PRIME);
            prop_assert_eq!(a.minus(b).plus(b).0, a.0);
            prop_assert!(a.0 == 0 || a.times(a.inverse()).0 == 1);
        }

        #[test]
        fn any_threshold_of_shares_recovers_the_secret(
            coefficients in prop::collection::vec(element(), 1..9),
            holders in prop::collection::btree_set(0u32..1000, 9),
            last in 1..u32::MAX,
        ) {
            let mut holders: Vec<u32> = holders.into_iter().collect();
            let t = coefficients.len();
            holders.rotate_left(last as usize % 9);
            let shares: Vec<Element> = holders.iter().map(|&h| share(&coefficients, h)).collect();
            let recovered = |count: usize| {
                combine(&weights(&holders[..count]), shares[..count].iter().copied()).0
            };
            prop_assert_eq!(recovered(t), coefficients[0].0);
            prop_assert_eq!(recovered(9), coefficients[0].0);
            // One share fewer misses by the last coefficient times the product of the points.
            let missed = t > 1 && recovered(t - 1) == coefficients[0].0;
            prop_assert!(!missed || coefficients[t - 1].0 == 0);
        }
    }

    #[test]
    fn bytes_beyond_the_prime_are_refused() {
        let bytes = (PRIME - 1).to_le_bytes();
        assert_eq!(Element::from_bytes(&bytes).unwrap().0, PRIME - 1);
        assert!(Element::from_bytes(&PRIME.to_le_bytes()).is_err());
        assert_eq!(Element::from_uniform([255; 16]).0, 0);
    }
}
