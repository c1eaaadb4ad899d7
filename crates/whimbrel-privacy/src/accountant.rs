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

    /// The releases with the least noise of which `count` keep the guarantee.
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
    Ok(high)
}

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
mod tests;
