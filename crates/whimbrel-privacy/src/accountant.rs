//! The accountant of differential privacy: epsilon of Gaussian noise, and the noise for an epsilon.
//!
//! A release has *noise multiplier* `z`: its Gaussian noise has `z` times the sensitivity as standard
//! deviation. Three rules give the epsilon of a run of `T` releases at a given delta:
//!
//! | releases | rule |
//! |---|---|
//! | every row in each | exact: `delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)`, `mu^2 = T/z^2` (Balle and Wang 2018, Theorem 8) |
//! | rows sampled with probability q (Poisson) | Renyi divergences of integer order (Mironov, Talwar and Zhang 2019, section 3.3) |
//! | discrete noise in shares | zCDP `rho = mu^2/2`: Renyi divergences `rho a` |
//!
//! Renyi curves become epsilons by Canonne, Kamath and Steinke 2020, Proposition 12. Between integer
//! orders `(a - 1) D_a` is convex, so chords bound it; the series for fractional orders need not
//! converge for q >= 0.1.

use std::f64::consts::PI;
use whimbrel_core::math::{exp, ln, ln_1p, pow};
use whimbrel_core::{Error, Result};

/// The guarantee of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Guarantee {
    pub epsilon: f64,
    pub delta: f64,
}

/// Releases with the same noise.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Releases {
    /// `z`.
    pub multiplier: f64,
    /// `q`, the probability of a row to be part of a release.
    pub rate: f64,
}

/// `delta = "auto"`: `N^-1.1` for `N` rows or clients.
pub fn auto_delta(units: u64) -> f64 {
    pow(units.max(1) as f64, -1.1)
}

impl Releases {
    /// The epsilon of this number of releases at a given delta.
    pub fn epsilon(&self, count: u32, delta: f64) -> f64 {
        if count == 0 {
            return 0.0;
        }
        let (count, z) = (f64::from(count), self.multiplier);
        if self.rate >= 1.0 {
            return gaussian_epsilon(count.sqrt() / z, delta);
        }
        renyi_epsilon(|order| count * sampled_divergence(self.rate, z, order), delta)
    }

    /// The releases with the least noise that keep the guarantee if there are `count` of them.
    pub fn within(guarantee: Guarantee, count: u32, rate: f64) -> Result<Self> {
        let Guarantee { epsilon, delta } = guarantee;
        let valid = epsilon > 0.0 && epsilon.is_finite() && delta > 0.0 && delta < 1.0;
        if !(valid && rate > 0.0 && rate <= 1.0) {
            return Err(Error::config(format!(
                "no noise gives epsilon = {epsilon} and delta = {delta} at a sampling rate of {rate}"
            )));
        }
        let keeps = |multiplier: f64| Self { multiplier, rate }.epsilon(count, delta) <= epsilon;
        Ok(Self { multiplier: least_multiplier(keeps, epsilon, count)?, rate })
    }

    /// The same for discrete noise in shares, by zCDP.
    pub fn in_shares(guarantee: Guarantee, count: u32) -> Result<Self> {
        let Guarantee { epsilon, delta } = guarantee;
        // Refuses guarantees that no noise gives.
        Self::within(guarantee, count, 1.0)?;
        let rho = |z: f64| f64::from(count) / (2.0 * z * z);
        let keeps = |z: f64| zcdp_epsilon(rho(z), delta) <= epsilon;
        Ok(Self { multiplier: least_multiplier(keeps, epsilon, count)?, rate: 1.0 })
    }
}

