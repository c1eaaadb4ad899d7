//! Sums against wide fixed-point numbers, in any order.

use proptest::prelude::*;
use whimbrel_core::sum::{ADDENDS_MAX, ExactSum, MAGNITUDE_MAX};
use whimbrel_core::{Error, Key, math};

#[test]
fn addends_at_some_coordinates_are_those_of_the_scattered_vector() {
    let mut stream = Key::root(3).stream();
    let (mut sparse, mut dense) = (ExactSum::new(40), ExactSum::new(40));
    for weight in [0.3, 2.0, 1e-9] {
        let at: Vec<u32> = stream.choose(40, 12).into_iter().map(|i| i as u32).collect();
        let x: Vec<f64> = at.iter().map(|_| stream.normal()).collect();
        let mut scattered = vec![0.0; 40];
        at.iter().zip(&x).for_each(|(i, x)| scattered[*i as usize] = *x);
        sparse.add_at(&at, &x, weight).unwrap();
        dense.add(&scattered, weight).unwrap();
    }
    assert_eq!(sparse, dense);
    sparse.add_at(&[7, 2, 7, 7], &[1.0, 2.0, 3.0, 4.0], 1.0).unwrap();
    assert_eq!(sparse.count(), dense.count() + 3, "one coordinate was named three times");
    let whole = [dense.value()[7] + 8.0, dense.value()[2] + 2.0];
    assert!((sparse.value()[7] - whole[0]).abs() < 1e-15 * 8.0 * 4.0);
    assert!((sparse.value()[2] - whole[1]).abs() < 1e-15 * 8.0);
    let before = sparse.clone();
    assert!(sparse.add_at(&[40], &[1.0], 1.0).is_err());
    assert!(sparse.add_at(&[1], &[1.0, 2.0], 1.0).is_err());
    assert!(sparse.add_at(&[1], &[f64::NAN], 1.0).is_err());
    assert_eq!(sparse, before);
}

#[test]
fn narrow_addends_are_those_of_the_widened_vector() {
    let mut stream = Key::root(4).stream();
    let (mut narrow, mut wide) = (ExactSum::new(1300), ExactSum::new(1300));
    for weight in [0.3, 2.0, 1e-9] {
        let x: Vec<f32> = (0..1300).map(|_| stream.normal() as f32).collect();
        narrow.add_f32(&x, weight).unwrap();
        wide.add(&x.iter().copied().map(f64::from).collect::<Vec<_>>(), weight).unwrap();
    }
    assert_eq!(narrow, wide);
    let before = narrow.clone();
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = vec![1.0f32; 1300];
        x[700] = bad;
        assert!(narrow.add_f32(&x, 1.0).is_err());
    }
    assert!(narrow.add_f32(&[1.0], 1.0).is_err());
    assert_eq!(narrow, before);
}

/// A fixed-point number wide enough for any sum of `f64`: whole multiples of `2^-1074` in
/// two's complement, lowest limb first.
#[derive(Clone)]
struct Big([u64; 36]);

impl Big {
    fn add(&mut self, x: f64) {
        let biased = (x.to_bits() >> 52) & 0x7FF;
        let fraction = x.to_bits() & ((1 << 52) - 1);
        let mantissa = if biased == 0 { fraction } else { fraction | 1 << 52 };
        let shift = biased.max(1) as usize - 1;
        let mut term = [0u64; 36];
        let wide = u128::from(mantissa) << (shift % 64);
        term[shift / 64] = wide as u64;
        term[shift / 64 + 1] = (wide >> 64) as u64;
        if x < 0.0 {
            negate(&mut term);
        }
        let mut carry = 0u128;
        for (limb, term) in self.0.iter_mut().zip(term) {
            carry += u128::from(*limb) + u128::from(term);
            *limb = carry as u64;
            carry >>= 64;
        }
    }

    /// The magnitude, to about `2^-52` relative.
    fn magnitude(&self) -> f64 {
        let mut limbs = self.0;
        if limbs[35] >> 63 == 1 {
            negate(&mut limbs);
        }
        let smallest = f64::from_bits(1);
        // Three limbs at most carry digits of the result; 2^64 at a time avoids overflow.
        let highest = limbs.iter().rposition(|l| *l != 0).unwrap_or(0);
        let mut sum = 0.0;
        for i in (highest.saturating_sub(2)..=highest).rev() {
            let mut term = limbs[i] as f64 * smallest;
            for _ in 0..i {
                term *= 18_446_744_073_709_551_616.0;
            }
            sum += term;
        }
        sum
    }
}

fn negate(limbs: &mut [u64; 36]) {
    let mut carry = true;
    for limb in limbs {
        let (value, overflow) = (!*limb).overflowing_add(u64::from(carry));
        (*limb, carry) = (value, overflow);
    }
}

