//! Loop lengths, minibatches and steps of VR-FedEM: Theorem 3, Proposition 25 and Appendix E.2 of
//! Dieuleveut, Fort, Moulines, Robin (2021).
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `k_in`, `b` | `inner`, `batch` | rounds of an outer loop, rows of a minibatch |
//! | `m`, `n` | `rows`, `clients` | rows of a client, clients |
//! | `ω`, `α` | `omega`, `alpha` | the codec's variance constant, the memory step |
//! | `v_min`, `v_max`, `L_Ẇ`, `L` | [`Smoothness`] | constants of A4 and A8 |
//! | `Λ_⋆` | in [`Spider::step`] | the step is `1/(2 Λ_⋆)` |

use crate::step::OFTEN_HEARD;
use whimbrel_core::{Error, Result};

/// `k_in = (1 + ω) √(m/2)`, rounded up: the loop length with the fewest conditional expectations for a
/// given accuracy (Appendix E.2).
pub fn usual_inner(rows: f64, omega: f64) -> u32 {
    up((1.0 + omega) * (rows / 2.0).sqrt())
}

/// `b = ⌈k_in/(1 + ω)²⌉` (Theorem 3).
pub fn usual_batch(inner: u32, omega: f64) -> u32 {
    up(f64::from(inner) / ((1.0 + omega) * (1.0 + omega)))
}

/// The default minibatch: Theorem 3's, and at least as many rows as the statistic has numbers. The
/// theorem's `L` is the root mean square of the rows' constants; in the frame where the mean statistic's
/// constant is about one, a row's statistic has a mean square of `q`.
pub fn auto_batch(inner: u32, omega: f64, q: usize) -> u32 {
    usual_batch(inner, omega).max(u32::try_from(q).unwrap_or(u32::MAX))
}

/// The default loop length. At Theorem 3's `b` the corrections of Appendix E.2's loop cost as much as its
/// full pass, `2 b k_in = m`; a larger minibatch gets the shorter loop that keeps this balance.
pub fn auto_inner(rows: f64, omega: f64, batch: u64) -> u32 {
    usual_inner(rows, omega).min(up(rows / (2.0 * batch as f64)))
}

/// Rounds up, except for whole numbers that exceed themselves by rounding errors of `ω`.
fn up(x: f64) -> u32 {
    ((x * (1.0 - 1e-12)).ceil() as u32).max(1)
}

/// The constants of A4 and A8.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Smoothness {
    /// The smallest eigenvalue of `B` in `∇W = −B h`.
    pub v_min: f64,
    /// The largest.
    pub v_max: f64,
    /// The Lipschitz constant of `∇W`.
    pub lipschitz_w: f64,
    /// `L`, with `L²` the mean over clients and rows of `L_ij²`.
    pub lipschitz: f64,
}

impl Smoothness {
    /// All constants one, if nothing is known.
    pub const UNIT: Self = Self { v_min: 1.0, v_max: 1.0, lipschitz_w: 1.0, lipschitz: 1.0 };
}

/// The settings of the step, beside the constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spider {
    /// `k_in`.
    pub inner: u32,
    /// `b`.
    pub batch: f64,
    /// `ω`.
    pub omega: f64,
    /// `α`.
    pub alpha: f64,
    /// `n`, or `1/Σ w_i²` for clients of unequal weights.
    pub clients: f64,
}

impl Spider {
    /// `1/(2 Λ_⋆)` with the `Λ_⋆` of Proposition 25, the largest step for which `1 − γ Λ_⋆ ≥ 1/2`; at
    /// Theorem 3's `b` and `α` its own (10), which rounds `k_in α²/b` up to one.
    pub fn step(&self, of: &Smoothness) -> f64 {
        let Self { omega, alpha, .. } = *self;
        let noise = if self.is_theorem_3() { 1.0 } else { self.noise() };
        let compressed = omega + noise / 8.0 * (1.0 + 10.0 * omega);
        let root8 = 8.0f64.sqrt();
        // Λ_⋆ = L_Ẇ/(2 v_min) + 2√2 (v_max/v_min) L/(√n α) (ω + k_in α²/(8b) (1 + 10 ω))^½    (54)
        let lambda = of.lipschitz_w / (2.0 * of.v_min)
            + root8 * of.v_max / of.v_min * of.lipschitz / (self.clients.sqrt() * alpha)
                * compressed.sqrt();
        1.0 / (2.0 * lambda)
    }

    /// Refuses memory steps that Proposition 25 does not cover.
    pub fn check(&self) -> Result<()> {
        // A default is 1/(1 + omega) itself; a number in a job may be rounded.
        if self.alpha <= 1.0 / (1.0 + self.omega) * (1.0 + 1e-9) {
            return Ok(());
        }
        Err(Error::config(format!(
            "alpha = {} is above 1/(1 + omega) = {:.4}, which no theorem covers",
            self.alpha,
            1.0 / (1.0 + self.omega)
        ))
        .hint("leave alpha = \"auto\" in [uplink], or give the step as a number"))
    }

