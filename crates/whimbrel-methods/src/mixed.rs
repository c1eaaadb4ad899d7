//! The mixture over mixed tables as a [`Mixture`].

use crate::mixture::Mixture;
use crate::prepare::Preparation;
use whimbrel_core::method::Artifact;
use whimbrel_core::{Key, Result};
use whimbrel_models::mixed::{Mixed, MixedData, MixedParameters, Numeric};

impl Mixture for Mixed {
    fn components(&self) -> usize {
        Mixed::components(self)
    }

    fn free_parameters(&self) -> usize {
        Mixed::free_parameters(self)
    }

    fn moments_len(&self) -> usize {
        Mixed::moments_len(self)
    }

    fn weights(&self, theta: &MixedParameters) -> Vec<f64> {
        theta.weights().to_vec()
    }

    fn point_len(&self) -> usize {
        Mixed::point_len(self)
    }

    fn point(&self, data: &MixedData, row: usize) -> Vec<f64> {
        Mixed::points(self, data)[row * Mixed::point_len(self)..][..Mixed::point_len(self)].to_vec()
    }

    fn points(&self, data: &MixedData) -> Vec<f64> {
        Mixed::points(self, data)
    }

    fn observed(&self, data: &MixedData) -> Option<Vec<bool>> {
        Mixed::observed(self, data)
    }

    fn point_scales(&self, moments: &[f64]) -> Option<Vec<f64>> {
        Some(Mixed::point_scales(self, moments))
    }

    fn point_gaps(&self, moments: &[f64]) -> Vec<usize> {
        Mixed::point_gaps(self, moments)
    }

    fn point_means(&self, moments: &[f64]) -> Vec<f64> {
        Mixed::point_means(self, moments)
    }

    fn initial_from_moments(&self, moments: &[f64], key: Key) -> Result<MixedParameters> {
        Mixed::initial_from_moments(self, moments, key)
    }

    fn initial_from_points(&self, points: Vec<f64>, moments: &[f64]) -> Result<MixedParameters> {
        let counts = vec![1.0; Mixed::components(self)];
        Mixed::initial_from_centres(self, &points, &counts, moments)
    }

    fn initial_from_centres(
        &self,
        centres: &[f64],
        counts: &[f64],
        moments: &[f64],
    ) -> Result<MixedParameters> {
        Mixed::initial_from_centres(self, centres, counts, moments)
    }

    /// Tensors: `weights`; `means` and `covariances` of numbers, `rates` of counts, `levels` with the
    /// probabilities of all levels, for the kinds of columns in the table, component after component.
    fn artifact(&self, theta: &MixedParameters, _: Option<&Preparation>) -> Artifact {
        let (k, d) = (Mixed::components(self), self.numbers().len());
        let mut artifact = Artifact::new("mixture").with("weights", &[k], theta.weights().to_vec());
        if let Some(gaussian) = theta.gaussian() {
            let all: Vec<f64> = (0..k).flat_map(|k| gaussian.covariance(k)).collect();
            artifact = artifact.with("means", &[k, d], gaussian.means().to_vec());
            artifact = match self.settings().numeric {
                Numeric::Full => artifact.with("covariances", &[k, d, d], all),
                Numeric::Diagonal => {
                    let diagonal = all.into_iter().enumerate();
                    let diagonal = diagonal.filter(|(at, _)| at % (d * d) % (d + 1) == 0);
                    artifact.with("covariances", &[k, d], diagonal.map(|(_, v)| v).collect())
                }
            };
        }
        for (name, values) in [("rates", theta.rates()), ("levels", theta.levels())] {
            if !values.is_empty() {
                artifact = artifact.with(name, &[k, values.len() / k], values.to_vec());
            }
        }
        artifact
    }
}
