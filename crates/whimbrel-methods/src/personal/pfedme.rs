//! `pfedme` (Dinh, Tran, Nguyen, *Personalized federated learning with Moreau envelopes*, NeurIPS 2020,
//! Algorithm 1): the shared model is the centre of the clients' models.
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `theta_i` | `own.models[0]` | the client's model |
//! | `w_{i,r}` | `centre` | its copy of the shared model |
//! | `lambda` | `lambda` | the pull towards the centre |
//! | `K` | `inner_steps` | gradient steps on `f(theta; batch) + lambda/2 ||theta - w||^2` |
//! | `R` | minibatches of the local training | |
//! | `eta` | the local step | |
//! | `beta` | the server's step | |

use super::ensemble::smoothness;
use super::rule::difference;
use super::work::check_finite;
use super::{Adaptation, LocalRule, Own, Round, Work};
use whimbrel_core::{Key, Result};

/// `pfedme`.
#[derive(Clone, Debug, PartialEq)]
pub struct PFedMe {
    pub lambda: f64,
    /// `K`.
    pub inner_steps: u32,
    /// The step of the inner solver; default: `1/(L + lambda)`, with the smoothness `L` of the client's
    /// loss.
    pub inner_rate: Option<f64>,
}

impl Default for PFedMe {
    fn default() -> Self {
        Self { lambda: 15.0, inner_steps: 5, inner_rate: None }
    }
}

const POWER: u64 = 0x90E2;

impl LocalRule for PFedMe {
    fn begin(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<Round> {
        let rate = self.rate(work, w, own)?;
        let mut centre = w.to_vec();
        let mut theta = own.model_or(w);
        self.solve(work, &mut centre, &mut theta, rate, work.rate * self.lambda)?;
        let own = Own { weights: vec![rate], models: vec![theta] };
        Ok(Round { own, change: difference(&centre, w), models: Vec::new() })
    }

    /// One local solve around the shared model.
    fn adapt(&self, work: &mut Work<'_>, w: &[f32]) -> Result<Own> {
        let (rate, mut theta) = (self.rate(work, w, &Own::default())?, w.to_vec());
        self.solve(work, &mut w.to_vec(), &mut theta, rate, 0.0)?;
        Ok(Own { weights: vec![rate], models: vec![theta] })
    }

    fn adaptation(&self) -> Adaptation {
        Adaptation::Optional
    }
}

impl PFedMe {
    fn rate(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<f64> {
        if let Some(rate) = self.inner_rate.or(own.weights.first().copied()) {
            return Ok(rate);
        }
        Ok(1.0 / (smoothness(work, w, Key::root(POWER))? + self.lambda))
    }

    /// Each minibatch: `theta ~ prox(centre)` by `K` steps, then `centre -= pull (centre - theta)`.
    fn solve(
        &self,
        work: &mut Work<'_>,
        centre: &mut [f32],
        theta: &mut [f32],
        rate: f64,
        pull: f64,
    ) -> Result<()> {
        let (rate, lambda, pull) = (rate as f32, self.lambda as f32, pull as f32);
        let (mut gradient, mut losses) = (vec![0.0; theta.len()], Vec::new());
        let steps = self.inner_steps;
        work.each_batch(|learner, room, batch, key| {
            losses.resize(batch.len(), 0.0);
            for k in 0..steps {
                let key = key.child(u64::from(k));
                learner.gradient(theta, batch, None, key, room, &mut gradient, &mut losses);
                for ((theta, g), c) in theta.iter_mut().zip(&gradient).zip(&*centre) {
                    *theta -= rate * (g + lambda * (*theta - c));
                }
            }
            centre.iter_mut().zip(&*theta).for_each(|(c, theta)| *c -= pull * (*c - theta));
            Ok(())
        })?;
        check_finite(theta)?;
        check_finite(centre)
    }
}
