//! What FedEM asks of a Gaussian mixture beside its E- and M-step: a start and a final form.

use crate::fedem::Initial;
use crate::prepare::Preparation;
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

/// A start, and the map from rows of the data to those of the fit.
#[derive(Clone, PartialEq, Debug)]
pub struct GmmInitial {
    /// Where the mixture starts.
    pub start: GmmStart,
    /// What is done to the rows, where the job asks for it.
    pub preparation: Option<Preparation>,
}

impl GmmInitial {
    /// A fit in the units of the data.
    pub fn plain(start: GmmStart) -> Self {
        Self { start, preparation: None }
    }
}

impl Initial<Gmm> for GmmInitial {
    fn offer(&self, model: &Gmm, data: &GmmData, key: Key) -> Result<Vec<f64>> {
        if self.start != GmmStart::Examples {
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
        match &self.start {
            GmmStart::Moments => model.initial_from_moments(moments, key),
            GmmStart::Given(coordinates) => model.from_vector(coordinates),
            GmmStart::Examples => {
                let means = choose_examples(model, offers, key)?;
                model.initial_from_means(means, moments)
            }
        }
    }

    fn artifact(&self, model: &Gmm, theta: &GmmParameters) -> Artifact {
        gmm_artifact(model, theta, self.preparation.as_ref())
    }

    fn weights(&self, _: &Gmm, theta: &GmmParameters) -> Vec<f64> {
        theta.weights().to_vec()
    }

    fn shares(&self, model: &Gmm, statistic: &[f64]) -> Vec<f64> {
        statistic[..model.components()].to_vec()
    }

    fn moments_len(&self, model: &Gmm) -> usize {
        model.moments_len()
    }

    fn log_scale(&self) -> f64 {
        self.preparation.as_ref().map_or(0.0, Preparation::log_scale)
    }

    fn offers_max(&self, model: &Gmm) -> usize {
        if self.start == GmmStart::Examples { model.components() * model.columns() } else { 0 }
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

/// A mixture as named tensors: what `model.json` and the safetensors file hold. In the units of the
/// data, or, where rows were projected, of the components, with the means mapped back beside them.
pub fn gmm_artifact(
    model: &Gmm,
    theta: &GmmParameters,
    preparation: Option<&Preparation>,
) -> Artifact {
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
        Covariance::Diagonal => {
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
