//! What the stages of a fit ask of a mixture beside its E- and M-step: starts, points that clusters are
//! made of, and a final form.

use crate::fedem::Initial;
use crate::prepare::Preparation;
use whimbrel_core::method::Artifact;
use whimbrel_core::{Error, Key, Result};
use whimbrel_models::LatentModel;

/// A mixture with as many components as it is told.
pub trait Mixture: LatentModel + Clone {
    /// Number of components.
    fn components(&self) -> usize;
    /// How many numbers are fitted.
    fn free_parameters(&self) -> usize;
    /// The length of [`moments`](LatentModel::moments).
    fn moments_len(&self) -> usize;
    /// The weights of the components.
    fn weights(&self, theta: &Self::Parameters) -> Vec<f64>;

    /// How many numbers a row has as a point, of which clusters are made.
    fn point_len(&self) -> usize;
    /// One row as a point.
    fn point(&self, data: &Self::Data, row: usize) -> Vec<f64>;
    /// All rows as points.
    fn points(&self, data: &Self::Data) -> Vec<f64>;
    /// Which numbers of the rows' points were observed; none where all were.
    fn observed(&self, _data: &Self::Data) -> Option<Vec<bool>> {
        None
    }
    /// What the numbers of a point are divided by before distances are taken, for rows with these
    /// moments; none where they are taken as they are.
    fn point_scales(&self, _moments: &[f64]) -> Option<Vec<f64>> {
        None
    }
    /// The places of a point that rows with these moments say nothing of, and the mean point that
    /// stands in for them.
    fn point_gaps(&self, _moments: &[f64]) -> Vec<usize> {
        Vec::new()
    }
    /// The mean point of rows with these moments.
    fn point_means(&self, moments: &[f64]) -> Vec<f64>;

    /// A start drawn from the pooled moments.
    fn initial_from_moments(&self, moments: &[f64], key: Key) -> Result<Self::Parameters>;
    /// A start at these points, all components alike otherwise.
    fn initial_from_points(&self, points: Vec<f64>, moments: &[f64]) -> Result<Self::Parameters>;
    /// A start at centres of clusters of so many rows.
    fn initial_from_centres(
        &self,
        centres: &[f64],
        counts: &[f64],
        moments: &[f64],
    ) -> Result<Self::Parameters>;

    /// The fitted mixture as named tensors, in the units of the data.
    fn artifact(&self, theta: &Self::Parameters, preparation: Option<&Preparation>) -> Artifact;
}

/// Where a mixture starts.
#[derive(Clone, PartialEq, Debug)]
pub enum MixtureStart {
    /// Drawn from the pooled moments: needs nothing but sums.
    Moments,
    /// Rows of the data as means, as in the paper; raw rows leave the clients.
    Examples,
    /// These parameters, in the coordinates in which they travel (a file, or an earlier stage).
    Given(Vec<f64>),
}

/// A start, and the map from rows of the data to those of the fit.
#[derive(Clone, PartialEq, Debug)]
pub struct MixtureInitial {
    /// Where the mixture starts.
    pub start: MixtureStart,
    /// What is done to the rows, where the job asks for it.
    pub preparation: Option<Preparation>,
}

impl MixtureInitial {
    /// A fit in the units of the data.
    pub fn plain(start: MixtureStart) -> Self {
        Self { start, preparation: None }
    }
}

impl<M: Mixture> Initial<M> for MixtureInitial {
    fn offer(&self, model: &M, data: &M::Data, key: Key) -> Result<Vec<f64>> {
        if self.start != MixtureStart::Examples {
            return Ok(Vec::new());
        }
        let rows = model.rows(data);
        let window = model.window(data, 0, rows)?;
        let data = window.as_ref().unwrap_or(data);
        let drawn = key.stream().choose(rows, model.components().min(rows));
        Ok(drawn.into_iter().flat_map(|i| model.point(data, i)).collect())
    }

    fn first(
        &self,
        model: &M,
        moments: &[f64],
        offers: &[(f64, Vec<f64>)],
        key: Key,
    ) -> Result<M::Parameters> {
        match &self.start {
            MixtureStart::Moments => model.initial_from_moments(moments, key),
            MixtureStart::Given(coordinates) => model.from_vector(coordinates),
            MixtureStart::Examples => {
                let points = choose_examples(model, offers, key)?;
                model.initial_from_points(points, moments)
            }
        }
    }

    fn artifact(&self, model: &M, theta: &M::Parameters) -> Artifact {
        model.artifact(theta, self.preparation.as_ref())
    }

    fn weights(&self, model: &M, theta: &M::Parameters) -> Vec<f64> {
        model.weights(theta)
    }

    fn shares(&self, model: &M, statistic: &[f64]) -> Vec<f64> {
        statistic[..model.components()].to_vec()
    }

    fn moments_len(&self, model: &M) -> usize {
        model.moments_len()
    }

    fn log_scale(&self) -> f64 {
        self.preparation.as_ref().map_or(0.0, Preparation::log_scale)
    }

    fn offers_max(&self, model: &M) -> usize {
        match self.start {
            MixtureStart::Examples => model.components() * model.point_len(),
            MixtureStart::Moments | MixtureStart::Given(_) => 0,
        }
    }
}

/// Uniform over all rows of all clients, without repeats: each draw picks a client by its rows
/// left, then the next of the rows it offered (which it drew at random itself).
fn choose_examples<M: Mixture>(
    model: &M,
    offers: &[(f64, Vec<f64>)],
    key: Key,
) -> Result<Vec<f64>> {
    let d = model.point_len();
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
