//! The start of a mixture's fit.

use crate::prepare::Preparation;
use whimbrel_core::{Error, Key, Result};
use whimbrel_models::MixtureModel;

/// The start of a mixture.
#[derive(Clone, PartialEq, Debug)]
pub enum MixtureStart {
    /// Drawn from the pooled moments: clients send sums only.
    Moments,
    /// Raw rows as means, as in the paper; these rows leave the clients.
    Examples,
    /// Given parameters, as a vector (from a file or an earlier stage).
    Given(Vec<f64>),
}

/// The start and the final form of a mixture.
#[derive(Clone, PartialEq, Debug)]
pub struct MixtureInitial {
    pub start: MixtureStart,
    /// The preparation of the rows, if there is one.
    pub preparation: Option<Preparation>,
}

impl MixtureInitial {
    /// A fit in the units of the data.
    pub fn plain(start: MixtureStart) -> Self {
        Self { start, preparation: None }
    }
}

impl MixtureInitial {
    /// Raw rows that a client offers as starting points, row-major; usually empty.
    pub(crate) fn offer<M: MixtureModel>(
        &self,
        model: &M,
        data: &M::Data,
        key: Key,
    ) -> Result<Vec<f64>> {
        if self.start != MixtureStart::Examples {
            return Ok(Vec::new());
        }
        let rows = model.rows(data);
        let window = model.window(data, 0, rows)?;
        let data = window.as_ref().unwrap_or(data);
        let drawn = key.stream().choose(rows, model.components().min(rows));
        Ok(drawn.into_iter().flat_map(|i| model.point(data, i)).collect())
    }

    /// `theta_0` from the pooled moments and the offers, given with the rows of their clients.
    pub(crate) fn first<M: MixtureModel>(
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

    /// The difference of negative log-densities in the units of the data and of the fit.
    pub(crate) fn log_scale(&self) -> f64 {
        self.preparation.as_ref().map_or(0.0, Preparation::log_scale)
    }

    /// The most numbers of raw rows that a client offers.
    pub(crate) fn offers_max<M: MixtureModel>(&self, model: &M) -> usize {
        match self.start {
            MixtureStart::Examples => model.components() * model.point_len(),
            MixtureStart::Moments | MixtureStart::Given(_) => 0,
        }
    }
}

/// A uniform sample of all clients' rows without replacement: each draw picks a client by its
/// remaining rows, then the next row that it offered (which it drew at random).
fn choose_examples<M: MixtureModel>(
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
