//! `γ_k`: given, or automatic. The automatic step is Theorem 4's compression bound with `L = 1` and
//! without its `2 √2` (with variance reduction Proposition 25's, without its `4 √2`), at most one half,
//! inside a trust region.
//!
//! `L` is about one in the frame of the complete-data Fisher information; the trust region covers the
//! rest. With `λ` the eigenvalues of the direction's moment matrices relative to the statistic's
//! ([`StepRange`]), the step is at most `0.2/−λ_min` and `0.25/λ_max`: the exact field has `λ_min ≥ −1`,
//! and noise may have less. The step then depends on the direction and is biased, but fixed points
//! stay fixed.

use super::{Em, Global};
use crate::federated::Context;
use crate::spider::{Spider, auto_spider_step};
use crate::step::{Schedule, auto_step};
use whimbrel_codec::channel::gradient_alpha;
use whimbrel_core::{Result, math};
use whimbrel_models::{MixtureModel, StepRange};

/// The largest relative decrease and increase of a moment matrix along any direction.
const SHRINK_MAX: f64 = 0.2;
const GROW_MAX: f64 = 0.25;
/// A recursion whose step would decrease a moment by more is too far from its full pass.
const DRIFT_MAX: f64 = 0.1;

/// The automatic step under minibatches falls like `(1 + k/20)^-0.6`, slower than `1/k`.
const MINIBATCH_POWER: f64 = 0.6;
const MINIBATCH_DELAY: f64 = 20.0;

/// The server's step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Step {
    /// Given by the job.
    Given(Schedule),
    /// Given, inside the trust region: under the noise of differential privacy.
    Within(Schedule),
    /// Derived from the noise of compression and sampling.
    Auto(AutoStep),
}

impl From<Schedule> for Step {
    fn from(schedule: Schedule) -> Self {
        Self::Given(schedule)
    }
}

/// Settings of the automatic step, beside the clients' weights.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AutoStep {
    /// The codec's variance constant.
    pub omega: f64,
    /// The probability of participation.
    pub p: f64,
    /// Variance reduction; the number of clients in it is ignored.
    pub spider: Option<Spider>,
    pub downlink: DownNoise,
    /// Whether it falls, for minibatches without variance reduction.
    pub falls: bool,
    /// Whether the trust region applies: if the field is noisy.
    pub trusts: bool,
}

/// The noise of a downlink, by its codec's variance constant `omega_dwn`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum DownNoise {
    /// An exact downlink.
    None,
    /// The server keeps its exact state; clients compute near it.
    Preserved(f64),
    /// The server's state is the decoded one.
    Degraded(f64),
    /// A codec without such a constant.
    Unknown,
}

impl DownNoise {
    /// The largest steps of MCM and of degraded updates (Philippenko and Dieuleveut 2021, section 3) with
    /// `L = 1`, without their factors 8 and more, and at most one half. With a memory the step is at
    /// most the memory's own.
    fn step_max(self, omega_up: f64, n_eff: f64) -> f64 {
        match self {
            Self::None => 1.0,
            Self::Unknown => 0.5,
            Self::Preserved(omega) => {
                let both = (1.0 + omega) * (1.0 + omega + omega_up / n_eff).sqrt();
                (1.0 / both).min(gradient_alpha(omega))
            }
            Self::Degraded(omega) => (1.0 / ((1.0 + omega) * (1.0 + omega_up / n_eff))).min(0.5),
        }
    }
}

impl AutoStep {
    /// The step of round `k` before the trust region, for `n_eff = 1/Σ w_i²` clients.
    pub fn at(&self, k: u32, n_eff: f64) -> f64 {
        let bound = match self.spider {
            Some(spider) => auto_spider_step(&Spider { clients: n_eff, ..spider }, self.p),
            None => auto_step(self.omega, self.p, n_eff),
        };
        let first = bound.min(self.downlink.step_max(self.omega, n_eff));
        if !self.falls {
            return first;
        }
        first * math::pow(1.0 + f64::from(k) / MINIBATCH_DELAY, -MINIBATCH_POWER)
    }
}

/// The step inside the trust region.
fn within(gamma: f64, reach: &StepRange) -> f64 {
    gamma.min(SHRINK_MAX / reach.lowest.abs()).min(GROW_MAX / reach.highest.abs())
}

impl<M: MixtureModel> Em<M> {
    /// `γ_{k+1}` for this direction, and whether the recursion must start over.
    pub(super) fn step_along(
        &self,
        global: &mut Global,
        field: &[f64],
        context: &Context,
    ) -> Result<(f64, bool)> {
        let (gamma, trusts) = match &self.step {
            Step::Given(schedule) => (schedule.at(context.k), false),
            Step::Within(schedule) => (schedule.at(context.k), true),
            Step::Auto(auto) => {
                (auto.at(context.k, global.effective_clients(context.total)), auto.trusts)
            }
        };
        if !trusts {
            return Ok((gamma, false));
        }
        let reach = self.model.step_range(&global.s_hat, field, &global.moments(context.total))?;
        let Some(reach) = reach else { return Ok((gamma, false)) };
        global.note_dead(&reach.outside);
        Ok((within(gamma, &reach), -gamma * reach.lowest > DRIFT_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trust_region_bounds_both_ends() {
        let reach = |lowest, highest| StepRange { lowest, highest, outside: Vec::new() };
        assert_eq!(within(0.5, &reach(0.0, 0.0)), 0.5);
        assert_eq!(within(0.5, &reach(-0.4, 0.5)), 0.5);
        assert_eq!(within(0.5, &reach(-4.0, 0.0)), 0.05);
        assert_eq!(within(0.5, &reach(-4.0, 50.0)), 0.005);
    }

    #[test]
    fn a_dominant_client_counts_as_few_and_downlinks_bound_the_step() {
        let auto = AutoStep {
            omega: 7.0,
            p: 1.0,
            spider: None,
            downlink: DownNoise::None,
            falls: false,
            trusts: true,
        };
        // Ten clients, one with nine tenths of the rows: n_eff = 1/(0.81 + 9/8100) = 1.2329.
        let n_eff = 1.0 / (0.81 + 9.0 * (0.1f64 / 9.0).powi(2));
        let bound = n_eff.sqrt() / (8.0 * 7f64.sqrt());
        assert!((auto.at(0, n_eff) - bound).abs() < 1e-15);
        assert!(auto.at(0, n_eff) < 0.4 * auto.at(0, 10.0));
        assert_eq!(AutoStep { omega: 0.0, ..auto }.at(3, n_eff), 1.0);
        assert_eq!(AutoStep { omega: 0.01, ..auto }.at(3, 100.0), 0.5);
        // omega_dwn = 3 and omega/n_eff = 0.7, with a memory: 1/(4 sqrt(4.7)) = 0.1153 and 1/8.
        let down = |downlink| AutoStep { downlink, p: 1.0, ..auto };
        assert!(
            (down(DownNoise::Preserved(3.0)).at(0, 10.0) - 1.0 / (4.0 * 4.7f64.sqrt())).abs()
                < 1e-15
        );
        assert_eq!(AutoStep { omega: 0.01, ..down(DownNoise::Preserved(1.0)) }.at(0, 100.0), 0.25);
        assert_eq!(AutoStep { omega: 0.5, ..down(DownNoise::Degraded(3.0)) }.at(0, 0.5), 0.125);
        assert_eq!(AutoStep { omega: 0.0, falls: true, ..auto }.at(20, 9.0), 2f64.powf(-0.6));
    }
}
