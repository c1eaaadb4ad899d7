//! A fitted table: what is expected of a cell, and how sure that is.

use super::ceiling::{Ceiling, capped};
use super::interval::{self, CLASSES, Calibration, Group, NORMAL_QUANTILE, OCTAVES};
use super::uncertainty::spread_of;
use super::{Factors, Family, LowRank, Uncertainty};
use whimbrel_core::Stream;
use whimbrel_core::math::{exp, ln_1p};

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
    /// How often the row or the column was observed, whichever is less.
    pub observations: u32,
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
        let spread = self.uncertainty.as_ref().map_or(0.0, of);
        let observations = self.observations[0][row].min(self.observations[1][column]);
        Parameter { theta, spread, observations }
    }

    /// A parameter with another variance beside its own.
    pub fn widened(&self, own: Parameter, variance: f64) -> Parameter {
        let spread = spread_of(self.model.family(), own.spread * own.spread + variance);
        Parameter { spread, ..own }
    }

    /// The standard deviation of a value around its mean, with the dispersion that was found.
    pub fn sd(&self, Parameter { theta, spread, observations }: Parameter) -> f64 {
        let family = self.model.family();
        let mean = family.mean(theta);
        let dispersion = self.group_of(mean, observations).dispersion;
        let noise = dispersion.sqrt() * interval::scale(family, mean);
        // The longer side: the deviation of the exponential of a normal number is longer still.
        let [down, up] = [theta - spread, theta + spread].map(|theta| family.mean(theta) - mean);
        let drift = up.max(-down);
        (noise * noise + drift * drift).sqrt()
    }

    /// An interval that is to hold nine values in ten, within the range of the family: on each side
    /// the root of the sum of squares of what the noise and what the mean's own error reach. Ends of
    /// counts are whole numbers.
    pub fn interval(&self, Parameter { theta, spread, observations }: Parameter) -> (f64, f64) {
        let family = self.model.family();
        let mean = family.mean(theta);
        let noise = self.group_of(mean, observations).quantile * interval::scale(family, mean);
        let reach = |theta| {
            let drift: f64 = family.mean(theta) - mean;
            (noise * noise + drift * drift).sqrt()
        };
        let [down, up] = [-NORMAL_QUANTILE, NORMAL_QUANTILE].map(|z| reach(theta + z * spread));
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

    /// A value drawn from the fitted model, for a multiple imputation: the parameter first. `common`
    /// is a standard normal number that the cells of a row share in one imputation: by how much
    /// hardly observed rows scatter more than well observed ones is the error of the row's own
    /// parameters, as often above as below on the scale of `theta`. Counts with a dispersion above one have a gamma-distributed rate, so that their
    /// variance is dispersion times mean.
    pub fn draw(&self, parameter: Parameter, common: f64, stream: &mut Stream) -> f64 {
        let (family, Parameter { theta, spread, observations }) = (self.model.family(), parameter);
        let theta = if spread > 0.0 { theta + spread * stream.normal() } else { theta };
        let mean = family.mean(theta);
        let known = self.group_of(mean, u32::MAX).dispersion;
        let excess = (self.group_of(mean, observations).dispersion - known).max(0.0);
        let variance = excess * interval::scale(family, mean).powi(2);
        let mean = match family {
            Family::Gaussian => mean + variance.sqrt() * common,
            Family::Poisson if variance > 0.0 && mean > 0.0 => {
                family.mean(theta + log_variance(mean, known, variance).sqrt() * common)
            }
            Family::Poisson => mean,
            Family::Bernoulli => {
                let slope = family.variance(mean).max(f64::EPSILON);
                family.mean(theta + variance.sqrt() / slope * common)
            }
        };
        let over = known - 1.0;
        if family == Family::Poisson && over > 0.0 && mean > 0.0 {
            let rate = over * stream.gamma(mean / over);
            return stream.poisson(rate) as f64;
        }
        family.draw(mean, known.sqrt(), stream)
    }

    /// The dispersion over all cells.
    pub(super) fn phi(&self) -> f64 {
        self.calibration.as_ref().map_or(1.0, |calibration| calibration.dispersion)
    }

    /// What is known about cells with such a mean, whose row and column were observed so often; the
    /// family alone where nothing is.
    fn group_of(&self, mean: f64, observations: u32) -> Group {
        let family = self.model.family();
        let found = self.calibration.as_ref().map(|c| c.group_of(family, mean, observations));
        found.unwrap_or(Group {
            class: CLASSES - 1,
            last: OCTAVES - 1,
            quantile: NORMAL_QUANTILE,
            dispersion: 1.0,
        })
    }
}

/// The variance `x` of the logarithm of a row's factor, whose median is 1, under which counts of
/// dispersion `phi` are further from `mean`, in mean square, by `excess`:
///
/// ```text
/// mean^2 [exp(2x) - 2 exp(x/2) + 1] + phi mean [exp(x/2) - 1] = excess
/// ```
fn log_variance(mean: f64, phi: f64, excess: f64) -> f64 {
    let (noise, wanted) = (phi / mean, excess / (mean * mean));
    // Convex and increasing: Newton's steps come down to the root from above, where this is.
    let mut x = 0.5 * (ln_1p(wanted) + 1.0);
    for _ in 0..NEWTON_STEPS {
        let half = exp(0.5 * x);
        let above = half.powi(4) - 2.0 * half + 1.0 + noise * (half - 1.0) - wanted;
        x -= above / (2.0 * half.powi(4) - half + 0.5 * noise * half);
    }
    x.max(0.0)
}

/// Steps double the digits that are right.
const NEWTON_STEPS: u32 = 10;
