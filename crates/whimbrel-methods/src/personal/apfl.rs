//! `apfl` (Deng, Kamani, Mahdavi, *Adaptive personalized federated learning*, 2020, Algorithm 1): a
//! client predicts with an interpolation of its own model and the shared one.
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `v_i` | `own.models[0]` | the client's model |
//! | `alpha_i` | `own.weights[0]` | its share in the interpolation |
//! | `w_i` | `local` | its copy of the shared model |

use super::rule::difference;
use super::work::check_finite;
use super::{Ensemble, LocalRule, Own, Round, Shape, Work};
use whimbrel_core::Result;

/// `apfl`.
#[derive(Clone, Debug, PartialEq)]
pub struct Apfl {
    /// The first share.
    pub alpha: f64,
    /// Whether a gradient step adapts the share in every round.
    pub adaptive: bool,
}

impl Default for Apfl {
    fn default() -> Self {
        Self { alpha: 0.5, adaptive: true }
    }
}

impl LocalRule for Apfl {
    fn begin(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<Round> {
        let mut local = w.to_vec();
        let mut v = own.model_or(w);
        let mut alpha = own.weights.first().copied().unwrap_or(self.alpha);
        let rate = work.rate as f32;
        let (mut gradient, mut losses) = (vec![0.0; w.len()], Vec::new());
        // alpha -= eta <v - w, grad f(mixed)>, at the first minibatch of a round
        let mut learn_alpha = self.adaptive;
        work.each_batch(|learner, room, batch, key| {
            losses.resize(batch.len(), 0.0);
            let mixed = interpolate(alpha, &v, &local);
            learner.gradient(&mixed, batch, None, key, room, &mut gradient, &mut losses);
            if learn_alpha {
                let along: f64 = v
                    .iter()
                    .zip(&local)
                    .zip(&gradient)
                    .map(|((v, w), g)| f64::from(v - w) * f64::from(*g))
                    .sum();
                alpha = (alpha - f64::from(rate) * along).clamp(0.0, 1.0);
                learn_alpha = false;
            }
            // v -= eta alpha grad f(mixed)
            let pull = rate * alpha as f32;
            v.iter_mut().zip(&gradient).for_each(|(v, g)| *v -= pull * g);
            // w -= eta grad f(w)
            learner.gradient(&local, batch, None, key, room, &mut gradient, &mut losses);
            local.iter_mut().zip(&gradient).for_each(|(w, g)| *w -= rate * g);
            Ok(())
        })?;
        check_finite(&v)?;
        check_finite(&local)?;
        let own = Own { weights: vec![alpha], models: vec![v] };
        Ok(Round { own, change: difference(&local, w), models: Vec::new() })
    }

    fn personal(&self, _: &Shape<'_>, w: &[f32], own: &Own) -> Result<Ensemble> {
        Ok(Ensemble::single(match (own.models.first(), own.weights.first()) {
            (Some(v), Some(alpha)) => interpolate(*alpha, v, w),
            _ => w.to_vec(),
        }))
    }
}

/// `alpha v + (1 - alpha) w`.
fn interpolate(alpha: f64, v: &[f32], w: &[f32]) -> Vec<f32> {
    let alpha = alpha as f32;
    v.iter().zip(w).map(|(v, w)| alpha * v + (1.0 - alpha) * w).collect()
}
