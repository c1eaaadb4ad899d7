//! A fitted table: expected values of cells, their uncertainty, intervals and draws.

use super::ceiling::{Ceiling, capped};
use super::interval::{CLASSES, Calibration, Group, NORMAL_QUANTILE, OCTAVES};
use super::uncertainty::{ErrorPart, spread_of};
use super::{Factors, Family, LowRank, Uncertainty};
use crate::mixed::normal_cdf;
use std::f64::consts::PI;
use whimbrel_core::math::exp;
use whimbrel_core::{Key, Stream};

/// Largest rate of a Poisson draw: larger counts are not exact integers.
const RATE_MAX: f64 = 1e15;
/// Below this overdispersion, counts are drawn as Poisson.
const CLUSTERING_MIN: f64 = 1e-9;

/// A low-rank fit, in the form stored in an artifact.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRankFit {
    pub model: LowRank,
    pub factors: Factors,
    pub ceiling: Option<Ceiling>,
    /// `n`, which multiplies the penalties: a row is fitted with ridge `n lambda`.
    pub clients: u32,
    /// Number of observations of each row, and of each column.
    pub observations: [Vec<u32>; 2],
    /// `None` if the run stopped before calibration.
    pub calibration: Option<Calibration>,
    /// `None` if the run stopped before the posteriors were computed.
    pub uncertainty: Option<Uncertainty>,
}

/// The natural parameter of a cell, with its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    pub theta: f64,
    /// Standard deviation of the part of the error that held-out cells do not measure.
    pub spread: f64,
    /// Variance of the part that errors on held-out cells include; 0 if nothing was held out.
    pub measured: f64,
    /// Posterior mean of the error of `theta`, around which draws are centred.
    pub shift: f64,
    /// Number of observations of the row or of the column, whichever is smaller.
    pub observations: u32,
    /// Upper limit of drawn `theta`.
    pub ceiling: f64,
    /// Mean and scale of the column, which lead from the fit to the data.
    pub unit: [f64; 2],
}

impl Parameter {
    /// A `theta` without error.
    pub fn exact(theta: f64, observations: u32) -> Self {
        let (spread, measured, shift, ceiling) = (0.0, 0.0, 0.0, f64::INFINITY);
        Self { theta, spread, measured, shift, observations, ceiling, unit: [0.0, 1.0] }
    }

    /// A value of the fit in the units of the data.
    pub fn in_data(&self, value: f64) -> f64 {
        self.unit[0] + self.unit[1] * value
    }

    /// The variance of `theta`.
    pub fn variance(&self) -> f64 {
        self.spread * self.spread + self.measured
    }

    /// `theta + by`, at most the ceiling.
    fn moved(&self, by: f64) -> f64 {
        (self.theta + by).min(self.top())
    }

    /// The largest `theta` of a draw.
    fn top(&self) -> f64 {
        self.ceiling.max(self.theta)
    }
}

impl LowRankFit {
    /// `theta_jl`, at most its ceiling and clipped to the family's bound.
    pub fn theta(&self, row: usize, column: usize) -> f64 {
        self.model.family().boxed(self.below_ceiling(row, column))
    }

    /// `theta_jl`, at most its ceiling.
    pub(super) fn below_ceiling(&self, row: usize, column: usize) -> f64 {
        capped(self.ceiling.as_ref(), self.model.theta(&self.factors, row, column), row, column)
    }

    /// The expected value of a cell, in the units of the fit.
    pub fn mean(&self, row: usize, column: usize) -> f64 {
        self.model.family().mean(self.theta(row, column))
    }

    /// The parts of the error of a cell's `theta`.
    pub fn error_parts(&self, row: usize, column: usize) -> Vec<ErrorPart> {
        let of = |sure: &Uncertainty| sure.error_parts(&self.model, &self.factors, [row, column]);
        self.uncertainty.as_ref().map_or(Vec::new(), of)
    }

