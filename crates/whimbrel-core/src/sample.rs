//! Samplers on a [`Stream`].
//!
//! A normal number is the quantile of one uniform number, so it costs exactly one draw; the other
//! samplers reject and cost a varying number of draws. All of them use [`math`] only:
//! equal streams give equal bits on every machine.

use crate::vector::dot;
use crate::{Stream, kernel, math};

impl Stream {
    /// A standard normal number, from one draw.
    #[inline]
    pub fn normal(&mut self) -> f64 {
        math::normal_quantile(self.uniform_open())
    }

    /// Fills `out` with the same numbers as calls of [`normal`](Self::normal), faster.
    pub fn fill_normal(&mut self, out: &mut [f64]) {
        let mut words = [0; 256];
        for chunk in out.chunks_mut(words.len()) {
            let words = &mut words[..chunk.len()];
            self.fill(words);
            open_units(chunk, words);
            math::normal_quantile_slice(chunk);
        }
    }

    /// A normal vector with the given mean and the covariance `L L^T`, `l` a lower triangular
    /// row-major matrix: writes `mean + L z` with `z` standard normal.
    pub fn multivariate_normal(&mut self, mean: &[f64], l: &[f64], out: &mut [f64]) {
        let d = mean.len();
        assert!(l.len() == d * d && out.len() == d, "mean, factor and vector do not fit");
        let mut z = vec![0.0; d];
        self.fill_normal(&mut z);
        for (i, out) in out.iter_mut().enumerate() {
            *out = mean[i] + dot(&l[i * d..][..i + 1], &z[..i + 1]);
        }
    }

    /// A Gamma number with the given shape and scale 1; 0 for very small shapes by underflow.
    pub fn gamma(&mut self, shape: f64) -> f64 {
        math::exp(self.ln_gamma_variate(shape))
    }

    /// The logarithm of a Gamma number, which does not vanish for small shapes.
    fn ln_gamma_variate(&mut self, shape: f64) -> f64 {
        assert!(shape > 0.0 && shape < f64::INFINITY, "the shape {shape} is not a positive number");
        if shape < 1.0 {
            // G(shape) = G(shape + 1) U^(1 / shape)
            let larger = self.ln_gamma_variate(shape + 1.0);
            return larger + math::ln(self.uniform_open()) / shape;
        }
        // Marsaglia & Tsang (2000): d (1 + c x)^3 with normal x, accepted or not.
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let t = 1.0 + c * x;
            let u = self.uniform_open();
            if t <= 0.0 {
                continue;
            }
            let v = t * t * t;
            if math::ln(u) < 0.5 * x * x + d * (1.0 - v + 3.0 * math::ln(t)) {
                return math::ln(d * v);
            }
        }
    }

    /// Weights that sum to 1, Dirichlet with the given positive concentrations.
    pub fn dirichlet(&mut self, alpha: &[f64]) -> Vec<f64> {
        assert!(!alpha.is_empty(), "a Dirichlet distribution needs a concentration");
        let mut weights: Vec<f64> = alpha.iter().map(|a| self.ln_gamma_variate(*a)).collect();
        // Normalised from logarithms: with small concentrations every Gamma number may vanish.
        let largest = weights.iter().fold(f64::NEG_INFINITY, |m, w| m.max(*w));
        weights.iter_mut().for_each(|w| *w = math::exp(*w - largest));
        let total: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|w| *w /= total);
        weights
    }

    /// A Poisson number with mean `lambda`, from 0 to 2^52.
    pub fn poisson(&mut self, lambda: f64) -> u64 {
        const LARGEST: f64 = (1u64 << 52) as f64;
        assert!((0.0..=LARGEST).contains(&lambda), "{lambda} is not the mean of a Poisson number");
        if lambda < 10.0 {
            self.poisson_by_search(lambda)
        } else {
            self.poisson_by_rejection(lambda)
        }
    }

    /// The smallest `k` whose distribution function exceeds a uniform number.
    fn poisson_by_search(&mut self, lambda: f64) -> u64 {
        let mut rest = self.uniform();
        let mut probability = math::exp(-lambda);
        let mut k = 0u32;
        // Beyond 200 the probabilities of means below 10 are less than 1e-170.
        while rest >= probability && k < 200 {
            rest -= probability;
            k += 1;
            probability *= lambda / f64::from(k);
        }
        u64::from(k)
    }

    /// Hörmann (1993), transformed rejection with squeeze (PTRS).
    fn poisson_by_rejection(&mut self, lambda: f64) -> u64 {
        let b = 0.931 + 2.53 * lambda.sqrt();
        let a = -0.059 + 0.02483 * b;
        let inverse_alpha = 1.1239 + 1.1328 / (b - 3.4);
        let v_r = 0.9277 - 3.6224 / (b - 2.0);
        loop {
            let u = self.uniform_open() - 0.5;
            let v = self.uniform_open();
            let u_s = 0.5 - u.abs();
            let k = ((2.0 * a / u_s + b) * u + lambda + 0.43).floor();
            if u_s >= 0.07 && v <= v_r {
                return k as u64;
            }
            if k < 0.0 || (u_s < 0.013 && v > u_s) {
                continue;
            }
            let hat = math::ln(v * inverse_alpha / (a / (u_s * u_s) + b));
            if hat <= ln_poisson(k, lambda) {
                return k as u64;
            }
        }
    }

    /// An index drawn with probability proportional to its weight. Weights are finite,
    /// non-negative, and not all zero.
    pub fn categorical(&mut self, weights: &[f64]) -> usize {
        let total: f64 = weights.iter().sum();
        assert!(
            total > 0.0 && total < f64::INFINITY && weights.iter().all(|w| *w >= 0.0),
            "weights must be finite, not negative, and not all zero"
        );
        let mut rest = self.uniform() * total;
        let mut last = 0;
        for (i, weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
            if rest < *weight {
                return i;
            }
            rest -= weight;
            last = i;
        }
        // Only rounding of the differences leads here.
        last
    }
}