    /// `k_in α²/b`.
    fn noise(&self) -> f64 {
        f64::from(self.inner) * self.alpha * self.alpha / self.batch
    }

    fn is_theorem_3(&self) -> bool {
        self.alpha == 1.0 / (1.0 + self.omega)
            && self.batch == f64::from(usual_batch(self.inner, self.omega))
    }
}

/// The default step: Proposition 25's with all constants one, without its `2 √2` and the factor 2 before it
/// (as [`auto_step`](crate::step::auto_step) omits Theorem 4's), and with `ω_p` and `α p` in place of `ω` and
/// `α`, as Theorem 4 extends Theorem 1. Rare participation ([`OFTEN_HEARD`]) keeps the constants. At most
/// one half with compression or sampling.
pub fn auto_spider_step(spider: &Spider, p: f64) -> f64 {
    let omega = crate::step::omega_with_sampling(spider.omega, p);
    let sampled = Spider { omega, alpha: spider.alpha * p, ..*spider };
    let lipschitz = if p < OFTEN_HEARD { 1.0 } else { 1.0 / 32f64.sqrt() };
    let constants = Smoothness { lipschitz, ..Smoothness::UNIT };
    sampled.step(&constants).min(if omega > 0.0 { 0.5 } else { 1.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_paper() {
        // m = 700, omega = 1: 2 sqrt(350) = 37.4; 38/4 = 9.5.
        assert_eq!(usual_inner(700.0, 1.0), 38);
        assert_eq!(usual_batch(38, 1.0), 10);
        // SPIDER-EM: b = k_in.
        assert_eq!(usual_batch(usual_inner(100.0, 0.0), 0.0), 8);
        assert_eq!((usual_inner(1.0, 0.0), usual_batch(1, 40.0)), (1, 1));
        // (1 + omega)^2 is 6 but for rounding.
        assert_eq!(usual_batch(18, 6f64.sqrt() - 1.0), 3);
    }

    #[test]
    fn a_larger_minibatch_has_a_shorter_loop() {
        // m = 800, omega = 1: 40 rounds of 10 rows, whose corrections take 800 expectations.
        let inner = usual_inner(800.0, 1.0);
        assert_eq!((inner, auto_batch(inner, 1.0, 6)), (40, 10));
        assert_eq!((auto_inner(800.0, 1.0, 10), auto_inner(800.0, 1.0, 1)), (40, 40));
        assert_eq!((auto_batch(inner, 1.0, 100), auto_inner(800.0, 1.0, 100)), (100, 4));
        assert_eq!(auto_inner(800.0, 1.0, 5000), 1);
    }

    #[test]
    fn at_its_batch_the_step_is_that_of_theorem_3() {
        let of = Smoothness { v_min: 0.5, v_max: 9.0, lipschitz_w: 2.0, lipschitz: 0.8 };
        let spider = Spider { inner: 20, batch: 4.0, omega: 1.4, alpha: 1.0 / 2.4, clients: 100.0 };
        // (10), as printed.
        let inside: f64 = 1.4 + (1.0 + 14.0) / 8.0;
        let bracket = 1.0 + 32.0f64.sqrt() * 9.0 / 2.0 * 0.8 / 10.0 * 2.4 * inside.sqrt();
        let printed = 0.5 / 2.0 / bracket;
        assert!((spider.step(&of) - printed).abs() < 1e-15, "{}", spider.step(&of));
        // Proposition 25 falls with the noise, and is close to it just beside that batch.
        let step = |batch| Spider { batch, ..spider }.step(&of);
        assert!(step(1.0) < step(3.0) && step(3.0) < printed && printed < step(5.0));
    }

    #[test]
    fn auto_is_careful_with_compression_sampling_and_small_batches() {
        let exact = Spider { inner: 10, batch: 10.0, omega: 0.0, alpha: 1.0, clients: 4.0 };
        let auto = |spider: Spider, p| auto_spider_step(&spider, p);
        let compressed = Spider { omega: 1.4, alpha: 1.0 / 2.4, ..exact };
        assert!(auto(exact, 1.0) <= 1.0);
        assert!(auto(compressed, 1.0) < auto(exact, 1.0));
        assert!(auto(compressed, 0.5) < auto(compressed, 1.0));
        assert!(auto(Spider { batch: 1.0, ..compressed }, 1.0) < auto(compressed, 1.0));
    }

    #[test]
    fn memory_steps_that_no_theorem_covers_are_refused() {
        let spider = Spider { inner: 10, batch: 3.0, omega: 1.0, alpha: 0.5, clients: 9.0 };
        assert!(spider.check().is_ok());
        assert!(Spider { alpha: 0.1, ..spider }.check().is_ok());
        assert!(Spider { alpha: 0.6, ..spider }.check().is_err());
    }
}
