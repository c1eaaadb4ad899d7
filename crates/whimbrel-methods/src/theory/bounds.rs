//! The steps that the theorems allow.

use crate::spider::{Smoothness, Spider};
use crate::step::omega_with_sampling;
use whimbrel_core::{Error, Result};

/// The constants of the theorems.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub of: Smoothness,
    pub sigma2: f64,
    pub gap: f64,
    pub omega: f64,
    pub alpha: f64,
    pub p: f64,
    /// `1/Σ w_i²`, which is `n` for clients of equal weights.
    pub clients: f64,
    pub rounds: f64,
}

impl Bounds {
    /// Theorem 4 (Theorem 1 at p = 1); without compression and sampling the bound of (9).
    pub fn gamma_max(&self) -> Result<f64> {
        self.check()?;
        let omega_p = omega_with_sampling(self.omega, self.p);
        if omega_p == 0.0 {
            return Ok(2.0 * self.of.v_min / self.of.lipschitz_w);
        }
        let smooth = self.of.v_min / (2.0 * self.of.lipschitz_w);
        let root8 = 8.0f64.sqrt();
        // The theorem's alpha is 1/(1 + omega); step 4 of its proof has alpha itself.
        let compressed = self.alpha * self.p * self.clients.sqrt()
            / (root8 * self.of.lipschitz * omega_p.sqrt());
        Ok(smooth.min(compressed))
    }

    /// Corollary 2: the step that balances noise and progress. Without compression it is half the open
    /// bound (9), where the right-hand side is smallest.
    pub fn gamma(&self, gamma_max: f64) -> f64 {
        let omega_p = omega_with_sampling(self.omega, self.p);
        let largest = if omega_p == 0.0 { gamma_max / 2.0 } else { gamma_max };
        if self.sigma2 == 0.0 || self.gap == 0.0 {
            return largest.min(1.0);
        }
        let noise = self.rounds * self.of.lipschitz_w * (1.0 + 5.0 * omega_p) * self.sigma2;
        (self.gap * self.clients / noise).sqrt().min(largest).min(1.0)
    }

    /// Theorem 3 or Proposition 25, for outer loops of `inner` rounds and minibatches of `batch` rows.
    pub fn spider(&self, inner: u32, batch: f64) -> Result<f64> {
        self.check()?;
        if self.p < 1.0 {
            return Err(Error::config("the theorems about vr-fedem require full participation")
                .hint("set participation = 1 in [method], or give the step as a number"));
        }
        let Self { omega, alpha, clients, .. } = *self;
        let spider = Spider { inner, batch, omega, alpha, clients };
        spider.check()?;
        Ok(spider.step(&self.of).min(1.0))
    }

    fn check(&self) -> Result<()> {
        let Smoothness { v_min, lipschitz_w, .. } = self.of;
        if v_min > 0.0 && v_min.is_finite() && lipschitz_w > 0.0 {
            return Ok(());
        }
        Err(Error::numerical(
            "the constants of step = \"theory\" could not be estimated: the start is already a fixed point",
        ))
    }
}