/// The logarithm of a Poisson probability, for means from 10 on.
fn ln_poisson(k: f64, lambda: f64) -> f64 {
    if lambda < 1e5 {
        return k * math::ln(lambda) - lambda - math::ln_gamma(k + 1.0);
    }
    // Those terms are near lambda ln(lambda) and would cancel. Stirling's formula with
    // k = lambda (1 + e) leaves -lambda ((1 + e) ln(1 + e) - e) - ln(2 pi k) / 2 - 1 / (12 k).
    let e = (k - lambda) / lambda;
    let deviance = lambda * ((1.0 + e) * math::ln_1p(e) - e);
    -deviance - 0.5 * math::ln(std::f64::consts::TAU * k) - 1.0 / (12.0 * k)
}

kernel! {
    /// [`Stream::uniform_open`] of every word.
    fn open_units(out: &mut [f64], words: &[u64]) {
        for (out, word) in out.iter_mut().zip(words) {
            *out = ((word >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Statistical tests run on fixed seeds; a sampler that is right would fail each single check
    //! with probability 1e-4 over the choice of the seed.

    use super::*;
    use crate::Key;

    /// Beyond this many standard errors with probability 1e-4 (two-sided).
    const Z: f64 = 3.89;

    fn stream(tag: u64) -> Stream {
        Key::root(2026).child(tag).stream()
    }

    #[test]
    fn every_sampler_gives_its_golden_bits() {
        let mut s = stream(1);
        let normals = [0x3fa3_142f_e2ce_a98e, 0xbff8_c8df_04a8_f9f6, 0x3fee_f4dd_3b75_0d13];
        assert_eq!([(); 3].map(|()| s.normal().to_bits()), normals);
        for (tag, shape, bits) in [
            (10, 0.05, 0x3fcd_98b6_3f71_7b3f),
            (11, 0.7, 0x3fe5_18ed_2ce0_0572),
            (12, 1.0, 0x3fe0_eca1_3cd0_9dfd),
            (13, 30.5, 0x4043_b01f_6eeb_02e2),
        ] {
            assert_eq!(stream(tag).gamma(shape).to_bits(), bits, "shape {shape}");
        }
        let weights = stream(20).dirichlet(&[0.2, 0.2, 3.0]);
        let right = [0x3f00_934c_7cb3_2b9d, 0x3efb_9736_d9da_539c, 0x3fef_ff86_8460_597e];
        assert_eq!(weights.iter().map(|w| w.to_bits()).collect::<Vec<_>>(), right);
        for (lambda, right) in [
            (0.8, [0, 1, 1, 1]),
            (9.5, [7, 10, 11, 11]),
            (10.0, [7, 11, 14, 9]),
            (1234.5, [1203, 1250, 1277, 1228]),
            (1e12, [999_999_113_860, 1_000_000_438_538, 1_000_001_193_478, 999_999_829_716]),
        ] {
            let mut s = stream(30);
            assert_eq!([(); 4].map(|()| s.poisson(lambda)), right, "mean {lambda}");
        }
        let mut s = stream(40);
        let drawn = [(); 12].map(|()| s.categorical(&[1.0, 0.0, 2.5, 0.5]));
        assert_eq!(drawn, [2, 2, 2, 2, 2, 2, 2, 2, 2, 0, 2, 2]);
        let mut x = [0.0; 2];
        stream(50).multivariate_normal(&[1.0, -2.0], &[2.0, 0.0, 0.5, 0.1], &mut x);
        assert_eq!(x.map(f64::to_bits), [0xc012_42cb_b3a1_bfcc, 0xc00a_d8eb_8bf6_146a]);
    }

    #[test]
    fn filling_gives_what_single_normals_give() {
        let (mut one, mut many) = (stream(2), stream(2));
        for n in [1, 5, 256, 700] {
            let mut filled = vec![0.0; n];
            many.fill_normal(&mut filled);
            assert!(filled.iter().all(|x| x.to_bits() == one.normal().to_bits()));
        }
    }

    #[test]
    fn normals_follow_their_distribution() {
        let mut x = vec![0.0; 20_000];
        stream(3).fill_normal(&mut x);
        assert_follows(x, normal_cdf);
    }

    #[test]
    fn gammas_follow_their_distribution() {
        for (tag, shape) in [(60, 0.05), (61, 0.7), (62, 1.0), (63, 30.5)] {
            let mut s = stream(tag);
            assert_follows((0..10_000).map(|_| s.gamma(shape)).collect(), |x| gamma_cdf(shape, x));
        }
    }

    #[test]
    fn poissons_follow_their_distribution() {
        for (tag, lambda) in [(70, 0.3), (71, 9.5), (72, 10.0), (73, 57.3)] {
            let mut counts = [0.0; 200];
            let mut s = stream(tag);
            let n = 50_000;
            (0..n).for_each(|_| counts[s.poisson(lambda) as usize] += 1.0);
            let probabilities = (0..200).map(|k| {
                let k = f64::from(k);
                math::exp(k * math::ln(lambda) - lambda - math::ln_gamma(k + 1.0))
            });
            assert_counts(&counts, &probabilities.collect::<Vec<_>>(), f64::from(n));
        }
        assert_eq!(stream(74).poisson(0.0), 0);
    }

    #[test]
    fn large_poissons_have_their_mean_and_variance() {
        for (tag, lambda) in [(80, 9e4), (81, 1.1e5), (82, 1e10), (83, 1e15)] {
            let mut s = stream(tag);
            let root = f64::sqrt(lambda);
            let x = (0..20_000).map(|_| (s.poisson(lambda) as f64 - lambda) / root);
            // Nearly normal: the square has variance 2 + 1 / lambda.
            assert_moments(&x.collect::<Vec<_>>(), 0.0, 1.0, 2.0);
        }
    }

    #[test]
    fn both_forms_of_the_poisson_probability_agree() {
        let lambda = 1e5;
        for k in [99_000.0, 100_000.0, 101_500.0] {
            let direct = k * math::ln(lambda) - lambda - math::ln_gamma(k + 1.0);
            // The direct form errs by a few ulp of k ln(lambda) = 1.2e6.
            assert!((ln_poisson(k, lambda) - direct).abs() < 1e-8);
        }
    }

    #[test]
    fn dirichlet_weights_have_their_moments() {
        let alpha = [0.2, 0.2, 3.0];
        let total: f64 = alpha.iter().sum();
        let mut s = stream(90);
        let draws: Vec<Vec<f64>> = (0..20_000).map(|_| s.dirichlet(&alpha)).collect();
        assert!(draws.iter().all(|w| (w.iter().sum::<f64>() - 1.0).abs() < 1e-15));
        for (j, a) in alpha.iter().enumerate() {
            let mean = a / total;
            let variance = mean * (1.0 - mean) / (total + 1.0);
            let x: Vec<f64> = draws.iter().map(|w| w[j]).collect();
            // A weight lies in [0, 1], so E (x - m)^4 <= E (x - m)^2.
            assert_moments(&x, mean, variance, variance - variance * variance);
        }
        let tiny = stream(91).dirichlet(&[1e-5; 4]);
        assert!((tiny.iter().sum::<f64>() - 1.0).abs() < 1e-15, "{tiny:?}");
    }

    #[test]
    fn categories_come_as_often_as_their_weights_say() {
        let weights = [1.0, 0.0, 2.5, 0.5];
        let mut counts = [0.0; 4];
        let mut s = stream(41);
        (0..20_000).for_each(|_| counts[s.categorical(&weights)] += 1.0);
        assert_eq!(counts[1], 0.0);
        assert_counts(&counts, &weights.map(|w| w / 4.0), 20_000.0);
    }

    #[test]
    fn multivariate_normals_have_their_covariance() {
        let (mean, l) = ([1.0, -2.0], [2.0, 0.0, 0.5, 0.1]);
        let mut s = stream(51);
        let draws: Vec<[f64; 2]> = (0..20_000)
            .map(|_| {
                let mut x = [0.0; 2];
                s.multivariate_normal(&mean, &l, &mut x);
                x
            })
            .collect();
        for direction in [[1.0, 0.0], [0.0, 1.0], [0.3, -1.2]] {
            let along = |x: [f64; 2]| direction[0] * x[0] + direction[1] * x[1];
            let [p, q] = [along([l[0], l[2]]), along([l[1], l[3]])];
            let variance = p * p + q * q;
            let x: Vec<f64> = draws.iter().map(|x| along(*x)).collect();
            assert_moments(&x, along(mean), variance, 2.0 * variance * variance);
        }
    }

    /// Mean and variance within `Z` standard errors; `spread` is (a bound on) the variance of
    /// `(x - mean)^2`.
    fn assert_moments(x: &[f64], mean: f64, variance: f64, spread: f64) {
        let n = x.len() as f64;
        let m = x.iter().sum::<f64>() / n;
        let v = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
        assert!((m - mean).abs() <= Z * (variance / n).sqrt(), "mean {m}, not {mean}");
        assert!((v - variance).abs() <= Z * (spread / n).sqrt(), "variance {v}, not {variance}");
    }

    /// Kolmogorov and Smirnov: sqrt(n) D exceeds 2.23 with probability 2 exp(-2 * 2.23^2) = 1e-4.
    fn assert_follows(mut x: Vec<f64>, cdf: impl Fn(f64) -> f64) {
        x.sort_by(f64::total_cmp);
        let n = x.len() as f64;
        let gap = |(i, x): (usize, &f64)| {
            let (f, i) = (cdf(*x), i as f64);
            (f - i / n).max((i + 1.0) / n - f)
        };
        let distance = x.iter().enumerate().map(gap).fold(0.0, f64::max);
        assert!(distance * n.sqrt() < 2.23, "distance {distance}");
    }

    /// Chi-square over the cells that expect at least 10, the others as one; its 1 - 1e-4
    /// quantile by Wilson and Hilferty.
    fn assert_counts(counts: &[f64], probabilities: &[f64], n: f64) {
        let (mut chi, mut cells, mut rare, mut rare_expected) = (0.0, 0.0, 0.0, 0.0);
        for (count, p) in counts.iter().zip(probabilities) {
            if n * p >= 10.0 {
                chi += (count - n * p).powi(2) / (n * p);
                cells += 1.0;
            } else {
                rare += count;
                rare_expected += n * p;
            }
        }
        if rare_expected > 1.0 {
            chi += (rare - rare_expected).powi(2) / rare_expected;
            cells += 1.0;
        }
        let freedom: f64 = cells - 1.0;
        let h = 2.0 / (9.0 * freedom);
        let limit = freedom * (1.0 - h + 3.719 * h.sqrt()).powi(3);
        assert!(chi < limit, "chi-square {chi} with {freedom} degrees of freedom");
    }

    /// `1/2 + phi(x) (x + x^3 / 3 + x^5 / (3 * 5) + ...)`
    fn normal_cdf(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= x * x / f64::from(2 * n + 1);
            sum += term;
        }
        0.5 + sum * math::exp(-0.5 * x * x) / std::f64::consts::TAU.sqrt()
    }

    /// `x^a e^-x / Gamma(a + 1) (1 + x / (a + 1) + x^2 / ((a + 1)(a + 2)) + ...)`
    fn gamma_cdf(shape: f64, x: f64) -> f64 {
        let (mut term, mut sum) = (1.0, 1.0);
        for n in 1..400 {
            term *= x / (shape + f64::from(n));
            sum += term;
        }
        math::exp(shape * math::ln(x) - x - math::ln_gamma(shape + 1.0)) * sum
    }
}
