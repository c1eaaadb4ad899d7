//! Comparisons that fail for sequences of different lengths and for NaN.

use std::vec::IntoIter;
use whimbrel_core::vector;

/// Pairs of two sequences of one length. `zip` alone would ignore the rest of the longer one, and a
/// loop over nothing passes any test, so both must have elements.
#[track_caller]
pub fn pairs<A: IntoIterator, B: IntoIterator>(
    a: A,
    b: B,
) -> std::iter::Zip<IntoIter<A::Item>, IntoIter<B::Item>> {
    let (a, b) = (Vec::from_iter(a), Vec::from_iter(b));
    assert_eq!(a.len(), b.len(), "the sequences have different lengths");
    assert!(!a.is_empty(), "there is nothing to compare");
    a.into_iter().zip(b)
}

/// The largest absolute difference; NaN if a difference is NaN.
#[track_caller]
pub fn gap(a: &[f64], b: &[f64]) -> f64 {
    vector::largest(pairs(a, b).map(|(a, b)| (a - b).abs()))
}

/// The largest absolute difference relative to the norm of `b`.
#[track_caller]
pub fn relative_gap(a: &[f64], b: &[f64]) -> f64 {
    gap(a, b) / vector::norm2_squared(b).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_show_nan() {
        assert_eq!(gap(&[1.0, 2.0], &[1.0, 4.0]), 2.0);
        assert_eq!(relative_gap(&[1.0, 2.0], &[3.0, 4.0]), 0.4);
        assert!(relative_gap(&[f64::NAN, 2.0], &[1.0, 4.0]).is_nan());
    }

    #[test]
    #[should_panic(expected = "different lengths")]
    fn lengths_must_agree() {
        gap(&[1.0], &[1.0, 2.0]);
    }

    #[test]
    #[should_panic(expected = "nothing to compare")]
    fn there_must_be_elements() {
        let _ = pairs([0; 0], [0; 0]);
    }
}
