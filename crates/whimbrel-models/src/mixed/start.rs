//! Initial parameters: from pooled moments, or from the clients' cluster centres.
//!
//! A *point* is a row as a real vector: numbers and counts, and an indicator for each level. A centre of
//! points holds means, rates and probabilities.

use super::moments::Column;
use super::{ColumnKind, Levels, Mixed, MixedData, MixedParameters, Numeric};
use crate::mixture::{check_finite, floored, shares_of};
use whimbrel_core::{Error, Key, Result, math};

/// Weight of the pooled rates and probabilities in initial ones, since EM cannot leave the boundary.
const POOLED_SHARE: f64 = 0.1;

impl Mixed {
    /// Dimension of a point.
    pub fn point_len(&self) -> usize {
        self.numbers.len() + self.counts.len() + self.all_levels()
    }

    /// Rows as points; missing cells are replaced by column means.
    pub fn points(&self, data: &MixedData) -> Vec<f64> {
        let means = self.point_means(&self.moments_of(data));
        let mut points = means.repeat(data.rows());
        for (row, point) in points.chunks_exact_mut(self.point_len()).enumerate() {
            let cells = data.row(row);
            let scalars = self.numbers.iter().chain(&self.counts);
            for (x, j) in point.iter_mut().zip(scalars).filter(|(_, j)| !cells[**j].is_nan()) {
                *x = cells[*j];
            }
            let own = &mut point[self.numbers.len() + self.counts.len()..];
            for Levels { column, count, from } in &self.levels {
                let cell = cells[*column];
                if !cell.is_nan() {
                    own[*from..][..*count].fill(0.0);
                    own[from + cell as usize] = 1.0;
                }
            }
        }
        points
    }

    /// Whether each coordinate of the points comes from an observed cell; `None` if all do.
    pub fn observed(&self, data: &MixedData) -> Option<Vec<bool>> {
        let mut observed = Vec::with_capacity(data.rows() * self.point_len());
        for row in 0..data.rows() {
            let cells = data.row(row);
            let scalars = self.numbers.iter().chain(&self.counts);
            observed.extend(scalars.map(|j| !cells[*j].is_nan()));
            for Levels { column, count, .. } in &self.levels {
                observed.extend(std::iter::repeat_n(!cells[*column].is_nan(), *count));
            }
        }
        observed.contains(&false).then_some(observed)
    }

    /// The scale of each coordinate of a point, so that every column has unit variance.
    pub fn point_scales(&self, moments: &[f64]) -> Vec<f64> {
        let columns = self.columns_of(moments);
        let scale = |j: &usize| match &columns[*j] {
            Column::Scalar { variance, .. } if *variance > 0.0 => variance.sqrt(),
            _ => 1.0,
        };
        let mut scales: Vec<f64> = self.numbers.iter().chain(&self.counts).map(scale).collect();
        for Levels { column, count, .. } in &self.levels {
            let shares = level_shares(&columns[*column], *count);
            let variance = 1.0 - shares.iter().map(|p| p * p).sum::<f64>();
            let scale = if variance > f64::EPSILON { variance.sqrt() } else { 1.0 };
            scales.extend(vec![scale; *count]);
        }
        scales
    }

    /// The coordinates of points without any observed cell.
    pub fn point_gaps(&self, moments: &[f64]) -> Vec<usize> {
        let columns = self.columns_of(moments);
        let is_gap = |j: usize| match &columns[j] {
            Column::Scalar { observed, .. } => *observed == 0.0,
            Column::Levels(shares) => shares.iter().all(|share| *share == 0.0),
        };
        let scalars = self.numbers.iter().chain(&self.counts).copied();
        let levels = self.levels.iter().flat_map(|l| vec![l.column; l.count]);
        let all = scalars.chain(levels).enumerate();
        all.filter(|(_, j)| is_gap(*j)).map(|(at, _)| at).collect()
    }

    /// The mean point.
    pub fn point_means(&self, moments: &[f64]) -> Vec<f64> {
        let columns = self.columns_of(moments);
        let mean = |j: &usize| match &columns[*j] {
            Column::Scalar { mean, .. } => *mean,
            Column::Levels(_) => 0.0,
        };
        let mut means: Vec<f64> = self.numbers.iter().chain(&self.counts).map(mean).collect();
        for Levels { column, count, .. } in &self.levels {
            means.extend(level_shares(&columns[*column], *count));
        }
        means
    }

    /// Equal weights; means of numbers drawn from the column's normal distribution, rates from the
    /// log-normal distribution with its mean and variance, and pooled probabilities times log-normal
    /// factors. Needs only sums over clients.
    pub fn initial_from_moments(&self, moments: &[f64], key: Key) -> Result<MixedParameters> {
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
            for Levels { column, count, .. } in &self.levels {
                let shares = level_shares(&columns[*column], *count);
                let mut drawn: Vec<f64> =
                    shares.iter().map(|p| p * math::exp(stream.normal())).collect();
                let sum: f64 = drawn.iter().sum();
                drawn.iter_mut().for_each(|p| *p /= sum);
                centres.extend(drawn);
            }
        }
        self.start(vec![1.0 / k as f64; k], &centres, moments, false)
    }

    /// Weights proportional to `counts`; means, rates and probabilities at `centres` (one point after the
    /// other); and the pooled variances minus the scatter between the centres.
    pub fn initial_from_centres(
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
            left.max(least) + self.settings.reg_covar
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
fn level_shares(column: &Column, count: usize) -> Vec<f64> {
    let equal = vec![1.0 / count as f64; count];
    let Column::Levels(shares) = column else { return equal };
    let sum: f64 = shares.iter().sum();
    if sum > 0.0 { shares.iter().map(|share| share / sum).collect() } else { equal }
}

impl ColumnKind {
    /// The number of levels; `None` for numbers and counts.
    pub fn levels(self) -> Option<usize> {
        match self {
            Self::Levels(count) => Some(count),
            Self::Number | Self::Count => None,
        }
    }
}
