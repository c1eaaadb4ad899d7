//! Mixtures over tables with columns of several kinds and missing cells.
//!
//! Given its component, the cells of a row are independent, except numbers with a full covariance. Numbers
//! are Gaussian, counts Poisson, and levels (binary or of a category) categorical. Cells are missing at
//! random: missing cells are latent like the component, the likelihood is that of the observed cells, and
//! statistics contain expectations of the missing ones.
//!
//! | statistic | meaning |
//! |---|---|
//! | the first K | mean responsibility of each component |
//! | as in a [`Gmm`] | first and second moments of the numbers, missing ones as conditional moments |
//! | K x counts | mean of responsibility times count |
//! | K x levels | for each column of L levels, the mean of responsibility times the indicator of levels 2 to L |
//!
//! *Reduces to* a Gaussian mixture with diagonal or full covariances if all columns are numbers and no
//! cell is missing, and to latent class analysis if all columns are levels.
//!
//! The numeric part is a [`Gmm`], with its M-step, frames, coordinates and floors.

mod bootstrap;
mod data;
mod estep;
mod frame;
mod moments;
mod numbers;
mod parameters;
mod predict;
mod start;

pub use data::MixedData;
pub use parameters::MixedParameters;
pub(crate) use predict::normal_cdf;
pub use predict::{Filled, MixedPrediction};

use crate::gmm::{Covariance, Gmm, GmmSettings};
use crate::mixture::{check_finite, left_out, weights_of};
use crate::{LatentModel, Maximum, Rows, StepRange, Support};
use whimbrel_core::{ClientData, Error, Frame, Result, math};

/// The smallest probability of a level, and the smallest rate relative to the pooled one.
const FLOOR: f64 = 1e-10;
/// Lower bound, in frames and the trust region, of probabilities and of rates relative to the pooled one:
/// the Fisher information is infinite at the boundary.
const BOUNDARY: f64 = 1e-3;

/// The kind of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Real numbers, Gaussian given the component.
    Number,
    /// Non-negative integers, Poisson given the component.
    Count,
    /// One of at least two levels, numbered from 0.
    Levels(usize),
}

/// The covariance structure of the numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numeric {
    /// Diagonal, one for each component.
    #[default]
    Diagonal,
    /// Full, one for each component.
    Full,
}

/// The settings of a mixture over a table.
#[derive(Clone, Debug, PartialEq)]
pub struct MixedSettings {
    pub components: usize,
    /// The kinds of the columns, in order.
    pub columns: Vec<ColumnKind>,
    pub numeric: Numeric,
    /// Added to the numbers' variances, as a share of each column's variance; default 0.
    pub reg_covar: f64,
    /// The smallest weight; default 1e-10.
    pub weight_floor: f64,
    /// As [`GmmSettings::covariance_floor`]; default 1e-10.
    pub covariance_floor: f64,
}

impl Default for MixedSettings {
    /// One component without columns.
    fn default() -> Self {
        Self::new(1, Vec::new(), Numeric::default())
    }
}

impl MixedSettings {
    /// The defaults for a mixture of this size.
    pub fn new(components: usize, columns: Vec<ColumnKind>, numeric: Numeric) -> Self {
        let (weight_floor, covariance_floor) = (1e-10, 1e-10);
        Self { components, columns, numeric, reg_covar: 0.0, weight_floor, covariance_floor }
    }
}

/// A mixture over a table: [`LatentModel`] with the settings fixed.
#[derive(Clone, Debug)]
pub struct Mixed {
    settings: MixedSettings,
    /// The numeric part; `None` without numeric columns.
    gaussian: Option<Gmm>,
    /// Indices of the numeric columns, and of the counts.
    numbers: Vec<usize>,
    counts: Vec<usize>,
    levels: Vec<Levels>,
}

/// A column with levels.
#[derive(Clone, Copy, Debug)]
struct Levels {
    column: usize,
    count: usize,
    /// Offset of its levels in the list of a component's probabilities.
    from: usize,
}

impl Mixed {
    /// Checks the settings.
    pub fn new(settings: MixedSettings) -> Result<Self> {
        let MixedSettings { components, columns, weight_floor, .. } = &settings;
        if *components == 0 || columns.is_empty() {
            let what =
                format!("a mixture of {components} components over {} columns", columns.len());
            return Err(Error::config(format!("{what} is empty")).hint("both must be at least 1"));
        }
        if !(*weight_floor > 0.0 && weight_floor * *components as f64 <= 0.5) {
            let what = format!("weight_floor = {weight_floor} must be positive and small");
            return Err(Error::config(what));
        }
        let of = |wanted: ColumnKind| {
            let all = columns.iter().enumerate().filter(move |(_, kind)| **kind == wanted);
            all.map(|(at, _)| at).collect::<Vec<usize>>()
        };
        let (numbers, counts) = (of(ColumnKind::Number), of(ColumnKind::Count));
        let (mut levels, mut from) = (Vec::new(), 0);
        for (column, kind) in columns.iter().enumerate() {
            let ColumnKind::Levels(count) = *kind else { continue };
            if count < 2 {
                let what = format!("column {} has fewer than two levels", column + 1);
                return Err(Error::config(what));
            }
            levels.push(Levels { column, count, from });
            from += count;
        }
        let gaussian = match numbers.len() {
            0 => None,
            d => {
                let covariance = match settings.numeric {
                    Numeric::Diagonal => Covariance::Diagonal,
                    Numeric::Full => Covariance::Full,
                };
                let mut gmm = GmmSettings::new(*components, d, covariance);
                (gmm.reg_covar, gmm.relative) = (settings.reg_covar, true);
                gmm.weight_floor = settings.weight_floor;
                gmm.covariance_floor = settings.covariance_floor;
                Some(Gmm::new(gmm)?)
            }
        };
        Ok(Self { settings, gaussian, numbers, counts, levels })
    }