    /// The parameter of a cell without its error. A client's personal effect is added after the ceiling.
    pub fn point(&self, row: usize, column: usize, effect: f64) -> Parameter {
        let theta = self.model.family().boxed(self.below_ceiling(row, column) + effect);
        let observations = self.observations[0][row].min(self.observations[1][column]);
        Parameter { unit: self.model.unit(column), ..Parameter::exact(theta, observations) }
    }

    /// Adds errors to a parameter. A row or column without observations has its prior as posterior, which
    /// no held-out cell measures: the cell is treated as well observed, and all of its error is added.
    pub fn with_errors(&self, sure: Parameter, shares: &[ErrorPart]) -> Parameter {
        let is_bare = sure.observations == 0;
        let total: f64 = shares.iter().map(ErrorPart::variance).sum();
        if total == 0.0 {
            return sure;
        }
        let kept = spread_of(self.model.family(), total).powi(2) / total;
        let held_out = self.calibration.as_ref().is_some_and(|c| c.calibrated) && !is_bare;
        let of_fit = shares.iter().filter(|share| held_out && share.source.is_of_fit());
        let measured: f64 = of_fit.map(ErrorPart::variance).sum();
        let spread = (kept * (total - measured).max(0.0)).sqrt();
        let shift = shares.iter().map(|share| share.shift).sum();
        let observations = if is_bare { u32::MAX } else { sure.observations };
        Parameter { spread, measured: kept * measured, shift, observations, ..sure }
    }

    /// The error of `theta` in the imputation with this key. Cells with a common source share its random
    /// numbers.
    pub fn deviation(&self, parameter: Parameter, shares: &[ErrorPart], key: Key) -> f64 {
        let total: f64 = shares.iter().map(ErrorPart::variance).sum();
        if total == 0.0 {
            return 0.0;
        }
        let drawn: f64 = shares.iter().map(|share| share.drawn(key)).sum();
        drawn * (parameter.variance() / total).sqrt()
    }

    /// A 90 % prediction interval within the family's range. On each side the half-width is the root of
    /// the sum of squares of the noise's and the mean's. Ends of intervals for counts are integers.
    pub fn interval(&self, parameter: Parameter) -> (f64, f64) {
        let family = self.model.family();
        let mean = family.mean(parameter.theta);
        let group = self.group_of(mean, parameter.observations);
        let noise = group.quantile * group.scale(family, mean);
        let reach = |z: f64| {
            let drift: f64 = family.mean(parameter.moved(z * parameter.spread)) - mean;
            (noise * noise + drift * drift).sqrt()
        };
        let [down, up] = [-NORMAL_QUANTILE, NORMAL_QUANTILE].map(reach);
        match family {
            Family::Gaussian => (parameter.in_data(mean - down), parameter.in_data(mean + up)),
            Family::Bernoulli => ((mean - down).max(0.0), (mean + up).min(1.0)),
            Family::Poisson => {
                // The integers inside, or those around the mean if there are none.
                let (low, high) = ((mean - down).max(0.0).ceil(), (mean + up).floor());
                if low <= high { (low, high) } else { (mean.floor(), mean.ceil()) }
            }
        }
    }

    /// The dispersion around the true mean: that of well observed cells, with the variance of their
    /// parameter's error removed. If the mean of a count has a random factor of mean 1 and variance `v`,
    /// and the count has dispersion `a` around it, the total is `alpha = (1 + a)(1 + v) - 1`.
    fn own_dispersion(&self, parameter: Parameter) -> f64 {
        let family = self.model.family();
        let dispersion = self.group_of(self.drawn(parameter)[0], u32::MAX).dispersion;
        let usual = self.uncertainty.as_ref().map_or(0.0, |sure| sure.usual);
        let measured = parameter.measured.min(usual);
        match family {
            Family::Gaussian => (dispersion - measured).max(0.0),
            Family::Poisson => ((1.0 + dispersion) / (1.0 + measured) - 1.0).max(0.0),
            Family::Bernoulli => 1.0,
        }
    }

