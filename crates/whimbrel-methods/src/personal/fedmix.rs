//! `fedmix`: every client's data are a mixture of `M` distributions with personal weights (Algorithms 1
//! and 2).
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `theta_m^k` | `w[m]` | component `m`, shared |
//! | `pi_t^k` | `own.weights` | the client's mixture weights |
//! | `q_t^k(z_i = m)` | `q` | responsibility of component `m` for sample `i` |
//!
//! Regression: component `m` has a noise variance `s_m^2`, shared behind the components. A client sends
//! `E q_m ((y - f_m)^2 - s_m^2)`, the M-step's change times the component's share: it vanishes where the
//! M-step's change does, and it does not disclose the client's weights, as sending `E q_m` would.

use super::rule::difference;
use super::{Adaptation, Ensemble, Gathered, LocalRule, Own, Round, Shape, ToTrain, Work};
use whimbrel_core::{Key, Result, math};

/// `fedmix`.
#[derive(Clone, Debug, PartialEq)]
pub struct FedMix {
    /// `M`.
    pub components: usize,
    /// The fit of the weights of a client that took no part in training.
    pub weighing: Weighing,
    /// A client trains and sends only components with a weight above this, and its heaviest one.
    pub send_above: f64,
}

impl Default for FedMix {
    fn default() -> Self {
        Self { components: 3, weighing: Weighing::Converged, send_above: 0.0 }
    }
}

/// The fit of an unseen client's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weighing {
    /// One E-step from uniform weights, as in the paper.
    Once,
    /// E-steps until the weights converge.
    Converged,
}

/// Most E-steps of an unseen client.
const STEPS_MAX: usize = 500;
/// The change of weights below which they have converged.
const CONVERGED: f64 = 1e-6;
/// The smallest noise variance, as a share of the largest.
const VARIANCE_MIN: f64 = 1e-6;

impl LocalRule for FedMix {
    fn blocks(&self, shape: &Shape<'_>) -> Vec<usize> {
        let noise = if shape.learner.classifies() { 0 } else { self.components };
        let models = shape.tensors.repeat(self.components);
        models.into_iter().chain((noise > 0).then_some(noise)).collect()
    }

    /// Components differ by their key.
    fn start(&self, shape: &Shape<'_>, gathered: &Gathered<'_>, key: Key) -> Result<Vec<f32>> {
        let each = (0..self.components as u64).flat_map(|m| shape.learner.start(key.child(m)));
        let mut w: Vec<f32> = each.collect();
        if !shape.learner.classifies() {
            w.extend(vec![gathered.variance as f32; self.components]);
        }
        Ok(w)
    }

    fn begin(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<Round> {
        let len = work.shape().len;
        let losses = self.losses(work, w);
        // q_t(z_i = m) ∝ pi_t^m exp(-l(h_m(x_i), y_i))                           (Alg. 1, l. 5)
        let q = self.responsibilities(&losses, &self.weights(own), w, len);
        // pi_t^m = (1/n_t) sum_i q_t(z_i = m)                                    (l. 6)
        let weights = means(&q, self.components);
        // theta_m: local training on losses weighted by q_t(z_i = m)             (l. 7)
        let n = work.samples.len();
        let model = |(m, model): (usize, &[f32])| {
            let weights = q[m * n..(m + 1) * n].to_vec();
            ToTrain { weights, ..ToTrain::new(model.to_vec()) }
        };
        let all = w.chunks_exact(len).take(self.components).enumerate();
        let models = all.filter(|(m, _)| self.sends(&weights, *m)).map(model).collect();
        let change = if work.learner.classifies() {
            Vec::new()
        } else {
            self.noise(&losses, &q, &w[self.components * len..])
        };
        Ok(Round { own: Own { weights, models: Vec::new() }, models, change })
    }

    fn end(&self, work: &mut Work<'_>, w: &[f32], round: Round) -> Result<(Own, Vec<f32>)> {
        let old = w.chunks_exact(work.shape().len).take(self.components).enumerate();
        let (mut trained, mut change) = (round.models.iter(), Vec::with_capacity(w.len()));
        for (m, old) in old {
            match self.sends(&round.own.weights, m).then(|| trained.next()).flatten() {
                Some(new) => change.extend(difference(&new.w, old)),
                None => change.resize(change.len() + old.len(), 0.0),
            }
        }
        change.extend(round.change);
        Ok((round.own, change))
    }

    fn adapt(&self, work: &mut Work<'_>, w: &[f32]) -> Result<Own> {
        let mut weights = self.weights(&Own::default());
        let (losses, len) = (self.losses(work, w), work.shape().len);
        for _ in 0..STEPS_MAX {
            let next = means(&self.responsibilities(&losses, &weights, w, len), self.components);
            let moved = next.iter().zip(&weights).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            weights = next;
            if self.weighing == Weighing::Once || moved < CONVERGED {
                break;
            }
        }
        Ok(Own { weights, models: Vec::new() })
    }

    fn adaptation(&self) -> Adaptation {
        Adaptation::Required
    }

    fn personal(&self, shape: &Shape<'_>, w: &[f32], own: &Own) -> Result<Ensemble> {
        let models = w[..self.components * shape.len].chunks_exact(shape.len);
        Ok(Ensemble { weights: self.weights(own), models: models.map(<[f32]>::to_vec).collect() })
    }

    fn sent(&self) -> &'static str {
        "each round: by how much training on these rows changed each shared model (not the weights with \
         which they are mixed here)"
    }
}

