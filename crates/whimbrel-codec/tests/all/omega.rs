//! The variance constants: bounds on the vectors of the battery, and attained on the worst ones.

use whimbrel_codec::{Codec, Norm};
use whimbrel_core::Key;
use whimbrel_testkit::codec::{MARGIN, mean_square_error};

use crate::subject::{block, dithering, listed, with};

/// The variance on `worst` is the stated constant to 5 %, and not above it.
fn attained(codec: &Codec, worst: &[f64]) {
    let omega = codec.omega(worst.len()).unwrap();
    let square: f64 = worst.iter().map(|v| v * v).sum();
    with::<f64>(codec, |subject| {
        let estimate = mean_square_error(subject, worst, 4000);
        let (ratio, error) = (estimate.mean / square, MARGIN * estimate.error / square);
        assert!(error < 0.2 * omega, "{codec:?}: too few draws, error {error} of {omega}");
        assert!(ratio <= omega * (1.0 + 1e-6) + error, "{codec:?}: {ratio} above {omega}");
        assert!(ratio >= 0.95 * omega - error, "{codec:?}: {ratio} far below {omega}");
    });
}

#[test]
fn dithering_attains_omega_with_norm_2() {
    for (s, d) in [(1, 2), (1, 100), (1, 5000), (2, 400), (4, 64)] {
        attained(&dithering(s, Norm::P(2), None), &vec![0.7; d]);
    }
    // s > sqrt(d)/2: half-integers y with sum y^2 = s^2; 16 of them 3/2 and 112 of them 1/2 give 64.
    let mut half = vec![0.5; 112];
    half.extend([1.5; 16]);
    attained(&dithering(8, Norm::P(2), None), &half);
    attained(&dithering(8, Norm::P(2), Some(128)), &[half.clone(), half].concat());
}

#[test]
fn dithering_attains_omega_with_norm_1() {
    attained(&dithering(1, Norm::P(1), None), &[1.0; 50]);
    attained(&dithering(7, Norm::P(1), None), &[1.0; 50]);
    // s > d/2: all y = 3/2.
    attained(&dithering(30, Norm::P(1), None), &[1.0; 20]);
}

#[test]
fn dithering_attains_omega_with_norm_infinity() {
    for (s, d) in [(1, 100), (3, 40), (16, 1000)] {
        let s2 = f64::from(s);
        let mut worst = vec![1.0 / (s2 + (s2 * s2 + d as f64 - 1.0).sqrt()); d];
        worst[0] = 1.0;
        attained(&dithering(s, Norm::Infinity, None), &worst);
    }
}

#[test]
fn block_quantization_attains_omega() {
    attained(&block(64, Norm::P(2)), &[1.0; 128]);
    attained(&block(64, Norm::P(1)), &[1.0; 64]);
    attained(
        &listed(&[16, 64, 3], Norm::P(2)),
        &[[0.0; 16].as_slice(), &[2.0; 64], &[0.0; 3]].concat(),
    );
    let mut worst = vec![1.0 / 11.0; 100];
    worst[3] = 1.0;
    attained(&block(100, Norm::Infinity), &worst);
}

#[test]
fn other_codecs_attain_omega() {
    for q in [0.5, 0.1] {
        attained(&Codec::sparse(q).unwrap(), &[1.0; 500]);
    }
    attained(&Codec::sparse_exactly(5).unwrap(), &[1.0; 50]);
    attained(&Codec::Natural, &[4.0 / 3.0; 500]);
}