/// Exact sums per coordinate of the rounded products.
fn reference(vectors: &[(Vec<f64>, f64)], d: usize) -> Vec<Big> {
    let mut sums = vec![Big([0; 36]); d];
    for (x, weight) in vectors {
        sums.iter_mut().zip(x).for_each(|(sum, x)| sum.add(x * weight));
    }
    sums
}

fn sum_of(vectors: &[(Vec<f64>, f64)], d: usize) -> ExactSum {
    let mut sum = ExactSum::new(d);
    for (x, weight) in vectors {
        sum.add(x, *weight).unwrap();
    }
    sum
}

fn bits(sum: &ExactSum) -> Vec<u64> {
    sum.value().into_iter().map(f64::to_bits).collect()
}

/// Checks the two error bounds that the documentation states.
fn assert_accurate(vectors: &[(Vec<f64>, f64)], d: usize) {
    let value = sum_of(vectors, d).value();
    let products = vectors.iter().flat_map(|(x, w)| x.iter().map(move |x| (x * w).abs()));
    let largest = products.fold(0.0, f64::max);
    let dropped = vectors.len() as f64 * largest * 2f64.powi(-84);
    for (value, mut exact) in value.into_iter().zip(reference(vectors, d)) {
        let size = exact.magnitude();
        exact.add(-value);
        let error = exact.magnitude();
        assert!(
            error <= 1.000_001 * (2f64.powi(-52) * size + dropped),
            "error {error:e} in {value:e}, largest addend {largest:e}"
        );
    }
}

fn number() -> impl Strategy<Value = f64> {
    let scaled = |low: i32, high: i32| {
        (-1.0..1.0f64, low..high).prop_map(|(m, e)| m * 2f64.powi(e / 2) * 2f64.powi(e - e / 2))
    };
    prop_oneof![
        6 => scaled(-4, 4),
        3 => scaled(-60, 60),
        2 => scaled(-1060, 830),
        1 => prop_oneof![Just(0.0), Just(-0.0), Just(5e-324), Just(-5e-324), Just(1e-310)],
        1 => prop_oneof![Just(1.0), Just(-1.0), Just(1e250), Just(-1e250), Just(1e-300)],
    ]
}

fn vectors(d: usize) -> impl Strategy<Value = Vec<(Vec<f64>, f64)>> {
    let weight = prop_oneof![Just(1.0), 0.0..100.0f64];
    prop::collection::vec((prop::collection::vec(number(), d), weight), 0..40)
}

proptest! {
    #[test]
    fn any_order_shards_and_merges_give_the_same_bits(v in vectors(3), seed in any::<u64>()) {
        let right = sum_of(&v, 3);
        let mut stream = Key::root(seed).stream();
        let mut shuffled = v.clone();
        stream.shuffle(&mut shuffled);
        prop_assert_eq!(bits(&sum_of(&shuffled, 3)), bits(&right));

        let mut shards = vec![ExactSum::new(3); 1 + stream.below(6) as usize];
        for (x, weight) in &shuffled {
            let at = stream.below(shards.len() as u64) as usize;
            shards[at].add(x, *weight).unwrap();
        }
        // A random tree: merge any one into any other until one is left.
        while shards.len() > 1 {
            let one = shards.swap_remove(stream.below(shards.len() as u64) as usize);
            let into = stream.below(shards.len() as u64) as usize;
            shards[into].merge(&one).unwrap();
        }
        prop_assert_eq!(&shards[0], &right);
        prop_assert_eq!(bits(&shards[0]), bits(&right));

        let (count, top, bins) = right.parts();
        prop_assert_eq!(ExactSum::from_parts(count, top, bins.clone()).unwrap(), right);
    }

    #[test]
    fn values_are_as_close_as_promised(v in vectors(2)) {
        assert_accurate(&v, 2);
    }
}

#[test]
fn cancellation_leaves_what_is_left() {
    let mut sum = ExactSum::new(2);
    for x in [[1e16, 1e250], [1.0, 1e240], [-1e16, -1e250], [0.0, 5e-324]] {
        sum.add(&x, 1.0).unwrap();
    }
    // The first coordinate shares the second's scale, on which 1 is nothing.
    assert_eq!(sum.value()[0], 0.0);
    assert!((sum.value()[1] / 1e240 - 1.0).abs() < 1e-15);
    let mut alone = ExactSum::new(1);
    for x in [1e16, 1.0, -1e16, 1e-9] {
        alone.add(&[x], 1.0).unwrap();
    }
    assert_eq!(alone.value(), [1.0 + 1e-9]);
    // 1 is in the first bin, the halves in the second: what is left is in the fourth.
    let mut across = ExactSum::new(1);
    for x in [1.0, -0.5, 3.0 * 2f64.powi(-80), -0.5] {
        across.add(&[x], 1.0).unwrap();
    }
    assert_eq!(across.value(), [3.0 * 2f64.powi(-80)]);
}

