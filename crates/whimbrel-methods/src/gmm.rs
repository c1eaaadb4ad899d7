//! The Gaussian mixture as a [`Mixture`].

use crate::mixture::Mixture;
use crate::prepare::Preparation;
use whimbrel_core::method::Artifact;
use whimbrel_core::{Key, Result};
use whimbrel_models::gmm::{Covariance, Gmm, GmmData, GmmParameters};

impl Mixture for Gmm {
    fn components(&self) -> usize {
        Gmm::components(self)
    }

    fn free_parameters(&self) -> usize {
        Gmm::free_parameters(self)
    }

    fn moments_len(&self) -> usize {
        Gmm::moments_len(self)
    }

    fn weights(&self, theta: &GmmParameters) -> Vec<f64> {
        theta.weights().to_vec()
    }

    fn point_len(&self) -> usize {
        self.columns()
    }

    fn point(&self, data: &GmmData, row: usize) -> Vec<f64> {
        data.row(row)
    }

    fn points(&self, data: &GmmData) -> Vec<f64> {
        data.values()
    }

    fn point_means(&self, moments: &[f64]) -> Vec<f64> {
        moments[..self.columns()].to_vec()
    }

    fn initial_from_moments(&self, moments: &[f64], key: Key) -> Result<GmmParameters> {
        Gmm::initial_from_moments(self, moments, key)
    }

    fn initial_from_points(&self, points: Vec<f64>, moments: &[f64]) -> Result<GmmParameters> {
        self.initial_from_means(points, moments)
    }

    fn initial_from_centres(
        &self,
        centres: &[f64],
        counts: &[f64],
        moments: &[f64],
    ) -> Result<GmmParameters> {
        Gmm::initial_from_centres(self, centres, counts, moments)
    }

    fn initial_isotropic(
        &self,
        weights: &[f64],
        means: &[f64],
        variance: f64,
    ) -> Result<GmmParameters> {
        let (k, d) = (Gmm::components(self), self.columns());
        let identity = (0..d * d).map(|at| if at % (d + 1) == 0 { variance } else { 0.0 });
        let covariance = match self.settings().covariance {
            Covariance::Known(_) => Vec::new(),
            Covariance::Tied => identity.collect(),
            Covariance::Diagonal | Covariance::Spherical => vec![variance; k * d],
            Covariance::Full => identity.collect::<Vec<f64>>().repeat(k),
        };
        self.parameters(weights, means, &covariance)
    }

    fn artifact(&self, theta: &GmmParameters, preparation: Option<&Preparation>) -> Artifact {
        gmm_artifact(self, theta, preparation)
    }
}

/// A mixture as the named tensors of `model.json` and the safetensors file, in the units of the data;
/// for projected rows in those of the components, with the means mapped back beside them.
fn gmm_artifact(model: &Gmm, theta: &GmmParameters, preparation: Option<&Preparation>) -> Artifact {
    let (k, d) = (model.components(), model.columns());
    let mut means = theta.means().to_vec();
    let shared = matches!(model.settings().covariance, Covariance::Known(_) | Covariance::Tied);
    let matrices = if shared { 1 } else { k };
    let mut covariances: Vec<f64> = (0..matrices).flat_map(|i| theta.covariance(i)).collect();
    if let Some(affine) = preparation.and_then(Preparation::affine) {
        affine.backward(&mut means);
        affine.covariances_backward(&mut covariances);
    }
    let artifact = Artifact::new("gmm").with("weights", &[k], theta.weights().to_vec()).with(
        "means",
        &[k, d],
        means,
    );
    let artifact = match model.settings().covariance {
        Covariance::Known(_) | Covariance::Tied => {
            artifact.with("covariance", &[d, d], covariances)
        }
        Covariance::Diagonal | Covariance::Spherical => {
            let diagonal = covariances.into_iter().enumerate();
            let diagonal = diagonal.filter(|(at, _)| at % (d * d) % (d + 1) == 0);
            artifact.with("covariances", &[k, d], diagonal.map(|(_, v)| v).collect())
        }
        Covariance::Full => artifact.with("covariances", &[k, d, d], covariances),
    };
    let Some(preparation) = preparation else { return artifact };
    let artifact = match preparation.affine() {
        Some(_) => artifact,
        None => {
            let back = preparation.backward(theta.means());
            artifact.with("data_means", &[k, preparation.kept().len()], back)
        }
    };
    preparation.save(artifact)
}