    /// The mean of draws. In sparsely observed rows it differs from the estimate, since the fit has one
    /// ridge for all rows while draws follow each row's posterior.
    pub fn expected(&self, parameter: Parameter) -> f64 {
        self.drawn_mean(parameter)[0]
    }

    /// Mean and variance of the random mean of a draw.
    pub fn drawn_mean(&self, parameter: Parameter) -> [f64; 2] {
        let [mean, variance] = self.drawn(parameter);
        [parameter.in_data(mean), variance * parameter.unit[1].powi(2)]
    }

    /// The same in the units of the fit.
    fn drawn(&self, parameter: Parameter) -> [f64; 2] {
        let (family, v) = (self.model.family(), parameter.variance());
        let centre = parameter.theta + parameter.shift;
        match family {
            Family::Gaussian => [centre, v],
            // E[logistic(N)] with the logistic approximated by a normal distribution function.
            Family::Bernoulli => {
                let p = family.mean(centre / (1.0 + PI / 8.0 * v).sqrt());
                [p, (p * (1.0 - p)).powi(2) * v]
            }
            Family::Poisson if v == 0.0 => [family.mean(parameter.moved(parameter.shift)), 0.0],
            // The exponential of a normal variable censored at the ceiling.
            Family::Poisson => {
                let (s, top) = (v.sqrt(), family.boxed(parameter.top()));
                let moment = |k: f64| {
                    let below = normal_cdf((top - centre) / s - k * s);
                    let above = normal_cdf((centre - top) / s);
                    exp(k * centre + 0.5 * k * k * v) * below + exp(k * top) * above
                };
                let mean = moment(1.0);
                [mean, (moment(2.0) - mean * mean).max(0.0)]
            }
        }
    }

    /// The variance of a value around its mean, averaged over the mean's distribution.
    pub fn noise(&self, parameter: Parameter) -> f64 {
        let (family, own) = (self.model.family(), self.own_dispersion(parameter));
        let [mean, variance] = self.drawn(parameter);
        match family {
            Family::Gaussian => own * parameter.unit[1].powi(2),
            Family::Poisson => mean + own * (mean * mean + variance),
            // The mean determines the law of a Bernoulli variable.
            Family::Bernoulli => (family.variance(mean) - variance).max(0.0),
        }
    }

    /// The standard deviation of draws.
    pub fn sd(&self, parameter: Parameter) -> f64 {
        (self.noise(parameter) + self.drawn_mean(parameter)[1]).sqrt()
    }

    /// Draws a value for a multiple imputation, with this [error](Self::deviation) of the parameter
    /// around its mean. Overdispersed counts are negative binomial.
    pub fn draw(&self, parameter: Parameter, deviation: f64, stream: &mut Stream) -> f64 {
        let (family, own) = (self.model.family(), self.own_dispersion(parameter));
        let mean = family.mean(parameter.moved(parameter.shift + deviation));
        if family == Family::Poisson && own > CLUSTERING_MIN && mean > 0.0 {
            let rate = mean * own * stream.gamma(1.0 / own);
            return stream.poisson(rate.min(RATE_MAX)) as f64;
        }
        parameter.in_data(family.draw(mean, own.sqrt(), stream))
    }

    /// The calibration group of cells with this mean and number of observations; the family's own
    /// dispersion without a calibration.
    pub(super) fn group_of(&self, mean: f64, observations: u32) -> Group {
        let family = self.model.family();
        let found = self.calibration.as_ref().map(|c| c.group_of(family, mean, observations));
        found.unwrap_or(Group {
            class: CLASSES - 1,
            last: OCTAVES - 1,
            quantile: NORMAL_QUANTILE,
            dispersion: if family == Family::Poisson { 0.0 } else { 1.0 },
        })
    }
}
