//! The posterior of a linear head under a Gaussian prior, in closed form.

use whimbrel_core::linalg::{cholesky, invert_lower, solve_lower, solve_lower_transposed};
use whimbrel_core::{Result, Stream};
use whimbrel_models::prior::Density;

/// A Gaussian law of `z`.
pub(super) struct Gaussian {
    mean: Vec<f64>,
    /// `L^-1`, `L` the lower Cholesky factor of the precision: `L^-T e` has the law's covariance.
    inverse: Vec<f64>,
}

impl Gaussian {
    /// The law of the head on features with one row for each target: precision `H^T H/s^2 + P`, mean
    /// `precision^-1 (H^T y/s^2 + P m)`.
    pub fn new(features: &[f64], y: &[f32], noise: f64, prior: &Density) -> Result<Self> {
        let prior_mean = prior.mean();
        let (d, square) = (prior_mean.len(), noise * noise);
        // A Gaussian's gradient is linear: P e_j = gradient at m + e_j.
        let (mut precision, mut at, mut density) =
            (vec![0.0; d * d], prior_mean.clone(), prior.clone());
        for j in 0..d {
            at[j] += 1.0;
            density.potential_and_gradient(&at, &mut precision[j * d..][..d]);
            at[j] = prior_mean[j];
        }
        let mut mean: Vec<f64> =
            (0..d).map(|i| (0..d).map(|j| precision[i * d + j] * prior_mean[j]).sum()).collect();
        for (h, y) in features.chunks_exact(d).zip(y) {
            for i in 0..d {
                mean[i] += h[i] * f64::from(*y) / square;
                for j in 0..d {
                    precision[i * d + j] += h[i] * h[j] / square;
                }
            }
        }
        let mut factor = precision;
        cholesky(&mut factor, d)?;
        solve_lower(&factor, d, &mut mean);
        solve_lower_transposed(&factor, d, &mut mean);
        invert_lower(&mut factor, d);
        Ok(Self { mean, inverse: factor })
    }

    /// Points whose mean of any quadratic function is its expectation: `m +- sqrt(d)` times each column of
    /// a root of the covariance.
    pub fn points(&self) -> Vec<Vec<f64>> {
        let d = self.mean.len();
        let root = (d as f64).sqrt();
        let point = |(row, sign): (&[f64], f64)| {
            self.mean.iter().zip(row).map(|(m, l)| m + sign * root * l).collect()
        };
        let rows = self.inverse.chunks_exact(d).flat_map(|row| [(row, 1.0), (row, -1.0)]);
        rows.map(point).collect()
    }

    /// A draw.
    pub fn draw(&self, stream: &mut Stream) -> Vec<f64> {
        let mut z = self.mean.clone();
        for row in self.inverse.chunks_exact(self.mean.len()) {
            let e = stream.normal();
            z.iter_mut().zip(row).for_each(|(z, l)| *z += e * l);
        }
        z
    }
}
