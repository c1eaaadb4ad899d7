//! The server's steps.

use super::{Global, Soul};
use crate::federated::Context;
use whimbrel_core::math;
use whimbrel_models::prior::{Density, Prior, Shape};
use whimbrel_models::sampler::Kernel;

/// `eta_k`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    /// That of `phi`.
    pub phi: Schedule,
    /// That of `beta`.
    pub beta: Schedule,
    /// How they fall.
    pub decay: Decay,
    /// How `gamma_k` falls: `k^-exponent`.
    pub gamma_exponent: f64,
    /// Rounds planned.
    pub rounds: u32,
}

/// The first step of one part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// One over a bound of the curvature: see [`Steps::at`].
    Auto,
    /// A number.
    Fixed(f64),
}

/// `eta_k = eta_0 (1 + (k - from)/TIME)^-exponent` once `k` is at `from`, a share of the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decay {
    /// How fast.
    pub exponent: f64,
    /// From which share of the rounds on.
    pub from: f64,
}

/// The step of a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// One over the smoothness of the client's own potential; of preconditioned ULA a fifth of it, since its
    /// potential is about as curved in every direction and the whole step would double every variance.
    Auto,
    /// For every client.
    Fixed(f64),
    /// So many times one over the smoothness of the client's own potential.
    Share(f64),
}

impl Rate {
    /// For a potential of this curvature.
    pub(super) fn at(self, curvature: f64, kernel: Option<Kernel>) -> f64 {
        let share = match self {
            Self::Fixed(gamma) => return gamma,
            Self::Auto if kernel == Some(Kernel::PreconditionedUla) => 0.2,
            Self::Auto => 1.0,
            Self::Share(share) => share,
        };
        share / curvature.max(f64::MIN_POSITIVE)
    }
}

/// Rounds after which a step that falls has fallen to `2^-exponent`.
const TIME: f64 = 10.0;
/// The step of `phi` where nothing is known about its curvature, for the mean loss of a row.
const PER_ROW: f64 = 0.1;

impl Steps {
    /// By how much the steps of round `k` have fallen.
    pub fn factor(&self, k: u32) -> f64 {
        let since = f64::from(k) - self.decay.from * f64::from(self.rounds);
        match since > 0.0 && self.decay.exponent > 0.0 {
            true => math::exp(-self.decay.exponent * math::ln(1.0 + since / TIME)),
            false => 1.0,
        }
    }

    /// By how much `gamma` has fallen.
    pub fn gamma_factor(&self, k: u32) -> f64 {
        match self.gamma_exponent > 0.0 {
            true => math::exp(-self.gamma_exponent * math::ln(1.0 + f64::from(k))),
            false => 1.0,
        }
    }

    /// The step of every coordinate, for the sum over clients.
    ///
    /// `Auto` is one over the curvature of `f` in (S1), coordinate by coordinate. In `phi` that of a
    /// linear representation is at most `lambda_max(sum_i X_i^T X_i) (max_j s_j^2 + |mu|^2) / noise^2`,
    /// `mu` and `s` being mean and scales of the prior; of another model it is unknown, and the step is
    /// a tenth over the rows of everyone. In `beta` it is that of a Gaussian: `b / s_j^2` of a mean,
    /// `2 b` of a log-scale.
    pub fn at(
        &self,
        soul: &Soul,
        global: &Global,
        density: &Density,
        context: &Context,
    ) -> Vec<f64> {
        let (factor, clients) = (self.factor(context.k), f64::from(context.clients.max(1)));
        let phi = self.of_phi(soul, global, density, (context.k, context.rows));
        let mut steps = vec![factor * phi; soul.model.shared()];
        if soul.model.learns_noise()
            && let Some(log) = steps.last_mut()
        {
            // The curvature of `n ln s + r^2/(2 s^2)` in `ln s` is `2 n` at its minimum.
            *log = factor / (2.0 * context.rows.max(1) as f64);
        }
        steps.extend(match self.beta {
            Schedule::Fixed(eta) => vec![factor * eta; soul.prior.parameters()],
            Schedule::Auto => {
                let mut all = inverse_curvatures(soul, density);
                all.iter_mut().for_each(|step| *step *= factor / clients);
                all
            }
        });
        steps
    }

    /// `Auto` lets a log-scale grow by at most a half in a round. It falls by no more than that, since
    /// `(mean (z - m)^2/s^2 - 1)/2` is at least minus a half; but chains that lag behind a scale that has
    /// fallen can make the mean as large as they like.
    pub(super) fn limit(&self, prior: &Prior, moves: &mut [f64]) {
        if self.beta == Schedule::Auto {
            prior.log_scales().into_iter().for_each(|at| moves[at] = moves[at].min(0.5));
        }
    }

    /// The step of `phi` in round `k`, before it falls.
    pub(super) fn of_phi(
        &self,
        soul: &Soul,
        global: &Global,
        density: &Density,
        (k, rows): (u32, u64),
    ) -> f64 {
        match (self.phi, global.curvature) {
            (Schedule::Fixed(eta), _) => eta,
            (Schedule::Auto, Some(curvature)) => {
                let noise = soul.noise_of(&global.theta, k);
                let (mean, spread) = (density.mean(), density.variances());
                let heads = spread.into_iter().fold(0.0, f64::max)
                    + whimbrel_core::vector::norm2_squared(&mean);
                noise * noise / (curvature * heads).max(f64::MIN_POSITIVE)
            }
            (Schedule::Auto, None) => PER_ROW / rows.max(1) as f64,
        }
    }
}

/// One over the expected curvature of `-ln p(z | beta)` in each coordinate of `beta`.
fn inverse_curvatures(soul: &Soul, density: &Density) -> Vec<f64> {
    let d = soul.prior.dimension();
    match soul.prior.shape() {
        Shape::Diagonal => {
            let mut all = density.variances();
            all.resize(2 * d, 0.5);
            all
        }
        Shape::Full => {
            // Means are coupled by the covariance: one over its largest curvature.
            let variance = 1.0 / density.curvature();
            let mut all = vec![variance; d];
            for i in 0..d {
                // The curvature in `L_ij` is about the precision, in `ln L_ii` it is 2.
                all.extend((0..i).map(|_| variance));
                all.push(0.5);
            }
            all
        }
        Shape::Mixture { components } => {
            // A component's curvature is its weight's share of a Gaussian's, a logit's at most 1/4.
            let variance = 1.0 / density.curvature();
            let mut all = vec![1.0; components];
            for _ in 0..components {
                all.extend((0..d).map(|_| variance));
                all.extend((0..d).map(|_| 0.5));
            }
            all
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_scales_grow_by_a_half_at_most_unless_a_job_gives_the_step() {
        let prior = Prior::new(2, Shape::Diagonal).unwrap();
        let decay = Decay { exponent: 0.0, from: 1.0 };
        let of = |beta: Schedule| {
            let phi = Schedule::Auto;
            let steps = Steps { phi, beta, decay, gamma_exponent: 0.0, rounds: 1 };
            let mut moves = [4.0, -4.0, 4.0, -0.4];
            steps.limit(&prior, &mut moves);
            moves
        };
        assert_eq!(of(Schedule::Auto), [4.0, -4.0, 0.5, -0.4]);
        assert_eq!(of(Schedule::Fixed(0.1)), [4.0, -4.0, 4.0, -0.4]);
    }
}
