//! Initial parameters: from pooled moments, or from the clients' cluster centres.

use super::mstep::{column_scale, floor_packed, subtract_outer};
use super::{Covariance, Gmm, GmmParameters};
use crate::mixture::{check_finite, floored, shares_of};
use whimbrel_core::linalg::{cholesky, packed_index, unpack};
use whimbrel_core::{Error, Key, Result};

impl Gmm {
    /// Equal weights, means drawn from the normal distribution with the pooled mean and
    /// covariance, and that covariance for every component (its diagonal or the known covariance, depending
    /// on the model). Needs only sums over clients.
    pub fn initial_from_moments(&self, moments: &[f64], key: Key) -> Result<GmmParameters> {
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

    /// Equal weights, the given means (component after component), and the pooled covariance.
    pub fn initial_from_means(&self, means: Vec<f64>, moments: &[f64]) -> Result<GmmParameters> {
        let (_, pooled) = self.pooled_from(moments)?;
        let components = self.components();
        self.start(vec![1.0 / components as f64; components], means, pooled)
    }

    /// Weights proportional to `counts`, means at `centres` (component after component), and the pooled
    /// covariance minus the scatter between the centres.
    pub fn initial_from_centres(
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
