//! The start of a run, and the constants of its steps there.

use super::{Global, Soul};
use whimbrel_codec::Scalar;
use whimbrel_core::linalg::symmetric_eigen;
use whimbrel_core::method::Artifact;
use whimbrel_core::{Error, Key, Result, Samples, vector};
use whimbrel_models::prior::Shape;

/// The radius of a ball, in units of one and the norm at the start.
const RADIUS: f64 = 100.0;

impl Soul {
    /// The global state before the first round, from the clients' sums.
    pub(super) fn start_from(&self, sums: &[f64], key: Key) -> Result<Global> {
        let mut theta = match &self.start {
            Some(phi) => phi.clone(),
            None => self.model.start(sums, key)?,
        };
        let mut phi = f32::norm2_squared(&theta).sqrt();
        if let Some(radius) = self.radius.phi.filter(|r| self.start.is_some() && phi > *r) {
            theta.iter_mut().for_each(|x| *x = (f64::from(*x) * radius / phi) as f32);
            phi = radius;
        }
        let mut beta = self.prior.start(self.prior_scale, key.child(1))?;
        let gaussian = !matches!(self.prior.shape(), Shape::Mixture { .. });
        if let Some(mean) = self.model.prior_mean(key).filter(|_| gaussian) {
            beta.iter_mut().zip(mean).for_each(|(beta, mean)| *beta = f64::from(mean));
        }
        theta.extend(beta.iter().map(|b| *b as f32));
        let beta = vector::norm2_squared(&beta).sqrt();
        let radii = (
            self.radius.phi.unwrap_or(RADIUS * (1.0 + phi)),
            self.radius.beta.unwrap_or(RADIUS * (1.0 + beta)),
        );
        for (name, norm, radius) in [("phi", phi, radii.0), ("beta", beta, radii.1)] {
            if norm > radius {
                let what =
                    format!("the start of {name} has norm {norm:.4}, above `radius` = {radius}");
                return Err(Error::config(what).hint("the projection must hold the start"));
            }
        }
        let mean = if self.average { vec![0.0; theta.len()] } else { Vec::new() };
        let scale = 1.0 + f32::norm2_squared(&theta).sqrt();
        let curvature = self.model.learner.start_curvature(sums)?;
        Ok(Global { theta, mean, weight: 0.0, radii, curvature, scale, rounds: 0 })
    }

    /// The `latent` strongest features of a linear representation that a stage delivered: with `lambda_j, v_j`
    /// the top eigenpairs of `phi^T C phi`, `C` the prior's variances, the rows `sqrt(lambda_j) v_j / scale`. Under
    /// a prior of that scale heads have the variances `lambda_j` along `v_j`. `None` without a delivery.
    pub fn strongest(
        &self,
        delivered: &Artifact,
        latent: usize,
        scale: f64,
    ) -> Result<Option<Vec<f32>>> {
        let Some(theta) = self.theta_of(delivered) else { return Ok(None) };
        let (phi, beta) = self.parts(&theta);
        let variances = self.prior.at(&beta)?.variances();
        let raw = phi.len() / variances.len();
        let mut square = vec![0.0; raw * raw];
        for (row, variance) in phi.chunks_exact(raw).zip(&variances) {
            let row: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
            for (sums, x) in square.chunks_exact_mut(raw).zip(&row) {
                vector::axpy(sums, variance * x, &row);
            }
        }
        let eigen = symmetric_eigen(&square, raw)?;
        let pairs = eigen.values.iter().zip(eigen.vectors.chunks_exact(raw)).rev();
        let rows = pairs.take(latent).flat_map(|(lambda, v)| {
            let length = lambda.max(0.0).sqrt() / scale;
            v.iter().map(move |v| (length * v) as f32)
        });
        Ok(Some(rows.collect()))
    }

    /// The constants of `step = "theory"` at a start, from the clients' training rows, with the noise
    /// of the last rounds: `L_f` bounds the curvature of `f` in `phi`, `L_i` that of a client's potential.
    pub fn constants(&self, clients: &[&Samples], key: Key) -> Result<Vec<(&'static str, f64)>> {
        let learner = &*self.model.learner;
        let mut sums = vec![0.0; learner.start_sums_len()];
        for data in clients {
            vector::axpy(&mut sums, 1.0, &learner.start_sums(data));
        }
        let global = self.start_from(&sums, key)?;
        let noise = self.noise_of(&global.theta, self.rounds);
        let (mut least, mut largest) = (f64::INFINITY, 0.0f64);
        for data in clients {
            let mut posterior = self.posterior(&global.theta, noise, data)?;
            let exact = posterior.smoothness(None, self.chains.batch);
            let found = exact.unwrap_or_else(|| {
                let mean = posterior.density().mean();
                let of_losses = posterior.curvature_of_losses(&mean);
                posterior.curvature(of_losses, self.chains.batch)
            });
            (least, largest) = (least.min(found), largest.max(found));
        }
        let (_, beta) = self.parts(&global.theta);
        let rows = clients.iter().map(|data| data.len() as u64).sum();
        let eta = self.steps.of_phi(self, &global, &self.prior.at(&beta)?, (self.rounds, rows));
        let gamma = |curvature| self.chains.gamma.at(curvature, self.chains.kernel);
        Ok(vec![
            ("L_f", 1.0 / eta),
            ("L_i_min", least),
            ("L_i_max", largest),
            ("eta_1", eta),
            ("gamma_1_min", gamma(largest)),
            ("gamma_1_max", gamma(least)),
        ])
    }
}
