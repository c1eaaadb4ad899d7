//! The mixture over mixed tables as a [`MixtureModel`].
//!
//! A *point* is a row as a real vector: numbers and counts, and an indicator for each level. A centre of
//! points holds means, rates and probabilities.

use super::moments::{Column, width};
use super::{Levels, Mixed, MixedData, MixedParameters, Numeric};
use crate::gmm::Gmm;
use crate::mixture::{MixtureModel, check_finite, diagonals, floored, shares_of};
use whimbrel_core::method::Artifact;
use whimbrel_core::{Error, Key, Result, math};

/// Weight of the pooled rates and probabilities in initial ones, since EM cannot leave the boundary.
const POOLED_SHARE: f64 = 0.1;

impl MixtureModel for Mixed {
    fn components(&self) -> usize {
        self.settings.components
    }

    fn narrow(&self, statistic: &[f64], _: &[f64]) -> u32 {
        self.gaussian.as_ref().map_or(0, |gmm| gmm.narrow(self.parts(statistic).0, &[]))
    }

    fn free_parameters(&self) -> usize {
        let others = self.counts.len() + self.free_levels();
        let numbers = self.gaussian.as_ref();
        numbers.map_or(self.components() - 1, Gmm::free_parameters) + self.components() * others
    }

    fn moments_len(&self) -> usize {
        self.columns().iter().map(|kind| width(*kind)).sum()
    }

    fn weights(&self, theta: &MixedParameters) -> Vec<f64> {
        theta.weights().to_vec()
    }

    fn point_len(&self) -> usize {
        self.numbers.len() + self.counts.len() + self.all_levels()
    }

    fn points(&self, data: &MixedData) -> Vec<f64> {
        let (coordinates, means) = (self.point_columns(), self.point_means(&self.moments_of(data)));
        let mut points = Vec::with_capacity(data.rows() * coordinates.len());
        for row in 0..data.rows() {
            let cells = data.row(row);
            points.extend(coordinates.iter().zip(&means).map(|((column, level), mean)| {
                match (cells[*column], level) {
                    (cell, _) if cell.is_nan() => *mean,
                    (cell, None) => cell,
                    (cell, Some(level)) => f64::from(u8::from(cell as usize == *level)),
                }
            }));
        }
        points
    }

    fn observed(&self, data: &MixedData) -> Option<Vec<bool>> {
        let coordinates = self.point_columns();
        let of_row = |row: usize| {
            coordinates.iter().map(move |(column, _)| !data.row(row)[*column].is_nan())
        };
        let observed: Vec<bool> = (0..data.rows()).flat_map(of_row).collect();
        observed.contains(&false).then_some(observed)
    }

    /// Every column has unit variance.
    fn point_scales(&self, moments: &[f64]) -> Option<Vec<f64>> {
        let columns = self.columns_of(moments);
        let scale = |(column, _): (usize, Option<usize>)| {
            let (variance, least) = match &columns[column] {
                Column::Scalar { variance, .. } => (*variance, 0.0),
                Column::Levels(shares) => {
                    let squares = level_shares(shares).iter().map(|p| p * p).sum::<f64>();
                    (1.0 - squares, f64::EPSILON)
                }
            };
            if variance > least { variance.sqrt() } else { 1.0 }
        };
        Some(self.point_columns().into_iter().map(scale).collect())
    }

    fn point_gaps(&self, moments: &[f64]) -> Vec<usize> {
        let columns = self.columns_of(moments);
        let is_gap = |column: usize| match &columns[column] {
            Column::Scalar { observed, .. } => *observed == 0.0,
            Column::Levels(shares) => shares.iter().all(|share| *share == 0.0),
        };
        let all = self.point_columns().into_iter().enumerate();
        all.filter(|(_, (column, _))| is_gap(*column)).map(|(at, _)| at).collect()
    }

    fn point_means(&self, moments: &[f64]) -> Vec<f64> {
        let columns = self.columns_of(moments);
        let mean = |(column, level): (usize, Option<usize>)| match &columns[column] {
            Column::Scalar { mean, .. } => *mean,
            Column::Levels(shares) => level_shares(shares)[level.unwrap_or(0)],
        };
        self.point_columns().into_iter().map(mean).collect()
    }

    /// Equal weights; means of numbers drawn from the column's normal distribution, rates from the
    /// log-normal distribution with its mean and variance, and pooled probabilities times log-normal
    /// factors.
    fn initial_from_moments(&self, moments: &[f64], key: Key) -> Result<MixedParameters> {
        self.check_moments(moments)?;
        let (columns, k) = (self.columns_of(moments), self.components());
        let mut stream = key.stream();
        let mut centres = Vec::with_capacity(k * self.point_len());
        for _ in 0..k {
            for j in &self.numbers {
                let Column::Scalar { mean, variance, .. } = columns[*j] else { continue };
                centres.push(mean + variance.sqrt() * stream.normal());
            }
            for j in &self.counts {
                let Column::Scalar { mean, variance, .. } = columns[*j] else { continue };
                let is_seen = mean > 0.0;
                let spread =
                    if is_seen { math::ln_1p(variance / (mean * mean)).sqrt() } else { 0.0 };
                centres.push(mean * math::exp(spread * (stream.normal() - 0.5 * spread)));
            }
            for Levels { column, .. } in &self.levels {
                let Column::Levels(shares) = &columns[*column] else { continue };
                let shares = level_shares(shares);
                let mut drawn: Vec<f64> =
                    shares.iter().map(|p| p * math::exp(stream.normal())).collect();
                let sum: f64 = drawn.iter().sum();
                drawn.iter_mut().for_each(|p| *p /= sum);
                centres.extend(drawn);
            }
        }
        self.start(vec![1.0 / k as f64; k], &centres, moments, false)
    }