#[test]
fn many_addends_on_scales_from_1e_minus_300_to_1e250() {
    for scale in [1e-300, 1e-160, 1e-9, 1.0, 1e12, 1e250] {
        let mut stream = Key::root(2).stream();
        let v: Vec<(Vec<f64>, f64)> = (0..2000)
            .map(|_| {
                let spread = math::exp(30.0 * stream.uniform() - 15.0);
                (vec![(stream.uniform() - 0.5) * spread * scale], 1.0 + stream.uniform())
            })
            .collect();
        assert_accurate(&v, 1);
    }
}

#[test]
fn sums_of_subnormal_numbers_are_exact_to_the_last_bit() {
    let v: Vec<_> = (0..100).map(|i| (vec![f64::from(i) * 5e-324], 1.0)).collect();
    assert_eq!(sum_of(&v, 1).value(), [4950.0 * 5e-324]);
}

#[test]
fn zeros_have_one_sign_and_no_top() {
    let v = vec![(vec![0.0, -0.0], 1.0), (vec![-0.0, -0.0], -2.0)];
    let sum = sum_of(&v, 2);
    assert_eq!((bits(&sum), sum.count(), sum.parts().1), (vec![0, 0], 2, None));
    let cancelled = sum_of(&[(vec![3.0], -1.0), (vec![-3.0], -1.0)], 1);
    assert_eq!(bits(&cancelled), [0]);
}

#[test]
fn what_cannot_be_summed_is_refused_and_changes_nothing() {
    let mut sum = sum_of(&[(vec![1.0, 2.0], 0.5)], 2);
    let before = sum.clone();
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, MAGNITUDE_MAX, -1e300] {
        let e = sum.add(&[1.0, bad], 1.0).unwrap_err();
        assert!(matches!(&e, Error::Numerical { what, .. } if what.contains("coordinate 1")));
    }
    assert!(matches!(sum.add(&[1.0, 2.0], f64::NAN), Err(Error::Numerical { .. })));
    assert!(matches!(sum.add(&[1.0], 1.0), Err(Error::Peer { .. })));
    assert!(matches!(sum.merge(&ExactSum::new(3)), Err(Error::Peer { .. })));
    assert_eq!(sum, before);

    let largest = f64::from_bits(MAGNITUDE_MAX.to_bits() - 1);
    sum.add(&[largest, -largest], 1.0).unwrap();
    assert_eq!(sum.value(), [largest, -largest]);
    sum.clear();
    assert_eq!(sum, ExactSum::new(2));
}

#[test]
fn bins_at_their_limit_still_add_exactly() {
    // As many addends as allowed, each of the largest size a top permits, by doubling.
    let x = 2f64.powi(27) - 0.5;
    let mut sum = sum_of(&[(vec![x, -x], 1.0)], 2);
    while sum.count() < ADDENDS_MAX {
        let same = sum.clone();
        sum.merge(&same).unwrap();
    }
    let right = x * f64::from(ADDENDS_MAX);
    assert_eq!(sum.value(), [right, -right]);
    let (count, top, bins) = sum.parts();
    assert!(ExactSum::from_parts(count, top, bins.clone()).is_ok());
}

#[test]
fn the_number_of_addends_is_capped() {
    let of = |count: u32| {
        let one = sum_of(&[(vec![1.0], 1.0)], 1);
        let (_, top, bins) = one.parts();
        ExactSum::from_parts(count, top, bins.clone()).unwrap()
    };
    let (mut full, one) = (of(ADDENDS_MAX), of(1));
    assert!(matches!(full.add(&[1.0], 1.0), Err(Error::Numerical { .. })));
    assert!(matches!(full.merge(&one), Err(Error::Numerical { .. })));
    let mut full = of(ADDENDS_MAX - 1);
    full.merge(&one).unwrap();
    assert_eq!((full.count(), full.value()), (ADDENDS_MAX, vec![2.0]));
}

#[test]
fn parts_that_no_sum_has_are_refused() {
    let zeros = || std::array::from_fn(|_| vec![0.0; 2]);
    let with = |k: usize, v: f64| {
        let mut bins: [Vec<f64>; 4] = zeros();
        bins[k][1] = v;
        bins
    };
    let cases = [
        (ADDENDS_MAX + 1, None, zeros()),
        (1, None, with(0, 1.0)),
        (1, None, with(3, -0.0)),
        (1, Some(35), zeros()),
        (1, Some(-37), zeros()),
        (1, Some(i32::MIN), zeros()),
        (1, Some(0), with(0, 0.5)),
        (1, Some(0), with(0, 2f64.powi(28))),
        (0, Some(0), with(0, 1.0)),
        (1, Some(0), with(2, f64::NAN)),
        (1, Some(0), with(3, f64::INFINITY)),
        (1, Some(0), [vec![0.0; 2], vec![0.0; 1], vec![0.0; 2], vec![0.0; 2]]),
    ];
    for (n, (count, top, bins)) in cases.into_iter().enumerate() {
        let refused = ExactSum::from_parts(count, top, bins);
        assert!(matches!(refused, Err(Error::Peer { .. })), "case {n}");
    }
}