    pub fn settings(&self) -> &MixedSettings {
        &self.settings
    }

    pub fn components(&self) -> usize {
        self.settings.components
    }

    pub fn columns(&self) -> &[ColumnKind] {
        &self.settings.columns
    }

    /// Indices of the numeric columns, in the order of the Gaussian part.
    pub fn numbers(&self) -> &[usize] {
        &self.numbers
    }

    /// Number of level probabilities of a component.
    fn all_levels(&self) -> usize {
        self.levels.iter().map(|levels| levels.count).sum()
    }

    /// Number of free ones among them.
    fn free_levels(&self) -> usize {
        self.levels.iter().map(|levels| levels.count - 1).sum()
    }

    /// Length of the numeric part of a statistic; of the weights alone without numeric columns.
    fn gaussian_len(&self) -> usize {
        self.gaussian.as_ref().map_or(self.components(), Gmm::statistic_len)
    }

    /// The parts of a statistic: weights and numbers, counts, levels.
    fn parts<'a>(&self, statistic: &'a [f64]) -> (&'a [f64], &'a [f64], &'a [f64]) {
        let (gaussian, rest) = statistic.split_at(self.gaussian_len());
        let (counts, levels) = rest.split_at(self.components() * self.counts.len());
        (gaussian, counts, levels)
    }

    /// Sums divided by weights; dead components get the pooled quotient of the living ones.
    fn means_of(&self, s1: &[f64], sums: &[f64], width: usize) -> Vec<f64> {
        if width == 0 {
            return Vec::new();
        }
        let alive: f64 = s1.iter().sum();
        let mut pooled = vec![0.0; width];
        for (sums, _) in sums.chunks_exact(width).zip(s1).filter(|(_, s1)| **s1 > 0.0) {
            pooled.iter_mut().zip(sums).for_each(|(p, x)| *p += x / alive);
        }
        let each = sums.chunks_exact(width).zip(s1);
        let quotient = |(sums, s1): (&[f64], &f64)| -> Vec<f64> {
            if *s1 > 0.0 { sums.iter().map(|x| x / s1).collect() } else { pooled.clone() }
        };
        each.flat_map(quotient).collect()
    }
}

