//! A fitted table: what is expected of a cell, and how sure that is.

use super::ceiling::{Ceiling, capped};
use super::interval::{CLASSES, Calibration, Group, NORMAL_QUANTILE, OCTAVES};
use super::uncertainty::{Share, spread_of};
use super::{Factors, Family, LowRank, Uncertainty};
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
        (self.theta + by).min(self.ceiling.max(self.theta))
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

    /// A parameter with these errors.
    pub fn unsure(&self, sure: Parameter, shares: &[Share]) -> Parameter {
        let total: f64 = shares.iter().map(Share::variance).sum();
        if total == 0.0 {
            return sure;
        }
        let kept = spread_of(self.model.family(), total).powi(2) / total;
        let held_out = self.calibration.as_ref().is_some_and(|c| c.calibrated);
        let of_fit = shares.iter().filter(|share| held_out && share.source.is_of_fit());
        let measured: f64 = of_fit.map(Share::variance).sum();
        let spread = (kept * (total - measured).max(0.0)).sqrt();
        let shift = shares.iter().map(|share| share.shift).sum();
        Parameter { spread, measured: kept * measured, shift, ..sure }
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
        let family = self.model.family();
        // Of the exponential of a normal number.
        let above = if family == Family::Poisson { 0.5 * parameter.variance() } else { 0.0 };
        family.mean(parameter.moved(parameter.shift + above))
    }

    /// The variance of a value around its mean, on average over what the mean may be.
    pub fn noise(&self, parameter: Parameter) -> f64 {
        let (family, own) = (self.model.family(), self.own_dispersion(parameter));
        let mean = self.expected(parameter);
        match family {
            Family::Poisson => mean + own * (1.0 + parameter.variance()) * mean * mean,
            Family::Gaussian | Family::Bernoulli => own * family.variance(mean),
        }
    }

    /// The standard deviation of draws, to first order in the error of the parameter.
    pub fn sd(&self, parameter: Parameter) -> f64 {
        let of_mean = match self.model.family() {
            Family::Gaussian => parameter.variance(),
            Family::Poisson => parameter.variance() * self.expected(parameter).powi(2),
            // Of 0 and 1 the noise is all there is.
            Family::Bernoulli => 0.0,
        };
        (self.noise(parameter) + of_mean).sqrt()
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
