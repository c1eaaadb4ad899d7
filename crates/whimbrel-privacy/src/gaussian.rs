//! Exact samples of the discrete Gaussian, by integers alone.
//!
//! Reference: Canonne, Kamath, Steinke, *The Discrete Gaussian for Differential Privacy*, NeurIPS
//! 2020, Algorithms 1 to 3. A draw compares uniform integers only, so rounding of floating-point
//! numbers, which can give a row away, has no part in it.
//!
//! | paper | here |
//! |---|---|
//! | `sigma^2` | `variance`, an integer |
//! | `t` | `scale` of the discrete Laplace proposal |

/// A source of uniform bits.
pub trait Bits {
    /// The next 64 random bits.
    fn word(&mut self) -> u64;

    /// Uniform over `0..n` without bias; `n` is positive.
    fn below(&mut self, n: u128) -> u128 {
        let bits = 128 - (n - 1).leading_zeros();
        loop {
            let x = match bits {
                0..=64 => u128::from(self.word()),
                _ => u128::from(self.word()) << 64 | u128::from(self.word()),
            };
            let x = if bits == 128 { x } else { x & ((1 << bits) - 1) };
            if x < n {
                return x;
            }
        }
    }
}

impl Bits for whimbrel_core::Stream {
    fn word(&mut self) -> u64 {
        self.next_u64()
    }
}

/// The largest variance: every product of a draw stays below `2^127`.
pub const VARIANCE_MAX: u64 = 1 << 52;

/// A draw of the discrete Gaussian: an integer `k` with probability proportional to
/// `exp(-k^2/(2 variance))`.
///
/// # Panics
/// If the variance is zero or above [`VARIANCE_MAX`].
pub fn discrete_gaussian(variance: u64, bits: &mut impl Bits) -> i64 {
    assert!((1..=VARIANCE_MAX).contains(&variance), "a variance of {variance}");
    let scale = variance.isqrt() + 1;
    let denominator = 2 * u128::from(variance) * u128::from(scale).pow(2);
    loop {
        // Algorithm 3: a discrete Laplace draw y is accepted with probability
        // exp(-(|y| - sigma^2/t)^2/(2 sigma^2)).
        let y = discrete_laplace(scale, bits);
        let shift = (u128::from(y.unsigned_abs()) * u128::from(scale)).abs_diff(variance.into());
        // A draw beyond 2^62/t has probability below e^-1000; it would be rejected.
        let Some(numerator) = shift.checked_mul(shift) else { continue };
        if bernoulli_exp(numerator, denominator, bits) {
            return y;
        }
    }
}

/// An integer `y` with probability proportional to `exp(-|y|/scale)` (Algorithm 2).
fn discrete_laplace(scale: u64, bits: &mut impl Bits) -> i64 {
    let t = u128::from(scale);
    loop {
        let u = bits.below(t);
        if !bernoulli_exp_unit(u, t, bits) {
            continue;
        }
        let mut v: u64 = 0;
        while bernoulli_exp_unit(1, 1, bits) {
            v += 1;
        }
        let magnitude = (u as u64 + scale * v) as i64;
        let negative = bits.word() & 1 == 1;
        if magnitude == 0 && negative {
            continue;
        }
        return if negative { -magnitude } else { magnitude };
    }
}

/// True with probability `exp(-a/b)` (Algorithm 1).
fn bernoulli_exp(a: u128, b: u128, bits: &mut impl Bits) -> bool {
    (0..a / b).all(|_| bernoulli_exp_unit(1, 1, bits)) && bernoulli_exp_unit(a % b, b, bits)
}

/// True with probability `exp(-a/b)` for `a <= b`: the first failure among `Bernoulli(a/(b k))`,
/// `k = 1, 2, ..`, is at an odd `k`.
fn bernoulli_exp_unit(a: u128, b: u128, bits: &mut impl Bits) -> bool {
    let mut k = 1;
    while a > 0 && bits.below(b * k) < a {
        k += 1;
    }
    k % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::Key;

    /// 200,000 draws of variance 9 in 21 cells: the statistic has 20 degrees of freedom, and 65.4 is
    /// exceeded by one of 10^6 seeds.
    #[test]
    fn small_variances_have_the_stated_probabilities() {
        let (mut bits, draws) = (Key::root(31).stream(), 200_000);
        let mut counts = [0u32; 21];
        for _ in 0..draws {
            let k = discrete_gaussian(9, &mut bits).clamp(-10, 10);
            counts[(k + 10) as usize] += 1;
        }
        let weight = |k: i64| (-(k * k) as f64 / 18.0).exp();
        let total: f64 = (-100..=100).map(weight).sum();
        let tail: f64 = (10..=100).map(weight).sum();
        let chi2: f64 = (-10i64..=10)
            .zip(counts)
            .map(|(k, count)| {
                let share = if k.abs() == 10 { tail } else { weight(k) } / total;
                let expected = share * f64::from(draws);
                (f64::from(count) - expected).powi(2) / expected
            })
            .sum();
        assert!(chi2 < 65.4, "{chi2}");
    }

    /// Mean, variance and fourth moment of 40,000 draws within five standard errors, for variances
    /// over the whole range (12 comparisons: a false alarm in one of 10^5 seeds).
    #[test]
    fn moments_are_those_of_a_gaussian() {
        for variance in [4, 10_000_000_000, (1 << 40) + 7, VARIANCE_MAX] {
            let (mut bits, n) = (Key::root(32).child(variance).stream(), 40_000);
            let sigma = (variance as f64).sqrt();
            let draw = |_| discrete_gaussian(variance, &mut bits) as f64 / sigma;
            let x: Vec<f64> = (0..n).map(draw).collect();
            let moment = |p: i32| x.iter().map(|x| x.powi(p)).sum::<f64>() / f64::from(n);
            // Standard errors of a normal distribution's moments: 1, sqrt(2), sqrt(96).
            for (p, wanted, error) in [(1, 0.0, 1.0), (2, 1.0, 2f64.sqrt()), (4, 3.0, 96f64.sqrt())]
            {
                let gap = (moment(p) - wanted).abs();
                assert!(gap < 5.0 * error / f64::from(n).sqrt(), "{variance}: {p}: {gap}");
            }
        }
    }

    #[test]
    fn uniform_integers_stay_below_their_bound() {
        let mut bits = Key::root(33).stream();
        for n in [1, 2, 3, 1 << 64, (1 << 64) + 1, u128::MAX] {
            assert!((0..200).all(|_| Bits::below(&mut bits, n) < n), "{n}");
        }
        let mut seen = [0u32; 3];
        (0..3000).for_each(|_| seen[Bits::below(&mut bits, 3) as usize] += 1);
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
    }
}