impl LatentModel for Mixed {
    fn remedy(&self) -> &'static str {
        "use fewer components, set reg_covar, or take another start"
    }

    type Data = MixedData;
    type Parameters = MixedParameters;

    fn bind(&self, data: &ClientData) -> Result<MixedData> {
        match data {
            ClientData::Table(table) => self.lay_out(&table.columns, &table.values),
            _ => Err(Error::data("a mixture over a table is fitted to the rows of a table")),
        }
    }

    fn rows(&self, data: &MixedData) -> usize {
        data.rows()
    }

    fn window(&self, _: &MixedData, _from: u64, _count: usize) -> Result<Option<MixedData>> {
        Ok(None)
    }

    fn statistic_len(&self) -> usize {
        self.gaussian_len() + self.components() * (self.counts.len() + self.free_levels())
    }

    fn moments(&self, data: &MixedData) -> Result<Vec<f64>> {
        Ok(self.moments_of(data))
    }

    fn expect(
        &self,
        theta: &MixedParameters,
        data: &MixedData,
        rows: Rows<'_>,
        statistic: &mut [f64],
    ) -> Result<f64> {
        self.e_step(theta, data, rows, statistic)
    }

    fn supports(
        &self,
        theta: &MixedParameters,
        data: &MixedData,
        rows: Rows<'_>,
        group: f64,
    ) -> Result<Vec<Support>> {
        self.component_supports(theta, data, rows, group)
    }

    fn restricted(&self, theta: &MixedParameters, kept: &[bool]) -> MixedParameters {
        let mut restricted = theta.clone();
        left_out(&mut restricted.log_weights, kept);
        restricted
    }

    fn maximize(&self, statistic: &[f64], _moments: &[f64]) -> Result<Maximum<MixedParameters>> {
        if statistic.len() != self.statistic_len() {
            return Err(Error::internal(format!(
                "a statistic of {} numbers where the mixture has {}",
                statistic.len(),
                self.statistic_len()
            )));
        }
        check_finite("the statistic holds", statistic)?;
        let (gaussian, counts, levels) = self.parts(statistic);
        let (s1, weights, dead) =
            weights_of(&gaussian[..self.components()], self.settings.weight_floor, 0.0)?;
        let mut repairs = dead.len() as u32;
        let gaussian = match &self.gaussian {
            None => None,
            Some(gmm) => {
                let found = gmm.maximize(gaussian, &[])?;
                repairs = found.repairs;
                Some(found.theta)
            }
        };
        let rates = self.means_of(&s1, counts, self.counts.len());
        let free = self.means_of(&s1, levels, self.free_levels());
        let mut probabilities = Vec::with_capacity(self.components() * self.all_levels());
        for k in 0..self.components() {
            let mut rest = &free[k * self.free_levels()..];
            for Levels { count, .. } in &self.levels {
                let (own, after) = rest.split_at(count - 1);
                rest = after;
                probabilities.push(1.0 - own.iter().sum::<f64>());
                probabilities.extend_from_slice(own);
            }
        }
        let theta = self.assemble(weights, gaussian, rates, probabilities);
        Ok(Maximum { theta, repairs, dead })
    }

    fn penalty(&self, _: &MixedParameters) -> f64 {
        0.0
    }

    fn natural(&self, theta: &MixedParameters) -> Vec<f64> {
        let mut out = match (&self.gaussian, &theta.gaussian) {
            (Some(gmm), Some(gaussian)) => gmm.natural(gaussian),
            _ => theta.weights.iter().map(|w| math::ln(*w)).collect(),
        };
        let c = self.counts.len();
        for (k, first) in out.iter_mut().take(self.components()).enumerate() {
            *first -= theta.rates[k * c..][..c].iter().sum::<f64>();
            let logs = &theta.log_levels[k * self.all_levels()..];
            *first += self.levels.iter().map(|levels| logs[levels.from]).sum::<f64>();
        }
        out.extend_from_slice(&theta.log_rates);
        for logs in theta.log_levels.chunks_exact(self.all_levels().max(1)) {
            for Levels { count, from, .. } in &self.levels {
                out.extend(logs[from + 1..][..count - 1].iter().map(|log| log - logs[*from]));
            }
        }
        out
    }

    fn frame(&self, theta: &MixedParameters) -> Option<Box<dyn Frame>> {
        Some(Box::new(frame::MixedFrame::of_statistics(self, theta)))
    }

    fn coordinates_frame(&self, theta: &MixedParameters) -> Option<Box<dyn Frame>> {
        Some(Box::new(frame::MixedFrame::of_coordinates(self, theta)))
    }

    /// The range of steps of the numbers, and the distances of rates and probabilities from zero; they may
    /// grow without bound.
    fn step_range(
        &self,
        statistic: &[f64],
        direction: &[f64],
        _: &[f64],
    ) -> Result<Option<StepRange>> {
        let components = self.components();
        let (gaussian, counts, levels) = self.parts(statistic);
        let (along_gaussian, along_counts, along_levels) = self.parts(direction);
        let mut reach = match &self.gaussian {
            Some(gmm) => gmm.step_range(gaussian, along_gaussian, &[])?.unwrap_or_default(),
            None => StepRange::of_weights(gaussian, along_gaussian),
        };
        let alive: f64 = gaussian[..components].iter().filter(|a| **a > 0.0).sum();
        let (c, l) = (self.counts.len(), self.free_levels());
        let pooled: Vec<f64> =
            (0..c).map(|j| counts.iter().skip(j).step_by(c).sum::<f64>() / alive).collect();
        for k in (0..components).filter(|k| gaussian[*k] > 0.0) {
            let weight = gaussian[k];
            for j in 0..c {
                let at = counts[k * c + j].max(BOUNDARY * weight * pooled[j]);
                if at > 0.0 {
                    reach.include((along_counts[k * c + j] / at).min(0.0));
                }
            }
            let mut from = k * l;
            for Levels { count, .. } in &self.levels {
                let (own, along) =
                    (&levels[from..][..count - 1], &along_levels[from..][..count - 1]);
                let first = (weight - own.iter().sum::<f64>(), {
                    along_gaussian[k] - along.iter().sum::<f64>()
                });
                for (at, along) in own.iter().copied().zip(along.iter().copied()).chain([first]) {
                    reach.include((along / at.max(BOUNDARY * weight)).min(0.0));
                }
                from += count - 1;
            }
        }
        Ok(Some(reach))
    }

    fn baseline(&self, _: &[f64], moments: &[f64]) -> Option<f64> {
        self.independent_columns(moments)
    }

    fn coordinates_len(&self) -> usize {
        let weights = self.gaussian.as_ref().map_or(self.components(), Gmm::coordinates_len);
        weights + self.components() * (self.counts.len() + self.free_levels())
    }

    fn to_vector(&self, theta: &MixedParameters) -> Vec<f64> {
        self.coordinates_of(theta)
    }

    fn from_vector(&self, coordinates: &[f64]) -> Result<MixedParameters> {
        self.parameters_at(coordinates)
    }
}
