//! A fitted table: what is expected of a cell, and how sure that is.

use super::ceiling::{Ceiling, capped};
use super::interval::{CLASSES, Calibration, Group, NORMAL_QUANTILE, OCTAVES};
use super::uncertainty::{Share, spread_of};
use super::{Factors, Family, LowRank, Uncertainty};
use crate::mixed::normal_cdf;
use std::f64::consts::PI;
use whimbrel_core::math::exp;
use whimbrel_core::{Key, Stream};

/// Rates above this are not drawn from: counts there have lost their unit.
const RATE_MAX: f64 = 1e15;
/// Counts that cluster less than this are Poisson's to all digits that are written.
const CLUSTERING_MIN: f64 = 1e-9;

/// A low-rank fit, as read from or written to an artifact.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRankFit {
    /// The model.
    pub model: LowRank,
    /// Effects and factors.
    pub factors: Factors,
    /// What no estimate of a count goes beyond.
    pub ceiling: Option<Ceiling>,
    /// `n`, which the penalties weigh against the cells: a row is fitted with ridge `n lambda`.
    pub clients: u32,
    /// How often each row, and each column, was observed.
    pub observations: [Vec<u32>; 2],
    /// How far off values are; none where a run stopped before it was known.
    pub calibration: Option<Calibration>,
    /// How sure the parameters are; none where a run stopped before its errors were known.
    pub uncertainty: Option<Uncertainty>,
}

/// The natural parameter of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// `theta`.
    pub theta: f64,
    /// Its standard deviation, apart from what errors on held-out cells have in them already.
    pub spread: f64,
    /// The variance that these have in them; 0 where nothing was held out.
    pub measured: f64,
    /// The mean error of `theta`: where draws lie around.
    pub shift: f64,
    /// How often the row or the column was observed, whichever is less.
    pub observations: u32,
    /// What no `theta` that is drawn goes beyond.
    pub ceiling: f64,
}

impl Parameter {
    /// Of a sure `theta`.
    pub fn sure(theta: f64, observations: u32) -> Self {
        let (spread, measured, shift, ceiling) = (0.0, 0.0, 0.0, f64::INFINITY);
        Self { theta, spread, measured, shift, observations, ceiling }
    }

    /// The variance of `theta`.
    pub fn variance(&self) -> f64 {
        self.spread * self.spread + self.measured
    }

    /// `theta` moved by so much, below the ceiling.
    fn moved(&self, by: f64) -> f64 {
        (self.theta + by).min(self.top())
    }

    /// The largest that is drawn.
    fn top(&self) -> f64 {
        self.ceiling.max(self.theta)
    }
}

impl LowRankFit {
    /// `theta_jl`, below its ceiling and in its box.
    pub fn theta(&self, row: usize, column: usize) -> f64 {
        self.model.family().boxed(self.below_ceiling(row, column))
    }

    /// `theta_jl`, below its ceiling.
    pub(super) fn below_ceiling(&self, row: usize, column: usize) -> f64 {
        capped(self.ceiling.as_ref(), self.model.theta(&self.factors, row, column), row, column)
    }

    /// What is expected of a cell.
    pub fn mean(&self, row: usize, column: usize) -> f64 {
        self.model.family().mean(self.theta(row, column))
    }

    /// The parts of the error of a cell's `theta`.
    pub fn shares(&self, row: usize, column: usize) -> Vec<Share> {
        let of = |sure: &Uncertainty| sure.shares(&self.model, &self.factors, [row, column]);
        self.uncertainty.as_ref().map_or(Vec::new(), of)
    }

    /// The parameter of a cell as if it were sure, with a client's own effect added under the box alone.
    pub fn sure(&self, row: usize, column: usize, effect: f64) -> Parameter {
        let theta = self.model.family().boxed(self.below_ceiling(row, column) + effect);
        Parameter::sure(theta, self.observations[0][row].min(self.observations[1][column]))
    }

    /// A parameter with these errors. A row or column without a cell has its prior for a posterior, which
    /// no held-out cell has measured: it counts as well observed, with all of its error beside.
    pub fn unsure(&self, sure: Parameter, shares: &[Share]) -> Parameter {
        let is_bare = sure.observations == 0;
        let total: f64 = shares.iter().map(Share::variance).sum();
        if total == 0.0 {
            return sure;
        }
        let kept = spread_of(self.model.family(), total).powi(2) / total;
        let held_out = self.calibration.as_ref().is_some_and(|c| c.calibrated) && !is_bare;
        let of_fit = shares.iter().filter(|share| held_out && share.source.is_of_fit());
        let measured: f64 = of_fit.map(Share::variance).sum();
        let spread = (kept * (total - measured).max(0.0)).sqrt();
        let shift = shares.iter().map(|share| share.shift).sum();
        let observations = if is_bare { u32::MAX } else { sure.observations };
        Parameter { spread, measured: kept * measured, shift, observations, ..sure }
    }

