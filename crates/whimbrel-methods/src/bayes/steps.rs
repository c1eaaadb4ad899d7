//! The server's steps.

use super::{Global, Soul};
use crate::federated::Context;
use whimbrel_core::{Result, math};
use whimbrel_models::prior::{Density, Prior, Shape};
use whimbrel_models::sampler::Kernel;

/// `eta_k`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    pub phi: Schedule,
    pub beta: Schedule,
    /// The decay of both.
    pub decay: Decay,
    /// The exponent of `gamma_k`, which falls as `k^-exponent`.
    pub gamma_exponent: f64,
    pub rounds: u32,
}

/// The first step of one part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// One over a bound of the curvature: see `gamma` below.
    Auto,
    Fixed(f64),
}

/// `eta_k = eta_0 (1 + (k - from)/TIME)^-exponent` from round `from` on, a share of the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decay {
    pub exponent: f64,
    /// The share of the rounds after which the step falls.
    pub from: f64,
}

impl Default for Decay {
    fn default() -> Self {
        Self { exponent: 0.6, from: 0.5 }
    }
}

/// The step of a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// One over the smoothness of the client's potential; a fifth of it for preconditioned ULA, whose
    /// potential is about equally curved in all directions, so that the full step would double variances.
    Auto,
    /// A number for all clients.
    Fixed(f64),
    /// A multiple of one over the smoothness of the client's potential.
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

/// Rounds after which the step has fallen to `2^-exponent`.
const TIME: f64 = 10.0;
/// The step of `phi` for the mean loss of a row, if its curvature is unknown.
const PER_ROW: f64 = 0.1;

impl Steps {
    /// The decay factor of the steps in round `k`.
    pub fn factor(&self, k: u32) -> f64 {
        let since = f64::from(k) - self.decay.from * f64::from(self.rounds);
        if since > 0.0 && self.decay.exponent > 0.0 {
            math::exp(-self.decay.exponent * math::ln(1.0 + since / TIME))
        } else {
            1.0
        }
    }

    /// The decay factor of `gamma`.
    pub fn gamma_factor(&self, k: u32) -> f64 {
        if self.gamma_exponent > 0.0 {
            math::exp(-self.gamma_exponent * math::ln(1.0 + f64::from(k)))
        } else {
            1.0
        }
    }

    /// The move of every coordinate, for the gradient of the sum over clients.
    ///
    /// `Auto` is one over the curvature of `f` in (S1), coordinate by coordinate. In `phi` that of a
    /// linear representation is at most `lambda_max(sum_i X_i^T X_i) (lambda_max(C) + |mu|^2) / noise^2`,
    /// `mu` and `C` being mean and covariance of the prior; for other models it is unknown, and the step is
    /// 0.1 over the total number of rows. In `beta` it is that of a Gaussian: `b / s_j^2` of a mean,
    /// `2 b` of a log-scale, those along the axes of [`Prior::natural_moves`] where coordinates are
    /// correlated.
    ///
    /// `Auto` limits the move of a log-scale to one half per round. `(mean (z - m)^2/s^2 - 1)/2` is at least
    /// minus one half under full participation, but chains that lag behind a falling scale make the mean
    /// arbitrarily large.
    ///
    /// The logarithm of a learned noise has the same limit. If residuals at the start are many times the
    /// noise, an unlimited step makes the noise so large that chains stay in the prior and never learn its
    /// scale.
    ///
    /// [`Prior::natural_moves`]: whimbrel_models::prior::Prior::natural_moves
    pub(super) fn moves(
        &self,
        soul: &Soul,
        global: &Global,
        field: &[f64],
        context: &Context,
    ) -> Result<Vec<f64>> {
        let k = soul.round(context);
        let (factor, clients) = (self.factor(k), f64::from(context.clients.max(1)));
        let (_, beta) = soul.parts(&global.theta);
        let density = soul.prior.at(&beta)?;
        let phi = self.of_phi(soul, global, &density, (k, context.rows));
        let (of_phi, of_beta) = field.split_at(soul.model.shared());
        let mut moves: Vec<f64> = of_phi.iter().map(|field| -factor * phi * field).collect();
        if soul.model.learns_noise()
            && let (Some(log), Some(field)) = (moves.last_mut(), of_phi.last())
        {
            // The curvature of `n ln s + r^2/(2 s^2)` in `ln s` is `2 n` at its minimum.
            let by = -factor / (2.0 * context.rows.max(1) as f64) * field;
            *log = by.clamp(-LOG_SCALE_MAX, LOG_SCALE_MAX);
        }
        match (self.beta, soul.prior.shape()) {
            (Schedule::Fixed(eta), _) => {
                moves.extend(of_beta.iter().map(|field| -(factor * eta) * field));
            }
            (Schedule::Auto, Shape::Full) => {
                let mean: Vec<f64> = of_beta.iter().map(|field| field / clients).collect();
                moves.extend(soul.prior.natural_moves(&beta, &mean, (factor, LOG_SCALE_MAX))?);
            }
            (Schedule::Auto, _) => {
                let steps = inverse_curvatures(&soul.prior, &density);
                let each = steps.iter().zip(of_beta);
                moves.extend(each.map(|(step, field)| -(step * (factor / clients)) * field));
                limit(&soul.prior, &mut moves[soul.model.shared()..]);
            }
        }
        Ok(moves)
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
                let heads = density.widest_through(None)
                    + whimbrel_core::vector::norm2_squared(&density.mean());
                noise * noise / (curvature * heads).max(f64::MIN_POSITIVE)
            }
            (Schedule::Auto, None) => PER_ROW / rows.max(1) as f64,
        }
    }
}

/// The largest move of a log-scale in a round.
const LOG_SCALE_MAX: f64 = 0.5;

fn limit(prior: &Prior, moves: &mut [f64]) {
    for at in prior.log_scales() {
        moves[at] = moves[at].clamp(-LOG_SCALE_MAX, LOG_SCALE_MAX);
    }
}

/// One over the expected curvature of `-ln p(z | beta)` in each coordinate of `beta`, for independent
/// coordinates of `z`.
fn inverse_curvatures(prior: &Prior, density: &Density) -> Vec<f64> {
    let d = prior.dimension();
    match prior.shape() {
        Shape::Diagonal | Shape::Full => {
            let mut all = density.variances();
            all.resize(2 * d, 0.5);
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
    fn log_scales_move_by_a_half_at_most() {
        let prior = Prior::new(2, Shape::Diagonal).unwrap();
        let mut moves = [4.0, -4.0, 4.0, -0.4];
        limit(&prior, &mut moves);
        assert_eq!(moves, [4.0, -4.0, 0.5, -0.4]);
        let mut moves = [4.0, -4.0, -4.0, 0.4];
        limit(&prior, &mut moves);
        assert_eq!(moves, [4.0, -4.0, -0.5, 0.4]);
    }
}