#[test]
fn omega_is_the_stated_formula() {
    let omega = |codec: Codec, d| codec.omega(d).unwrap();
    assert_eq!(omega(dithering(1, Norm::P(2), None), 100), 9.0);
    assert_eq!(omega(dithering(1, Norm::P(2), Some(25)), 100), 4.0);
    assert_eq!(omega(dithering(2, Norm::P(2), None), 400), 9.0);
    assert_eq!(omega(dithering(16, Norm::P(2), Some(256)), 10_000), 0.25);
    assert_eq!(omega(dithering(1, Norm::Infinity, None), 100), 4.5);
    assert_eq!(omega(block(100, Norm::P(2)), 1000), 9.0);
    assert_eq!(omega(block(100, Norm::P(3)), 1000), 9.0);
    assert_eq!(omega(block(100, Norm::P(1)), 1000), 99.0);
    assert_eq!(omega(block(100, Norm::Infinity), 1000), 4.5);
    assert_eq!(omega(Codec::sparse(0.25).unwrap(), 7), 3.0);
    assert_eq!(omega(Codec::sparse_exactly(2).unwrap(), 10), 4.0);
    assert_eq!(omega(Codec::Natural, 10), 0.125);
    assert_eq!(omega(Codec::Exact, 10), 0.0);
    assert_eq!(Codec::top_k(5).unwrap().contraction(20), Some(0.25));
}

/// The published constant `min(d/s^2, sqrt(d)/s)` is looser than ours everywhere.
#[test]
fn omega_of_dithering_is_below_the_published_bound() {
    for s in 1..40 {
        for d in [1, 2, 5, 30, 100, 1000, 100_000] {
            let (s_real, d_real) = (f64::from(s), d as f64);
            let published = (d_real / (s_real * s_real)).min(d_real.sqrt() / s_real);
            assert!(dithering(s, Norm::P(2), None).omega(d).unwrap() <= published);
        }
    }
}

/// Lemma 5: the variance is *exactly* the sum over blocks of `||x||_1 ||x||_p - ||x||^2`.
#[test]
fn variance_of_block_quantization_is_exact() {
    let mut stream = Key::root(8).stream();
    let x: Vec<f64> = (0..60).map(|_| stream.normal() * stream.uniform()).collect();
    let sizes = [10, 1, 24, 25];
    for norm in [Norm::P(1), Norm::P(2), Norm::P(3), Norm::P(7), Norm::Infinity] {
        let mut exact = 0.0;
        let mut start = 0;
        for size in sizes {
            let block = &x[start..start + size];
            let power = |p: i32| block.iter().map(|v| v.abs().powi(p)).sum::<f64>();
            let scale = match norm {
                Norm::P(p) => power(p as i32).powf(1.0 / f64::from(p)),
                Norm::Infinity => block.iter().fold(0.0, |a: f64, v| a.max(v.abs())),
            };
            exact += power(1) * scale - power(2);
            start += size;
        }
        with::<f64>(&listed(&sizes, norm), |subject| {
            let estimate = mean_square_error(subject, &x, 40_000);
            let off = (estimate.mean - exact).abs();
            assert!(off <= MARGIN * estimate.error, "{norm:?}: {estimate:?}, not {exact}");
            assert!(MARGIN * estimate.error < 0.1 * exact, "{norm:?}: too few draws");
        });
    }
}

/// The supremum of `(||x||_1 ||x||_inf - ||x||^2) / ||x||^2` found by climbing from random starts
/// is the stated constant.
#[test]
fn the_constant_for_infinity_is_the_supremum() {
    let ratio = |x: &[f64]| {
        let (one, two) = (x.iter().sum::<f64>(), x.iter().map(|v| v * v).sum::<f64>());
        one * x.iter().fold(0.0, |a: f64, &v| a.max(v)) / two - 1.0
    };
    let mut stream = Key::root(77).stream();
    for q in [2usize, 5, 20] {
        let stated = block(q, Norm::Infinity).omega(q).unwrap();
        let mut best = 0.0f64;
        for _ in 0..20 {
            let mut x: Vec<f64> = (0..q).map(|_| stream.uniform_open()).collect();
            let mut now = ratio(&x);
            for step in 0..20_000 {
                let i = stream.below(q as u64) as usize;
                let before = x[i];
                let width = if step < 10_000 { 0.5 } else { 0.01 };
                x[i] = (before * (1.0 + width * (stream.uniform() - 0.5))).min(1.0);
                let next = ratio(&x);
                if next >= now {
                    now = next;
                } else {
                    x[i] = before;
                }
            }
            best = best.max(now);
        }
        assert!(best <= stated + 1e-9, "q = {q}: {best} above {stated}");
        assert!(best >= 0.999 * stated, "q = {q}: {best} far below {stated}");
    }
}