    /// The error of `theta` in the imputation of a key: cells that share a source of errors share its
    /// numbers.
    pub fn deviation(&self, parameter: Parameter, shares: &[Share], key: Key) -> f64 {
        let total: f64 = shares.iter().map(Share::variance).sum();
        if total == 0.0 {
            return 0.0;
        }
        let drawn: f64 = shares.iter().map(|share| share.drawn(key)).sum();
        drawn * (parameter.variance() / total).sqrt()
    }

    /// An interval that is to hold nine values in ten, within the range of the family: on each side
    /// the root of the sum of squares of what the noise and what the mean's own error reach. Ends of
    /// counts are whole numbers.
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
            Family::Gaussian => (mean - down, mean + up),
            Family::Bernoulli => ((mean - down).max(0.0), (mean + up).min(1.0)),
            Family::Poisson => {
                // The counts inside, or those around the mean where there is none.
                let (low, high) = ((mean - down).max(0.0).ceil(), (mean + up).floor());
                if low <= high { (low, high) } else { (mean.floor(), mean.ceil()) }
            }
        }
    }

    /// What is left of the dispersion of well observed cells with such a mean when the error of their
    /// parameter, which it has in it, is taken out. Counts whose mean has a factor of mean 1 and
    /// variance `v`, and `a` around it, have `alpha = (1 + a)(1 + v) - 1` in all.
    fn own_dispersion(&self, parameter: Parameter) -> f64 {
        let family = self.model.family();
        let dispersion = self.group_of(self.expected(parameter), u32::MAX).dispersion;
        let usual = self.uncertainty.as_ref().map_or(0.0, |sure| sure.usual);
        let measured = parameter.measured.min(usual);
        match family {
            Family::Gaussian => (dispersion - measured).max(0.0),
            Family::Poisson => ((1.0 + dispersion) / (1.0 + measured) - 1.0).max(0.0),
            Family::Bernoulli => 1.0,
        }
    }

    /// The mean of draws. In a row with few cells it is not the estimate: the fit has one ridge for all
    /// rows, and a draw follows the posterior of this one.
    pub fn expected(&self, parameter: Parameter) -> f64 {
        self.drawn_mean(parameter)[0]
    }

    /// Mean and variance of the mean from which a value is drawn.
    pub fn drawn_mean(&self, parameter: Parameter) -> [f64; 2] {
        let (family, v) = (self.model.family(), parameter.variance());
        let centre = parameter.theta + parameter.shift;
        match family {
            Family::Gaussian => [centre, v],
            // A logistic curve of a normal number, by the normal curve that is closest to it.
            Family::Bernoulli => {
                let p = family.mean(centre / (1.0 + PI / 8.0 * v).sqrt());
                [p, (p * (1.0 - p)).powi(2) * v]
            }
            Family::Poisson if v == 0.0 => [family.mean(parameter.moved(parameter.shift)), 0.0],
            // The exponential of a normal number that is cut off at the ceiling.
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

    /// The variance of a value around its mean, on average over what the mean may be.
    pub fn noise(&self, parameter: Parameter) -> f64 {
        let (family, own) = (self.model.family(), self.own_dispersion(parameter));
        let [mean, variance] = self.drawn_mean(parameter);
        match family {
            Family::Gaussian => own,
            Family::Poisson => mean + own * (mean * mean + variance),
            // Of 0 and 1 the mean says it all.
            Family::Bernoulli => (family.variance(mean) - variance).max(0.0),
        }
    }

    /// The standard deviation of draws.
    pub fn sd(&self, parameter: Parameter) -> f64 {
        (self.noise(parameter) + self.drawn_mean(parameter)[1]).sqrt()
    }

    /// A value drawn from the fitted model, for a multiple imputation, with this [error](Self::deviation)
    /// of the parameter beside its mean. Counts around a mean are negative binomial.
    pub fn draw(&self, parameter: Parameter, deviation: f64, stream: &mut Stream) -> f64 {
        let (family, own) = (self.model.family(), self.own_dispersion(parameter));
        let mean = family.mean(parameter.moved(parameter.shift + deviation));
        if family == Family::Poisson && own > CLUSTERING_MIN && mean > 0.0 {
            let rate = mean * own * stream.gamma(1.0 / own);
            return stream.poisson(rate.min(RATE_MAX)) as f64;
        }
        family.draw(mean, own.sqrt(), stream)
    }

    /// What is known about cells with such a mean, whose row and column were observed so often; the
    /// family alone where nothing is.
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
