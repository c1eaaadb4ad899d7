//! What FedEM asks of a Gaussian mixture beside its E- and M-step: a start and a final form.

use crate::fedem::Initial;
use whimbrel_core::method::Artifact;
use whimbrel_core::{Error, Key, Result};
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::{Covariance, Gmm, GmmData, GmmParameters};

/// Where a mixture starts.
#[derive(Clone, PartialEq, Debug)]
pub enum GmmStart {
    /// Means drawn from the pooled first two moments: needs nothing but sums.
    Moments,
    /// Rows of the data as means, as in the paper; raw rows leave the clients.
    Examples,
    /// These parameters, in the coordinates in which they travel (a file, or an earlier stage).
    Given(Vec<f64>),
}

impl Initial<Gmm> for GmmStart {
    fn offer(&self, model: &Gmm, data: &GmmData, key: Key) -> Result<Vec<f64>> {
        if *self != Self::Examples {
            return Ok(Vec::new());
        }
        let rows = model.rows(data);
        let window = model.window(data, 0, rows)?;
        let data = window.as_ref().unwrap_or(data);
        let drawn = key.stream().choose(rows, model.components().min(rows));
        Ok(drawn.into_iter().flat_map(|i| data.row(i)).collect())
    }

    fn first(
        &self,
        model: &Gmm,
        moments: &[f64],
        offers: &[(f64, Vec<f64>)],
        key: Key,
    ) -> Result<GmmParameters> {
        match self {
            Self::Moments => model.initial_from_moments(moments, key),
            Self::Given(coordinates) => model.from_vector(coordinates),
            Self::Examples => {
                let means = choose_examples(model, offers, key)?;
                model.initial_from_means(means, moments)
            }
        }
    }

    fn artifact(&self, model: &Gmm, theta: &GmmParameters) -> Artifact {
        gmm_artifact(model, theta)
    }

    fn weights(&self, _: &Gmm, theta: &GmmParameters) -> Vec<f64> {
        theta.weights().to_vec()
    }

    fn moments_len(&self, model: &Gmm) -> usize {
        model.moments_len()
    }

    fn offers_max(&self, model: &Gmm) -> usize {
        if *self == Self::Examples { model.components() * model.columns() } else { 0 }
    }
}

/// Uniform over all rows of all clients, without repeats: each draw picks a client by its rows
/// left, then the next of the rows it offered (which it drew at random itself).
fn choose_examples(model: &Gmm, offers: &[(f64, Vec<f64>)], key: Key) -> Result<Vec<f64>> {
    let d = model.columns();
    let mut left: Vec<f64> = offers.iter().map(|(rows, _)| *rows).collect();
    let mut taken = vec![0; offers.len()];
    let mut stream = key.stream();
    let mut means = Vec::with_capacity(model.components() * d);
    for _ in 0..model.components() {
        if left.iter().sum::<f64>() < 1.0 {
            return Err(Error::data(format!(
                "there are fewer rows than the {} components",
                model.components()
            )));
        }
        let client = stream.categorical(&left);
        let row = offers[client].1.get(taken[client] * d..(taken[client] + 1) * d);
        let row = row.ok_or_else(|| Error::peer("a client offered fewer rows than it must"))?;
        means.extend_from_slice(row);
        taken[client] += 1;
        left[client] -= 1.0;
    }
    Ok(means)
}

/// A mixture as named tensors: what `model.json` and the safetensors file hold.
pub fn gmm_artifact(model: &Gmm, theta: &GmmParameters) -> Artifact {
    let (k, d) = (model.components(), model.columns());
    let artifact = Artifact { kind: "gmm".into(), tensors: Vec::new() }
        .with("weights", &[k], theta.weights().to_vec())
        .with("means", &[k, d], theta.means().to_vec());
    match model.settings().covariance {
        Covariance::Known(_) | Covariance::Tied => {
            artifact.with("covariance", &[d, d], theta.covariance(0))
        }
        Covariance::Diagonal => {
            let variances = |i| {
                let matrix = theta.covariance(i);
                (0..d).map(move |j| matrix[j * d + j]).collect::<Vec<_>>()
            };
            artifact.with("covariances", &[k, d], (0..k).flat_map(variances).collect())
        }
        Covariance::Full => {
            let all = (0..k).flat_map(|i| theta.covariance(i)).collect();
            artifact.with("covariances", &[k, d, d], all)
        }
    }
}
