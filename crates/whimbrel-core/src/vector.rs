//! Loops over flat vectors of `f64`.
//!
//! A sum has a fixed order: element `i` goes to partial sum `i % 8`, and the eight are added in
//! pairs. So eight lanes run in vector registers and the bits are the same at every level.
//!
//! Lengths must agree (`assert!`ed): input of the wrong length is refused earlier.

use crate::kernel;

const LANES: usize = 8;

/// From this length, zeros come as fresh pages, which need not be written.
const PAGES_FROM: usize = 1 << 14;

/// A vector of zeros. Short vectors reuse recently freed memory, unlike `vec![0.0; n]`.
pub fn zeros(n: usize) -> Vec<f64> {
    if n >= PAGES_FROM {
        return vec![0.0; n];
    }
    let mut out = Vec::with_capacity(n);
    out.resize(n, 0.0);
    out
}

/// The largest of non-negative numbers: zero without any, NaN if one is NaN, which `f64::max`
/// would ignore.
pub fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(0.0, |most, x| if x > most || x.is_nan() { x } else { most })
}

kernel! {
    /// `y += a x`
    pub fn axpy(y: &mut [f64], a: f64, x: &[f64]) {
        axpy_inline(y, a, x);
    }
}

kernel! {
    /// `out = a - b`
    pub fn sub_into(out: &mut [f64], a: &[f64], b: &[f64]) {
        assert!(out.len() == a.len() && a.len() == b.len(), "lengths differ");
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = a - b;
        }
    }
}

kernel! {
    /// `y = x + a y`
    pub fn scale_add(y: &mut [f64], a: f64, x: &[f64]) {
        assert_eq!(y.len(), x.len(), "lengths differ");
        for (y, x) in y.iter_mut().zip(x) {
            *y = x + a * *y;
        }
    }
}

kernel! {
    /// `x *= a`
    pub fn scale(x: &mut [f64], a: f64) {
        for x in x {
            *x *= a;
        }
    }
}

kernel! {
    /// `<a, b>`
    pub fn dot(a: &[f64], b: &[f64]) -> f64 {
        dot_inline(a, b)
    }
}

kernel! {
    /// The sum of squares.
    pub fn norm2_squared(x: &[f64]) -> f64 {
        dot_inline(x, x)
    }
}

kernel! {
    /// The sum of absolute values.
    pub fn norm1(x: &[f64]) -> f64 {
        let (chunks, rest) = x.as_chunks::<LANES>();
        let mut sums = [0.0; LANES];
        for chunk in chunks {
            for l in 0..LANES {
                sums[l] += chunk[l].abs();
            }
        }
        for (sum, x) in sums.iter_mut().zip(rest) {
            *sum += x.abs();
        }
        in_pairs(sums)
    }
}

kernel! {
    /// The largest absolute value; NaN if there is one, 0 for no elements.
    pub fn norm_inf(x: &[f64]) -> f64 {
        // Without their sign bit, floating-point numbers are ordered like integers, NaN last.
        let largest = x.iter().fold(0, |largest, x| x.abs().to_bits().max(largest));
        f64::from_bits(largest)
    }
}

/// Whether no element is infinite or NaN.
pub fn all_finite(x: &[f64]) -> bool {
    norm_inf(x).is_finite()
}

/// [`dot`] for use inside another kernel, compiled for that kernel's level.
#[inline(always)]
pub fn dot_inline(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "lengths differ");
    let ((a_chunks, a_rest), (b_chunks, b_rest)) = (a.as_chunks(), b.as_chunks());
    let mut sums = [0.0; LANES];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        let (a, b): (&[f64; LANES], &[f64; LANES]) = (a, b);
        for l in 0..LANES {
            sums[l] += a[l] * b[l];
        }
    }
    for ((sum, a), b) in sums.iter_mut().zip(a_rest).zip(b_rest) {
        *sum += a * b;
    }
    in_pairs(sums)
}