impl FedMix {
    /// Whether a client with these weights trains component `m`.
    fn sends(&self, weights: &[f64], m: usize) -> bool {
        let largest = || weights.iter().all(|weight| *weight <= weights[m]);
        self.send_above == 0.0 || weights[m] > self.send_above || largest()
    }

    /// The client's weights; uniform before its first round.
    fn weights(&self, own: &Own) -> Vec<f64> {
        if own.is_empty() {
            return vec![1.0 / self.components as f64; self.components];
        }
        own.weights.clone()
    }

    fn losses(&self, work: &mut Work<'_>, w: &[f32]) -> Vec<f32> {
        let len = work.shape().len;
        let models: Vec<&[f32]> = w[..self.components * len].chunks_exact(len).collect();
        work.losses_of_all(&models)
    }

    /// `q`, component after component.
    fn responsibilities(&self, losses: &[f32], weights: &[f64], w: &[f32], len: usize) -> Vec<f32> {
        let variances = floored(&w[self.components * len..]);
        let n = losses.len() / self.components;
        let mut scores = Vec::with_capacity(losses.len());
        for (m, losses) in losses.chunks_exact(n.max(1)).enumerate() {
            // -ln p(y | x) = scale loss + shift, up to a constant
            let (scale, shift) =
                variances.get(m).map_or((1.0, 0.0), |s2| (1.0 / s2, 0.5 * math::ln(*s2)));
            let prior = math::ln(weights[m]) - shift;
            scores.extend(losses.iter().map(|loss| prior - scale * f64::from(*loss)));
        }
        let mut q = vec![0.0; scores.len()];
        below_the_largest(&scores, &mut vec![f64::MIN; n], &mut q);
        whimbrel_nn::exp_all(&mut q);
        normalise(&mut q, &mut vec![0.0; n]);
        q
    }

    /// `E q_m ((y - f_m)^2 - s_m^2)` for each component.
    fn noise(&self, losses: &[f32], q: &[f32], variances: &[f32]) -> Vec<f32> {
        let n = losses.len() / self.components;
        let of = |m: usize| {
            let excess = |i: usize| 2.0 * f64::from(losses[i]) - f64::from(variances[m]);
            let each = (m * n..(m + 1) * n).map(|i| f64::from(q[i]) * excess(i));
            (each.sum::<f64>() / n as f64) as f32
        };
        (0..self.components).map(of).collect()
    }
}

/// The components' noise variances, bounded from below; empty for classes.
fn floored(variances: &[f32]) -> Vec<f64> {
    let largest = variances.iter().fold(0.0, |most: f32, x| most.max(*x));
    let floor = (VARIANCE_MIN * f64::from(largest)).max(f64::from(f32::MIN_POSITIVE));
    variances.iter().map(|x| f64::from(*x).max(floor)).collect()
}

whimbrel_core::kernel! {
    /// Scores, component after component, less the largest of each sample.
    fn below_the_largest(scores: &[f64], largest: &mut [f64], less: &mut [f32]) {
        let n = largest.len().max(1);
        for scores in scores.chunks_exact(n) {
            for (largest, score) in largest.iter_mut().zip(scores) {
                *largest = if *score > *largest { *score } else { *largest };
            }
        }
        for (scores, less) in scores.chunks_exact(n).zip(less.chunks_exact_mut(n)) {
            for ((largest, score), less) in largest.iter().zip(scores).zip(less) {
                *less = (score - largest) as f32;
            }
        }
    }
}

whimbrel_core::kernel! {
    /// Divides by each sample's sum over components; `sums` are zero.
    fn normalise(q: &mut [f32], sums: &mut [f32]) {
        let n = sums.len().max(1);
        for q in q.chunks_exact(n) {
            for (sum, q) in sums.iter_mut().zip(q) {
                *sum += q;
            }
        }
        for q in q.chunks_exact_mut(n) {
            for (sum, q) in sums.iter().zip(q) {
                *q /= sum;
            }
        }
    }
}

/// The mean of each component's responsibilities.
fn means(q: &[f32], components: usize) -> Vec<f64> {
    let n = q.len() / components;
    let mean = |q: &[f32]| q.iter().map(|q| f64::from(*q)).sum::<f64>() / n as f64;
    q.chunks_exact(n).map(mean).collect()
}
