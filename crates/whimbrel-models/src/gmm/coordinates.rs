//! The coordinates in which parameters travel: weights as logits, means as they are, and fitted
//! covariances as Cholesky factors with the logarithm of their diagonal (half log-variances for a
//! diagonal mixture). Every vector of finite numbers is a parameter, so a message that lost digits
//! to a codec still is one.

use super::{Covariance, Gmm, GmmParameters};
use whimbrel_core::linalg::{cholesky, packed_index, packed_len, unpack};
use whimbrel_core::{Error, Result, math};

/// Logits and log-diagonals are clipped to this: beyond it a component has no weight, or a
/// variance no number.
const LOG_MAX: f64 = 300.0;

impl Gmm {
    pub(super) fn coordinates_count(&self) -> usize {
        let fixed = self.components() * (1 + self.columns());
        fixed + if self.known.is_empty() { self.covariance_len() } else { 0 }
    }

    pub(super) fn coordinates_of(&self, theta: &GmmParameters) -> Vec<f64> {
        let mut out: Vec<f64> = theta.weights().to_vec();
        math::ln_slice(&mut out);
        out.extend_from_slice(theta.means());
        if !self.known.is_empty() {
            return out;
        }
        let covariance = theta.covariance_coordinates();
        match self.settings().covariance {
            Covariance::Diagonal => out.extend(covariance.iter().map(|v| 0.5 * math::ln(*v))),
            _ => {
                for packed in covariance.chunks_exact(packed_len(self.columns())) {
                    out.extend(log_cholesky(packed, self.columns()));
                }
            }
        }
        out
    }

    pub(super) fn parameters_at(&self, coordinates: &[f64]) -> Result<GmmParameters> {
        let (components, d) = (self.components(), self.columns());
        let expected = self.coordinates_count();
        if coordinates.len() != expected {
            return Err(Error::peer(format!(
                "{} coordinates given where the mixture has {expected}",
                coordinates.len()
            )));
        }
        let (logits, rest) = coordinates.split_at(components);
        let (means, factors) = rest.split_at(components * d);
        let covariance = match self.settings().covariance {
            Covariance::Known(_) => self.known.clone(),
            Covariance::Diagonal => {
                factors.iter().map(|l| math::exp(2.0 * l.clamp(-LOG_MAX, LOG_MAX))).collect()
            }
            _ => factors.chunks_exact(packed_len(d)).flat_map(|l| covariance_of(l, d)).collect(),
        };
        let weights = softmax(logits, self.settings().weight_floor);
        self.assemble(weights, means.to_vec(), covariance).map_err(Error::numerical)
    }
}

/// Weights from logits, none below the floor.
fn softmax(logits: &[f64], floor: f64) -> Vec<f64> {
    let top = logits.iter().fold(f64::NEG_INFINITY, |m, l| m.max(*l));
    let mut weights: Vec<f64> = logits.iter().map(|l| math::exp(l - top)).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|w| *w = (*w / sum).max(floor));
    let floored: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|w| *w /= floored);
    weights
}

/// The Cholesky factor of a covariance given by its lower triangle, with a logarithmic diagonal.
fn log_cholesky(packed: &[f64], d: usize) -> Vec<f64> {
    let mut l = unpack(packed, d);
    cholesky(&mut l, d).expect("parameters hold positive definite covariances");
    let mut out = Vec::with_capacity(packed.len());
    for i in 0..d {
        out.extend_from_slice(&l[i * d..i * d + i]);
        out.push(math::ln(l[i * d + i]));
    }
    out
}

/// The lower triangle of `L L'`.
fn covariance_of(coordinates: &[f64], d: usize) -> Vec<f64> {
    let mut l = coordinates.to_vec();
    for i in 0..d {
        let at = packed_index(i, i);
        l[at] = math::exp(l[at].clamp(-LOG_MAX, LOG_MAX));
    }
    let row = |i: usize| &l[packed_index(i, 0)..=packed_index(i, i)];
    let mut out = Vec::with_capacity(l.len());
    for i in 0..d {
        for j in 0..=i {
            out.push(row(j).iter().zip(row(i)).map(|(a, b)| a * b).sum());
        }
    }
    out
}
