//! The Gaussian mixture as a [`MixtureModel`].

use super::mstep::{column_scale, floor_packed, subtract_outer};
use super::{Covariance, Gmm, GmmData, GmmParameters};
use crate::mixture::{MixtureModel, check_finite, diagonals, floored, shares_of};
use whimbrel_core::linalg::{cholesky, packed_index, unpack};
use whimbrel_core::method::Artifact;
use whimbrel_core::{Error, Key, Result};

impl MixtureModel for Gmm {
    fn components(&self) -> usize {
        self.settings().components
    }

    fn narrow(&self, statistic: &[f64], moments: &[f64]) -> u32 {
        let mut bare = self.clone();
        if std::mem::take(&mut bare.settings.reg_covar) == 0.0 {
            return 0;
        }
        let found = bare.m_step(statistic, moments);
        found.map_or(0, |found| found.repairs - found.dead.len() as u32)
    }

    fn free_parameters(&self) -> usize {
        let (k, d) = (self.settings().components, self.columns());
        let covariances = match self.settings().covariance {
            Covariance::Known(_) => 0,
            Covariance::Tied => self.triangle(),
            Covariance::Diagonal => k * d,
            Covariance::Spherical => k,
            Covariance::Full => k * self.triangle(),
        };
        k - 1 + k * d + covariances
    }

    /// `d + d(d+1)/2`, or 0.
    fn moments_len(&self) -> usize {
        let needed = self.settings().want_moments || self.settings().covariance == Covariance::Tied;
        if needed { self.columns() + self.triangle() } else { 0 }
    }

    fn weights(&self, theta: &GmmParameters) -> Vec<f64> {
        theta.weights().to_vec()
    }

    fn point_len(&self) -> usize {
        self.columns()
    }

    fn points(&self, data: &GmmData) -> Vec<f64> {
        data.values()
    }

    fn point(&self, data: &GmmData, row: usize) -> Vec<f64> {
        data.row(row)
    }

    fn point_means(&self, moments: &[f64]) -> Vec<f64> {
        moments[..self.columns()].to_vec()
    }

    /// Equal weights, means drawn from the normal distribution with the pooled mean and
    /// covariance, and that covariance for every component (its diagonal or the known covariance, depending
    /// on the model).
    fn initial_from_moments(&self, moments: &[f64], key: Key) -> Result<GmmParameters> {
        let (mean, pooled) = self.pooled_from(moments)?;
        let (components, d) = (self.components(), self.columns());
        let mut root = unpack(&pooled, d);
        cholesky(&mut root, d)?;
        let mut stream = key.stream();
        let mut means = vec![0.0; components * d];
        for drawn in means.chunks_exact_mut(d) {
            stream.multivariate_normal(&mean, &root, drawn);
        }
        self.start(vec![1.0 / components as f64; components], means, pooled)
    }

    fn initial_from_points(&self, points: Vec<f64>, moments: &[f64]) -> Result<GmmParameters> {
        let (_, pooled) = self.pooled_from(moments)?;
        let components = self.components();
        self.start(vec![1.0 / components as f64; components], points, pooled)
    }

    fn initial_from_centres(
        &self,
        centres: &[f64],
        counts: &[f64],
        moments: &[f64],
    ) -> Result<GmmParameters> {
        let d = self.columns();
        let shares = shares_of(counts, centres, [self.components(), d])?;
        let (mean, pooled) = self.pooled_from(moments)?;
        let mut within = pooled.clone();
        for (share, centre) in shares.iter().zip(centres.chunks_exact(d)) {
            let shift: Vec<f64> = centre.iter().zip(&mean).map(|(c, m)| c - m).collect();
            subtract_outer(&mut within, *share, &shift);
        }
        floor_packed(
            &mut within,
            self.settings().covariance_floor,
            &scales_of(&pooled, moments, d),
        )?;
        let weights = floored(shares.into_iter(), self.settings().weight_floor);
        self.start(weights, centres.to_vec(), within)
    }

    fn initial_isotropic(
        &self,
        weights: &[f64],
        means: &[f64],
        variance: f64,
    ) -> Result<GmmParameters> {
        let (k, d) = (self.components(), self.columns());
        let identity = (0..d * d).map(|at| if at % (d + 1) == 0 { variance } else { 0.0 });
        let covariance = match self.settings().covariance {
            Covariance::Known(_) => Vec::new(),
            Covariance::Tied => identity.collect(),
            Covariance::Diagonal | Covariance::Spherical => vec![variance; k * d],
            Covariance::Full => identity.collect::<Vec<f64>>().repeat(k),
        };
        self.parameters(weights, means, &covariance)
    }

    fn artifact(&self, theta: &GmmParameters) -> Artifact {
        let (k, d) = (self.components(), self.columns());
        let covariances = || (0..k).flat_map(|i| theta.covariance(i)).collect::<Vec<f64>>();
        let artifact = Artifact::new("gmm").with("weights", &[k], theta.weights().to_vec());
        let artifact = artifact.with("means", &[k, d], theta.means().to_vec());
        match self.settings().covariance {
            Covariance::Known(_) | Covariance::Tied => {
                artifact.with("covariance", &[d, d], theta.covariance(0))
            }
            Covariance::Diagonal | Covariance::Spherical => {
                artifact.with("covariances", &[k, d], diagonals(&covariances(), d))
            }
            Covariance::Full => artifact.with("covariances", &[k, d, d], covariances()),
        }
    }
}

impl Gmm {
    /// The pooled mean and covariance (lower triangle, eigenvalues floored).
    fn pooled_from(&self, moments: &[f64]) -> Result<(Vec<f64>, Vec<f64>)> {
        let d = self.columns();
        if moments.len() != d + self.triangle() {
            return Err(Error::config("this start needs the pooled moments")
                .hint("set `want_moments` in the mixture's settings"));
        }
        check_finite("the pooled moments hold", moments)?;
        let (mean, second) = moments.split_at(d);
        let mut covariance = second.to_vec();
        subtract_outer(&mut covariance, 1.0, mean);
        let scales = scales_of(&covariance, moments, d);
        floor_packed(&mut covariance, self.settings().covariance_floor, &scales)?;
        Ok((mean.to_vec(), covariance))
    }

    fn start(&self, weights: Vec<f64>, means: Vec<f64>, packed: Vec<f64>) -> Result<GmmParameters> {
        let (components, d) = (self.components(), self.columns());
        let covariance = match self.settings().covariance {
            Covariance::Known(_) => self.known_triangle(),
            Covariance::Tied => packed,
            Covariance::Diagonal | Covariance::Spherical => {
                let variances: Vec<f64> = (0..d).map(|j| packed[packed_index(j, j)]).collect();
                variances.repeat(components)
            }
            Covariance::Full => packed.repeat(components),
        };
        self.assemble(weights, means, covariance).map_err(Error::numerical)
    }
}

/// The standard deviation of each column, from the pooled covariance and moments.
fn scales_of(covariance: &[f64], moments: &[f64], d: usize) -> Vec<f64> {
    let at = |j| packed_index(j, j);
    (0..d).map(|j| column_scale(covariance[at(j)], moments[d + at(j)])).collect()
}
