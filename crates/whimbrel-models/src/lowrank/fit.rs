//! A fitted table: what is expected of a cell, and how sure that is.

use super::ceiling::{Ceiling, capped};
use super::interval::{self, Calibration, Group, NORMAL_QUANTILE};
use super::uncertainty::spread_of;
use super::{Factors, Family, LowRank, Uncertainty};
use whimbrel_core::Stream;

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
    /// How far off values are; none where a run stopped before it was known.
    pub calibration: Option<Calibration>,
    /// How sure the parameters are. Kept where nothing was held out: errors on held-out cells have
    /// it in them already.
    pub uncertainty: Option<Uncertainty>,
}

/// The natural parameter of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// `theta`.
    pub theta: f64,
    /// Its standard deviation.
    pub spread: f64,
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

    /// The parameter of a cell, with a client's own effect added under the box alone. It has no
    /// spread where errors on held-out cells tell.
    pub fn parameter(&self, row: usize, column: usize, effect: f64) -> Parameter {
        let theta = self.model.family().boxed(self.below_ceiling(row, column) + effect);
        let of =
            |sure: &Uncertainty| sure.spread(&self.model, &self.factors, [row, column], self.phi());
        Parameter { theta, spread: self.uncertainty.as_ref().map_or(0.0, of) }
    }

    /// A parameter with another variance beside its own.
    pub fn widened(&self, Parameter { theta, spread }: Parameter, variance: f64) -> Parameter {
        let spread = spread_of(self.model.family(), spread * spread + variance);
        Parameter { theta, spread }
    }

    /// The standard deviation of a value around its mean, with the dispersion that was found.
    pub fn sd(&self, Parameter { theta, spread }: Parameter) -> f64 {
        let family = self.model.family();
        let mean = family.mean(theta);
        let noise = self.dispersion_of(mean).sqrt() * interval::scale(family, mean);
        // The longer side: the deviation of the exponential of a normal number is longer still.
        let [down, up] = [theta - spread, theta + spread].map(|theta| family.mean(theta) - mean);
        let drift = up.max(-down);
        (noise * noise + drift * drift).sqrt()
    }

    /// An interval that is to hold nine values in ten, within the range of the family: on each side
    /// the root of the sum of squares of what the noise and what the mean's own error reach.
    pub fn interval(&self, Parameter { theta, spread }: Parameter) -> (f64, f64) {
        let family = self.model.family();
        let mean = family.mean(theta);
        let quantile = self.group_of(mean).map_or(NORMAL_QUANTILE, |group| group.quantile);
        let noise = quantile * interval::scale(family, mean);
        let reach = |theta| {
            let drift: f64 = family.mean(theta) - mean;
            (noise * noise + drift * drift).sqrt()
        };
        let (low, high) = match family {
            Family::Gaussian => (f64::NEG_INFINITY, f64::INFINITY),
            Family::Poisson => (0.0, f64::INFINITY),
            Family::Bernoulli => (0.0, 1.0),
        };
        let [down, up] = [-NORMAL_QUANTILE, NORMAL_QUANTILE].map(|z| reach(theta + z * spread));
        ((mean - down).max(low), (mean + up).min(high))
    }

    /// A value drawn from the fitted model, for a multiple imputation: the parameter first. Counts
    /// with a dispersion above one have a gamma-distributed rate, so that their variance is dispersion
    /// times mean.
    pub fn draw(&self, Parameter { theta, spread }: Parameter, stream: &mut Stream) -> f64 {
        let family = self.model.family();
        let theta = if spread > 0.0 { theta + spread * stream.normal() } else { theta };
        let mean = family.mean(theta);
        let dispersion = self.dispersion_of(mean);
        let excess = dispersion - 1.0;
        if family == Family::Poisson && excess > 0.0 && mean > 0.0 {
            let rate = excess * stream.gamma(mean / excess);
            return stream.poisson(rate) as f64;
        }
        family.draw(mean, dispersion.sqrt(), stream)
    }

    /// The dispersion over all cells.
    pub(super) fn phi(&self) -> f64 {
        self.calibration.as_ref().map_or(1.0, |calibration| calibration.dispersion)
    }

    /// What is known about cells with such a mean.
    fn group_of(&self, mean: f64) -> Option<Group> {
        Some(self.calibration.as_ref()?.group_of(self.model.family(), mean))
    }

    fn dispersion_of(&self, mean: f64) -> f64 {
        self.group_of(mean).map_or(1.0, |group| group.dispersion)
    }
}