    fn initial_from_points(&self, points: Vec<f64>, moments: &[f64]) -> Result<MixedParameters> {
        self.initial_from_centres(&points, &vec![1.0; self.components()], moments)
    }

    fn initial_from_centres(
        &self,
        centres: &[f64],
        counts: &[f64],
        moments: &[f64],
    ) -> Result<MixedParameters> {
        self.check_moments(moments)?;
        let shares = shares_of(counts, centres, [self.components(), self.point_len()])?;
        let weights = floored(shares.into_iter(), self.settings.weight_floor);
        self.start(weights, centres, moments, true)
    }

    /// Tensors: `weights`; `means` and `covariances` of numbers, `rates` of counts, `levels` with the
    /// probabilities of all levels, for the kinds of columns in the table.
    fn artifact(&self, theta: &MixedParameters) -> Artifact {
        let (k, d) = (self.components(), self.numbers().len());
        let mut artifact = Artifact::new("mixture").with("weights", &[k], theta.weights().to_vec());
        if let Some(gaussian) = theta.gaussian() {
            let all: Vec<f64> = (0..k).flat_map(|k| gaussian.covariance(k)).collect();
            artifact = artifact.with("means", &[k, d], gaussian.means().to_vec());
            artifact = match self.settings.numeric {
                Numeric::Full => artifact.with("covariances", &[k, d, d], all),
                Numeric::Diagonal => artifact.with("covariances", &[k, d], diagonals(&all, d)),
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

impl Mixed {
    /// The column of each coordinate of a point, with the level it indicates.
    fn point_columns(&self) -> Vec<(usize, Option<usize>)> {
        let scalars = self.numbers.iter().chain(&self.counts).map(|column| (*column, None));
        let levels = |l: &Levels| {
            let column = l.column;
            (0..l.count).map(move |level| (column, Some(level)))
        };
        scalars.chain(self.levels.iter().flat_map(levels)).collect()
    }

    fn check_moments(&self, moments: &[f64]) -> Result<()> {
        if moments.len() != self.moments_len() {
            return Err(Error::config("this start needs the pooled moments"));
        }
        check_finite("the pooled moments hold", moments)
    }

    fn start(
        &self,
        weights: Vec<f64>,
        centres: &[f64],
        moments: &[f64],
        within: bool,
    ) -> Result<MixedParameters> {
        let (d, c, width) = (self.numbers.len(), self.counts.len(), self.point_len());
        let (columns, pooled) = (self.columns_of(moments), self.point_means(moments));
        let means: Vec<f64> =
            centres.chunks_exact(width).flat_map(|centre| &centre[..d]).copied().collect();
        let variance = |(at, j): (usize, &usize)| {
            let Column::Scalar { mean, variance, .. } = columns[*j] else { return 1.0 };
            let between: f64 = weights
                .iter()
                .zip(means.iter().skip(at).step_by(d))
                .map(|(w, m)| w * (m - mean) * (m - mean))
                .sum();
            let left = if within { variance - between } else { variance };
            let floor = self.settings.covariance_floor;
            let least = if variance > 0.0 { floor * variance } else { floor };
            left.max(least) + self.settings.reg_covar * variance
        };
        let variances: Vec<f64> = self.numbers.iter().enumerate().map(variance).collect();
        let covariances = match self.settings.numeric {
            Numeric::Diagonal => variances.repeat(weights.len()),
            Numeric::Full => {
                let mut matrix = vec![0.0; d * d];
                variances.iter().enumerate().for_each(|(j, v)| matrix[j * (d + 1)] = *v);
                matrix.repeat(weights.len())
            }
        };
        let shrunk = |from: usize, to: usize| -> Vec<f64> {
            let part = |centre: &[f64]| -> Vec<f64> {
                let own = centre[from..to].iter().zip(&pooled[from..to]);
                own.map(|(x, p)| (1.0 - POOLED_SHARE) * x.max(0.0) + POOLED_SHARE * p).collect()
            };
            centres.chunks_exact(width).flat_map(part).collect()
        };
        let (rates, levels) = (shrunk(d, d + c), shrunk(d + c, width));
        self.parameters(&weights, &means, &covariances, &rates, &levels)
    }
}

/// The pooled probabilities of a column's levels; equal without observed cells.
fn level_shares(shares: &[f64]) -> Vec<f64> {
    let sum: f64 = shares.iter().sum();
    let equal = 1.0 / shares.len() as f64;
    shares.iter().map(|share| if sum > 0.0 { share / sum } else { equal }).collect()
}
