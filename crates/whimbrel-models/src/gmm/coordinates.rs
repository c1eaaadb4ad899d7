//! Unconstrained coordinates of the parameters: weights as logits, means, and fitted covariances as the
//! inverse of their Cholesky factor with a logarithmic diagonal (minus half the log-variances for a
//! diagonal mixture). Every vector of finite numbers is a valid parameter, so lossy compression is safe,
//! and the E-step needs no factorisation.

use super::factor::InverseFactor;
use super::{Covariance, Gmm, GmmParameters};
use crate::LatentModel;
use crate::mixture::{LOG_MAX, check_coordinates, softmax};
use whimbrel_core::linalg::{packed_index, packed_len};
use whimbrel_core::{Error, Result, math};

impl Gmm {
    pub(super) fn coordinates_of(&self, theta: &GmmParameters) -> Vec<f64> {
        let mut out: Vec<f64> = theta.weights().to_vec();
        math::ln_slice(&mut out);
        out.extend_from_slice(theta.means());
        match self.settings().covariance {
            Covariance::Known(_) => {}
            Covariance::Diagonal | Covariance::Spherical => {
                out.extend(theta.variances().iter().map(|v| -0.5 * math::ln(*v)));
            }
            Covariance::Tied | Covariance::Full => {
                for inverse in theta.inverse() {
                    let start = out.len();
                    out.extend_from_slice(&inverse.lower);
                    for i in 0..self.columns() {
                        let at = start + packed_index(i, i);
                        out[at] = math::ln(out[at]);
                    }
                }
            }
        }
        out
    }

    pub(super) fn parameters_at(&self, coordinates: &[f64]) -> Result<GmmParameters> {
        let (components, d) = (self.components(), self.columns());
        check_coordinates(coordinates, self.coordinates_len())?;
        let (logits, rest) = coordinates.split_at(components);
        let (means, logs) = rest.split_at(components * d);
        let weights = softmax(logits, self.settings().weight_floor);
        let means = means.to_vec();
        match (&self.known, &self.settings().covariance) {
            (Some(known), _) => {
                let inverse = vec![known.inverse.clone()];
                Ok(self.with_factors(weights, means, known.packed.clone(), inverse))
            }
            (None, covariance) if covariance.is_diagonal() => {
                let variance = |l: &f64| math::exp(-2.0 * l.clamp(-LOG_MAX, LOG_MAX));
                let variances = logs.iter().map(variance).collect();
                self.assemble(weights, means, variances).map_err(Error::numerical)
            }
            (None, _) => {
                let triangles = logs.chunks_exact(packed_len(d));
                let inverse = triangles.map(|t| inverse_factor_of(t, d)).collect();
                Ok(self.with_factors(weights, means, Vec::new(), inverse))
            }
        }
    }
}

/// An inverse factor from its triangle with a logarithmic diagonal.
fn inverse_factor_of(triangle: &[f64], d: usize) -> InverseFactor {
    let mut lower = triangle.to_vec();
    let log = |i: usize| triangle[packed_index(i, i)].clamp(-LOG_MAX, LOG_MAX);
    let mut diagonal: Vec<f64> = (0..d).map(log).collect();
    let half_log_det = diagonal.iter().fold(0.0, |sum, log| sum - log);
    math::exp_slice(&mut diagonal);
    for (i, x) in diagonal.into_iter().enumerate() {
        lower[packed_index(i, i)] = x;
    }
    InverseFactor { lower, half_log_det }
}