/// [`axpy`] for use inside another kernel, compiled for that kernel's level.
#[inline(always)]
pub fn axpy_inline(y: &mut [f64], a: f64, x: &[f64]) {
    assert_eq!(y.len(), x.len(), "lengths differ");
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

#[inline(always)]
fn in_pairs(s: [f64; LANES]) -> f64 {
    ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{self, Isa};
    use crate::{Key, math};

    fn numbers(tag: u64, n: usize) -> Vec<f64> {
        let mut stream = Key::root(11).child(tag).stream();
        (0..n).map(|_| (stream.uniform() - 0.5) * math::exp(20.0 * stream.uniform())).collect()
    }

    /// The bits of all kernels of this crate on some numbers.
    fn fingerprint() -> Vec<u64> {
        let mut all = Vec::new();
        for n in [0, 1, 7, 8, 9, 64, 210, 1001] {
            let (a, b) = (numbers(1, n), numbers(2, n));
            let mut y = b.clone();
            axpy(&mut y, 0.3, &a);
            let mut difference = vec![0.0; n];
            sub_into(&mut difference, &a, &b);
            let mut scaled = a.clone();
            scale(&mut scaled, 1.7);
            scale_add(&mut scaled, 0.7, &b);
            let mut exps: Vec<f64> = a.iter().map(|v| v * 1e-7).collect();
            math::exp_slice(&mut exps);
            let mut logs: Vec<f64> = a.iter().map(|v| v.abs()).collect();
            math::ln_slice(&mut logs);
            let mut quantiles: Vec<f64> = (0..n).map(|i| (i as f64 + 0.5) / n as f64).collect();
            math::normal_quantile_slice(&mut quantiles);
            all.extend([dot(&a, &b), norm2_squared(&a), norm1(&a), norm_inf(&a)]);
            for v in [y, difference, scaled, exps, logs, quantiles] {
                all.extend(v);
            }
        }
        let mut sum = crate::ExactSum::new(33);
        for tag in 0..20 {
            sum.add(&numbers(tag, 33), 0.7).unwrap();
        }
        let same = sum.clone();
        sum.merge(&same).unwrap();
        all.extend(sum.value());
        let mut normals = vec![0.0; 300];
        Key::root(6).stream().fill_normal(&mut normals);
        all.extend(normals);
        let mut words = vec![0; 100];
        Key::root(5).stream().fill(&mut words);
        words.extend(all.into_iter().map(f64::to_bits));
        words.extend(crate::linalg::tests::fingerprint());
        words
    }

    /// The only test that pins the level, because tests share one process. Other tests may run at
    /// any level meanwhile, which does not change their bits.
    #[test]
    fn every_level_gives_the_same_bits() {
        let used = isa::level();
        isa::pin(Isa::Baseline);
        let plain = fingerprint();
        for wanted in [Isa::V3, Isa::V4] {
            let level = isa::pin(wanted);
            assert!(fingerprint() == plain, "{} differs from the baseline", level.name());
        }
        isa::pin(used);
    }

    #[test]
    fn sums_are_close_to_sums_in_order() {
        let (a, b) = (numbers(3, 1001), numbers(4, 1001));
        let products: f64 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
        let size: f64 = a.iter().zip(&b).map(|(a, b)| (a * b).abs()).sum();
        // Either order errs by at most n eps times the sum of absolute values.
        assert!((dot(&a, &b) - products).abs() <= 2.0 * 1001.0 * f64::EPSILON * size);
        let absolute: f64 = a.iter().map(|a| a.abs()).sum();
        assert!((norm1(&a) - absolute).abs() <= 2.0 * 1001.0 * f64::EPSILON * absolute);
        assert_eq!(norm2_squared(&a), dot(&a, &a));
    }

    #[test]
    fn small_cases_by_hand() {
        let mut y = [1.0, 2.0];
        axpy(&mut y, 2.0, &[10.0, 20.0]);
        assert_eq!(y, [21.0, 42.0]);
        scale(&mut y, 0.5);
        assert_eq!(y, [10.5, 21.0]);
        scale_add(&mut y, 2.0, &[1.0, 3.0]);
        assert_eq!(y, [22.0, 45.0]);
        let mut difference = [0.0; 2];
        sub_into(&mut difference, &y, &[2.0, 5.0]);
        assert_eq!(difference, [20.0, 40.0]);
        assert_eq!(dot(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]), 32.0);
        assert_eq!((norm1(&[-1.0, 2.0]), norm2_squared(&[3.0, 4.0])), (3.0, 25.0));
        assert_eq!((norm_inf(&[]), norm_inf(&[1.0, -7.0, 3.0])), (0.0, 7.0));
    }

    #[test]
    fn the_largest_of_several_is_nan_if_one_is() {
        assert_eq!((largest([]), largest([1.0, 3.0, 2.0])), (0.0, 3.0));
        for at in 0..3 {
            let mut x = [1.0, 3.0, 2.0];
            x[at] = f64::NAN;
            assert!(largest(x).is_nan());
        }
    }

    #[test]
    fn values_that_are_not_finite_are_seen_wherever_they_are() {
        for n in [1, 8, 30] {
            for at in 0..n {
                for bad in [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                    let mut x = numbers(6, n);
                    assert!(all_finite(&x));
                    x[at] = bad;
                    assert!(!all_finite(&x));
                    assert_eq!(norm_inf(&x).is_nan(), bad.is_nan());
                }
            }
        }
        assert!(all_finite(&[]) && all_finite(&[f64::MAX, 5e-324]));
    }
}