/// The least noise multiplier that keeps a guarantee.
fn least_multiplier(keeps: impl Fn(f64) -> bool, epsilon: f64, count: u32) -> Result<f64> {
    let mut high = 1.0;
    while !keeps(high) {
        high *= 2.0;
        if high > MULTIPLIER_MAX {
            return Err(Error::config(format!(
                "epsilon = {epsilon} in {count} rounds needs noise of more than \
                 {MULTIPLIER_MAX:e} times the sensitivity"
            ))
            .hint("raise `epsilon` or take fewer rounds"));
        }
    }
    let mut low = 0.0;
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if keeps(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Ok(high * (1.0 + ROUNDING))
}

/// The margin of a multiplier. Budgets are sums of `1/z^2` over rounds, which round differently in
/// another order: without it a run can end an ulp above its epsilon.
const ROUNDING: f64 = 1e-12;

/// The largest noise multiplier that is tried.
const MULTIPLIER_MAX: f64 = 1e6;

/// The epsilon of Gaussian noise with `mu` = sensitivity / standard deviation of the whole run.
pub fn gaussian_epsilon(mu: f64, delta: f64) -> f64 {
    if gaussian_delta(0.0, mu) <= delta {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, 1.0);
    while gaussian_delta(high, mu) > delta && high < 1e9 {
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if gaussian_delta(middle, mu) > delta {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The delta of Gaussian noise at a given epsilon. With `phi(b) e^eps = phi(a)` both terms share the
/// factor `phi(a)`, so nothing overflows.
pub fn gaussian_delta(epsilon: f64, mu: f64) -> f64 {
    let (a, b) = (0.5 * mu - epsilon / mu, 0.5 * mu + epsilon / mu);
    let density = exp(-0.5 * a * a) / (2.0 * PI).sqrt();
    let upper = if a < 0.0 { density * mills(-a) } else { 1.0 - density * mills(a) };
    upper - density * mills(b)
}

/// The Mills ratio `Phi(-x)/phi(x)` for `x >= 0`: a series near zero, else Laplace's continued
/// fraction.
fn mills(x: f64) -> f64 {
    if x < 3.0 {
        let (mut term, mut sum, mut odd) = (x, x, 1.0);
        while term > 1e-18 * sum {
            odd += 2.0;
            term *= x * x / odd;
            sum += term;
        }
        return exp(0.5 * x * x) * (0.5 * PI).sqrt() - sum;
    }
    let tail = (1..=120).rev().fold(0.0, |tail, k| f64::from(k) / (x + tail));
    1.0 / (x + tail)
}

/// The epsilon of releases with zCDP `rho` in all (`mu^2/2` for discrete Gaussian noise).
pub fn zcdp_epsilon(rho: f64, delta: f64) -> f64 {
    renyi_epsilon(|order| rho * f64::from(order), delta)
}

/// The largest consecutive order, and the larger ones.
const ORDERS_DENSE: u32 = 64;
const ORDERS_SPARSE: [u32; 7] = [80, 96, 128, 192, 256, 512, 1024];
/// Chords below this order are cut at tenths.
const CHORDS_MAX: u32 = 16;

/// The epsilon of a curve of Renyi divergences over integer orders.
fn renyi_epsilon(divergence: impl Fn(u32) -> f64, delta: f64) -> f64 {
    let mut best = f64::INFINITY;
    let (mut last, mut before) = (1, 0.0);
    for order in (2..=ORDERS_DENSE).chain(ORDERS_SPARSE) {
        let cumulant = f64::from(order - 1) * divergence(order);
        let cuts = if order <= CHORDS_MAX { 10 } else { 1 };
        for cut in 1..=cuts {
            let share = f64::from(cut) / f64::from(cuts);
            let a = f64::from(last) + share * f64::from(order - last);
            let chord = before + share * (cumulant - before);
            best = best.min((chord - ln(delta * a)) / (a - 1.0) + ln_1p(-1.0 / a));
        }
        (last, before) = (order, cumulant);
    }
    best.max(0.0)
}

/// The Renyi divergence of integer order `a` of the Poisson-sampled Gaussian:
/// `ln(sum_i C(a, i) q^i (1 - q)^(a - i) e^((i^2 - i)/(2 z^2))) / (a - 1)`.
fn sampled_divergence(q: f64, z: f64, order: u32) -> f64 {
    let (ln_q, ln_rest) = (ln(q), ln_1p(-q));
    let mut binomial = 0.0;
    let term = |i: u32| {
        let k = f64::from(i);
        let log = binomial + k * ln_q + f64::from(order - i) * ln_rest;
        binomial += ln(f64::from(order - i).max(1.0)) - ln(k + 1.0);
        log + (k * k - k) / (2.0 * z * z)
    };
    let terms: Vec<f64> = (0..=order).map(term).collect();
    let largest = terms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = terms.iter().map(|term| exp(term - largest)).sum();
    (largest + ln(sum)) / f64::from(order - 1)
}

#[cfg(test)]
mod tests {
    //! The accountant against stored values.

    use super::*;

    /// (q, z, rounds, delta, epsilon by RDP, epsilon by PLD) of the package `dp-accounting` 0.6.0:
    /// `RdpAccountant` with its default orders, `PLDAccountant` with `value_discretization_interval = 1e-4`.
    #[rustfmt::skip]
    const GRID: [(f64, f64, u32, f64, f64, f64); 50] = [
        (0.005, 0.80, 50, 1e-5, 1.5723, 0.6977),
        (0.005, 1.00, 200, 1e-6, 1.2173, 0.5868),
        (0.005, 1.50, 100, 1e-5, 0.3542, 0.1365),
        (0.005, 2.00, 1000, 1e-6, 0.3832, 0.3432),
        (0.005, 4.00, 400, 1e-5, 0.0877, 0.0779),
        (0.005, 8.00, 2000, 1e-7, 0.1318, 0.1179),
        (0.01, 0.80, 50, 1e-5, 2.0199, 1.2906),
        (0.01, 1.00, 200, 1e-6, 1.6416, 1.1496),
        (0.01, 1.50, 100, 1e-5, 0.4651, 0.2921),
        (0.01, 2.00, 1000, 1e-6, 0.7828, 0.7209),
        (0.01, 4.00, 400, 1e-5, 0.1875, 0.1664),
        (0.01, 8.00, 2000, 1e-7, 0.2773, 0.2446),
        (0.05, 0.80, 50, 1e-5, 5.2953, 4.4523),
        (0.05, 1.00, 200, 1e-6, 6.0971, 5.4859),
        (0.05, 1.50, 100, 1e-5, 1.8789, 1.6716),
        (0.05, 2.00, 1000, 1e-6, 4.4755, 4.1626),
        (0.05, 4.00, 400, 1e-5, 1.0574, 0.9638),
        (0.05, 8.00, 2000, 1e-7, 1.4355, 1.3452),
        (0.1, 0.80, 50, 1e-5, 9.2568, 8.0625),
        (0.1, 1.00, 200, 1e-6, 12.2933, 11.2347),
        (0.1, 1.50, 100, 1e-5, 3.9235, 3.5359),
        (0.1, 2.00, 1000, 1e-6, 9.8239, 9.1820),
        (0.1, 4.00, 400, 1e-5, 2.2576, 2.0706),
        (0.1, 8.00, 2000, 1e-7, 3.0215, 2.8402),
        (0.3, 0.80, 50, 1e-5, 24.6793, 22.3019),
        (0.3, 1.00, 200, 1e-6, 41.1879, 37.5740),
        (0.3, 1.50, 100, 1e-5, 13.0965, 11.8934),
        (0.3, 2.00, 1000, 1e-6, 37.6703, 35.6517),
        (0.3, 4.00, 400, 1e-5, 7.8474, 7.2642),
        (0.3, 8.00, 2000, 1e-7, 10.3208, 9.7489),
        (0.5, 2.00, 20, 1e-5, 6.2291, 5.6895),
        (0.5, 4.00, 50, 1e-5, 4.3096, 3.9614),
        (0.5, 8.00, 100, 1e-6, 3.1455, 2.9295),
        (0.5, 20.00, 200, 1e-5, 1.4845, 1.3616),
        (0.5, 40.00, 1000, 1e-6, 1.8751, 1.7446),
        (0.9, 2.00, 20, 1e-5, 11.1059, 10.3262),
        (0.9, 4.00, 50, 1e-5, 8.2139, 7.6303),
        (0.9, 8.00, 100, 1e-6, 5.9902, 5.6082),
        (0.9, 20.00, 200, 1e-5, 2.8357, 2.6146),
        (0.9, 40.00, 1000, 1e-6, 3.5676, 3.3312),
        (1.0, 1.00, 1, 1e-5, 4.7285, 4.3772),
        (1.0, 5.00, 20, 1e-5, 4.1616, 3.8486),
        (1.0, 2.00, 10, 1e-6, 8.8469, 8.3062),
        (1.0, 10.00, 80, 1e-5, 4.1616, 3.8486),
        (1.0, 20.00, 80, 1e-5, 1.9142, 1.7601),
        (1.0, 23.59, 40, 1e-5, 1.0928, 1.0002),
        (1.0, 40.00, 100, 1e-6, 1.1432, 1.0607),
        (1.0, 60.00, 80, 1e-7, 0.7294, 0.6821),
        (1.0, 100.00, 500, 1e-5, 0.8970, 0.8197),
        (1.0, 0.50, 1, 1e-6, 11.6886, 10.9972),
    ];

    /// The exact formula equals numerical composition. Renyi divergences bound it from above, and integer
    /// orders with chords are close to all orders: within 1 % for z >= 1.5, 3.5 % for z >= 1 and 10 % below,
    /// where the best order is small and not an integer.
    #[test]
    fn epsilons_lie_between_numerical_composition_and_all_renyi_orders() {
        for (q, z, rounds, delta, rdp, pld) in GRID {
            let ours = Releases { multiplier: z, rate: q }.epsilon(rounds, delta);
            if q == 1.0 {
                assert!((ours - pld).abs() < 2e-3 * pld, "{z} {rounds}: {ours} and {pld}");
                let by_renyi = zcdp_epsilon(f64::from(rounds) / (2.0 * z * z), delta);
                assert!(
                    by_renyi > ours && (by_renyi / rdp - 1.0).abs() < 0.015,
                    "{by_renyi} {rdp}"
                );
            } else {
                let margin = match z {
                    z if z < 1.0 => 1.1,
                    z if z < 1.5 => 1.035,
                    _ => 1.01,
                };
                assert!(
                    ours > 0.999 * pld && ours < margin * rdp,
                    "{q} {z} {rounds}: {ours}, {rdp}"
                );
            }
        }
    }

    /// The values of the design's table.
    #[test]
    fn epsilons_are_those_of_the_design() {
        let epsilon =
            |rate, multiplier, rounds| Releases { multiplier, rate }.epsilon(rounds, 1e-5);
        for (ours, wanted) in [
            (epsilon(1.0, 5.0, 20), 3.8486),
            (zcdp_epsilon(0.4, 1e-5), 4.1616),
            (epsilon(0.1, 2.0, 100), 2.587),
            (epsilon(0.01, 1.0, 1000), 2.108),
            (epsilon(0.01, 0.6, 100), 5.23),
        ] {
            assert!((ours - wanted).abs() < 2e-3 * wanted, "{ours} and {wanted}");
        }
        let z = Releases::within(Guarantee { epsilon: 1.0, delta: 1e-5 }, 40, 1.0).unwrap();
        assert!((z.multiplier - 23.59).abs() < 0.005, "{}", z.multiplier);
    }

    #[test]
    fn the_least_noise_spends_the_budget_and_nothing_more() {
        for (rate, rounds) in [(1.0, 1), (1.0, 80), (0.1, 100), (0.01, 500)] {
            for epsilon in [0.1, 1.0, 8.0] {
                let guarantee = Guarantee { epsilon, delta: 1e-6 };
                let releases = Releases::within(guarantee, rounds, rate).unwrap();
                let spent = releases.epsilon(rounds, 1e-6);
                assert!(spent <= epsilon && spent > 0.9999 * epsilon, "{rate} {rounds}: {spent}");
                assert!(releases.epsilon(rounds - 1, 1e-6) < epsilon);
            }
        }
        assert_eq!(Releases { multiplier: 1.0, rate: 1.0 }.epsilon(0, 1e-5), 0.0);
        for (epsilon, delta) in [(0.0, 1e-5), (1.0, 0.0), (f64::NAN, 1e-5), (1e-9, 1e-12)] {
            assert!(Releases::within(Guarantee { epsilon, delta }, 80, 1.0).is_err(), "{epsilon}");
        }
    }

    /// Shares spend the budget by zCDP: 20 releases of z = 5 have the epsilon of `dp-accounting`'s Renyi
    /// divergences, and every noise is larger than by the exact formula.
    #[test]
    fn shares_spend_the_budget_by_zcdp() {
        let guarantee = Guarantee { epsilon: 4.1616, delta: 1e-5 };
        let z = Releases::in_shares(guarantee, 20).unwrap().multiplier;
        assert!((z - 5.0).abs() < 0.005, "{z}");
        for (epsilon, rounds) in [(0.1, 1), (1.0, 80), (8.0, 40)] {
            let guarantee = Guarantee { epsilon, delta: 1e-6 };
            let z = Releases::in_shares(guarantee, rounds).unwrap().multiplier;
            let spent = zcdp_epsilon(f64::from(rounds) / (2.0 * z * z), 1e-6);
            assert!(spent <= epsilon && spent > 0.9999 * epsilon, "{spent}");
            assert!(z > Releases::within(guarantee, rounds, 1.0).unwrap().multiplier);
        }
        assert!(Releases::in_shares(Guarantee { epsilon: 0.0, delta: 1e-5 }, 20).is_err());
    }

    /// `delta` and `epsilon` invert each other, also far in the tails.
    #[test]
    fn the_exact_formula_is_consistent() {
        for mu in [0.01, 0.3, 1.0, 5.0, 40.0] {
            for delta in [1e-3, 1e-6, 1e-12] {
                let epsilon = gaussian_epsilon(mu, delta);
                if epsilon > 0.0 {
                    let back = gaussian_delta(epsilon, mu);
                    assert!((back / delta - 1.0).abs() < 1e-4, "{mu} {delta}: {back}");
                }
            }
        }
        // Phi(-3) / phi(3), where the series ends and the continued fraction begins.
        assert!((mills(3.0) - 0.304_590_298_710_103).abs() < 1e-14);
        assert!((mills(2.999_999_999) - mills(3.0)).abs() < 1e-9);
        assert!((auto_delta(19_020) - 1.962_765_6e-5).abs() < 1e-11);
    }
}
