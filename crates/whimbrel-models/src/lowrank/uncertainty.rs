//! Posterior uncertainty of the parameters: of each row, each column and each coefficient of a term.
//!
//! With the columns fixed, the unknowns `x = (u_j, a_j)` of row `j` are the coefficients of a regression
//! on `z_l = (v_l, 1)` with curvature `A = sum_observed psi'' z z^T`. The fit has ridge `R` and estimate
//! `x`; the unpenalised estimate `x_0` satisfies `A x_0 = (A + R) x` to first order. The variance is
//! `phi` times the family's, where `phi = sum V / sum psi''` over the row's cells and `V` is the
//! calibrated variance. Under a normal prior of precision `P`, common to all rows,
//!
//! ```text
//! Sigma = (A/phi + P)^-1,    x_post = Sigma (A/phi) x_0 = x + Sigma (R/phi - P) x,
//! ```
//!
//! where an upward shift of counts is damped like a Newton step, since `e^theta` grows faster than its
//! tangent. EM over the rows estimates the prior (empirical Bayes): `1/P_k` is the mean of
//! `x_post_k^2 + Sigma_kk`. Sparsely observed rows are thereby shrunk according to their noise, which the
//! common ridge of the fit cannot do.
//!
//! The likelihood is skewed: the posterior mean of `<z, x>` is below its mode by
//! `(c/2) z^T Sigma (A/phi) Sigma z`. For counts `c = 2/phi - 1`, from the third derivative of a negative
//! binomial likelihood: 1 for Poisson noise, -1 for noise from a gamma factor.
//!
//! Columns and the coefficients of the other terms are treated alike. To first order the error of a
//! cell's `theta` is a sum: one [`ErrorPart`] for its row, one for its column, one for each term.

use super::histogram::{CLASSES, class_of};
use super::newton::{add_square, damping, factorised};
use super::side::Side;
use super::{Calibration, Factors, Family, LowRank};
use rayon::prelude::*;
use whimbrel_core::linalg::{packed_len, solve_lower, solve_lower_transposed};
use whimbrel_core::{Key, Result, vector};

/// Largest reported standard deviation of a count's `theta`: a factor of twenty in the mean.
const SPREAD_MAX: f64 = 3.0;
/// EM for a prior stops at this relative change of the variances, or after [`STEPS_MAX`] steps.
const CHANGE_MIN: f64 = 0.01;
const STEPS_MAX: u32 = 20;
/// Keeps `A/phi` and `P` finite for constant data.
const VARIANCE_MIN: f64 = 1e-100;

/// Posterior uncertainty of all parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Uncertainty {
    /// Rows, then columns.
    pub lines: [Posteriors; 2],
    /// The coefficients of each other term; empty for row and column effects.
    pub terms: Vec<Posteriors>,
    /// The mean variance of `theta` over the frequently observed cells.
    pub usual: f64,
}

/// The index of a cell, and its number of observations.
pub type Counted = (u64, u32);

/// The parameters that an error comes from. Cells with a common source share the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorSource {
    Row(usize),
    Column(usize),
    /// A term, and the index of its coefficient.
    Term(usize, usize),
    /// A row added after the run.
    NewRow(usize),
}

impl ErrorSource {
    /// Whether errors on held-out cells include it.
    pub fn is_of_fit(self) -> bool {
        matches!(self, Self::Row(_) | Self::Column(_) | Self::Term(..))
    }

    fn address(self) -> [u64; 3] {
        let place = match self {
            Self::Row(at) => [0, at, 0],
            Self::Column(at) => [1, at, 0],
            Self::Term(t, at) => [2, t, at],
            Self::NewRow(at) => [3, at, 0],
        };
        place.map(|number| number as u64)
    }
}

/// A part of the error of a cell's `theta`: `shift + <weights, e>`, with standard normal `e` that belong
/// to the source.
#[derive(Clone, Debug, PartialEq)]
pub struct ErrorPart {
    pub source: ErrorSource,
    pub weights: Vec<f64>,
    /// The mean.
    pub shift: f64,
}

impl ErrorPart {
    pub fn variance(&self) -> f64 {
        vector::norm2_squared(&self.weights)
    }

    /// The deviation from the mean under a key: all cells with this source get the same `e`.
    pub fn drawn(&self, key: Key) -> f64 {
        let mut stream = self.source.address().into_iter().fold(key, Key::child).stream();
        self.weights.iter().map(|weight| weight * stream.normal()).sum()
    }
}

impl Uncertainty {
    /// The posterior of factors fitted to these cells.
    pub fn new(
        model: &LowRank,
        factors: &Factors,
        clients: u32,
        calibration: &Calibration,
        cells: &[Counted],
    ) -> Result<Self> {
        let family = model.family();
        let noise = |mean| calibration.noise(family, mean);
        let all = Regressions::new(model, factors, cells, &noise);
        let mut sure = all.posteriors(model, factors, clients, Posteriors::fitted)?;
        // All cells, if none was observed often.
        let (mut often, mut any) = ([0.0; 2], [0.0; 2]);
        for (at, count) in cells {
            let cell = model.place(*at);
            let (count, variance) = (f64::from(*count), sure.variance(model, factors, cell));
            let is_often = class_of(all.observations(cell)) == CLASSES - 1;
            for sum in [Some(&mut any), is_often.then_some(&mut often)].into_iter().flatten() {
                *sum = [sum[0] + count, sum[1] + count * variance];
            }
        }
        let [count, sum] = if often[0] > 0.0 { often } else { any };
        sure.usual = if count > 0.0 { sum / count } else { 0.0 };
        Ok(sure)
    }

    /// The posterior without cells: priors as wide as the fitted parameters.
    pub(super) fn of_priors(model: &LowRank, factors: &Factors) -> Result<Self> {
        let all = Regressions::new(model, factors, &[], &|mean| mean);
        all.posteriors(model, factors, 1, Posteriors::fitted)
    }

    /// The parts of the error of a cell's `theta`.
    pub fn error_parts(
        &self,
        model: &LowRank,
        factors: &Factors,
        cell: [usize; 2],
    ) -> Vec<ErrorPart> {
        let sides = [ErrorSource::Row(cell[0]), ErrorSource::Column(cell[1])];
        let of_side = |(side, source): (Side, ErrorSource)| {
            let design = model.design(side, factors, cell);
            self.lines[side as usize].share(cell[side as usize], source, &design)
        };
        let terms = (0..self.terms.len()).filter_map(|t| self.of_term(model, t, cell));
        Side::BOTH.into_iter().zip(sides).map(of_side).chain(terms).collect()
    }

    /// The error parts that a new row with these factors shares with the fit: those of the column and
    /// of terms that do not depend on the row.
    pub(super) fn parts_beside(&self, model: &LowRank, u: &[f64], column: usize) -> Vec<ErrorPart> {
        let mut design = u.to_vec();
        design.resize(model.unknowns(Side::Column), 1.0);
        let own = self.lines[1].share(column, ErrorSource::Column(column), &design);
        let terms = (0..self.terms.len()).filter(|t| model.terms()[*t].ignores(Side::Row));
        let terms = terms.filter_map(|t| self.of_term(model, t, [0, column]));
        std::iter::once(own).chain(terms).collect()
    }

    /// The part of a term; `None` for row and column effects.
    fn of_term(&self, model: &LowRank, t: usize, cell: [usize; 2]) -> Option<ErrorPart> {
        let (at, x) = model.terms()[t].place(model.columns(), cell);
        let own = &self.terms[t];
        (!own.prior.is_empty()).then(|| own.share(at, ErrorSource::Term(t, at), &[x]))
    }

    /// The variance of a cell's `theta`.
    fn variance(&self, model: &LowRank, factors: &Factors, cell: [usize; 2]) -> f64 {
        self.error_parts(model, factors, cell).iter().map(ErrorPart::variance).sum()
    }
}

/// The posteriors of all rows, all columns, or all coefficients of a term, which share a prior.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Posteriors {
    /// The diagonal of `P`.
    pub prior: Vec<f64>,
    /// For each of them the Cholesky factor of `Sigma^-1`, then `x_post - x`, then `c`.
    pub each: Vec<f64>,
}

impl Posteriors {
    /// Stored numbers per posterior of this number of unknowns.
    pub fn width(unknowns: usize) -> usize {
        unknowns * unknowns + unknowns + 1
    }

    /// The posteriors under the prior estimated by EM.
    fn fitted(family: Family, own: &[Regression], x: &[f64], ridge: &[f64]) -> Result<Self> {
        let q = ridge.len();
        let seen: Vec<usize> = (0..own.len()).filter(|at| own[*at].observations > 0).collect();
        // Without cells the prior is as wide as the fitted parameters.
        let is_blind = seen.is_empty();
        let seen = if is_blind { (0..own.len()).collect() } else { seen };
        // Prior variances: means over observed lines, bounded away from zero.
        let mean = |of: &dyn Fn(usize, usize) -> f64| -> Vec<f64> {
            let sum = |k: usize| seen.iter().map(|at| of(*at, k)).sum::<f64>();
            (0..q).map(|k| (sum(k) / seen.len() as f64).max(VARIANCE_MIN)).collect()
        };
        let mut variances = mean(&|at, k| x[at * q + k].powi(2));
        for step in 1.. {
            let prior: Vec<f64> = variances.iter().map(|variance| 1.0 / variance).collect();
            let found = Self::under(family, own, x, ridge, prior)?;
            let seconds: Vec<Vec<f64>> =
                (0..own.len()).into_par_iter().map(|at| found.seconds(at, x, q)).collect();
            let next = mean(&|at, k| seconds[at][k]);
            let is_close = |(next, now): (&f64, &f64)| (next / now - 1.0).abs() < CHANGE_MIN;
            if is_blind || step == STEPS_MAX || next.iter().zip(&variances).all(is_close) {
                return Ok(found);
            }
            variances = next;
        }
        unreachable!("the loop ends after {STEPS_MAX} steps")
    }

    /// `x_post_k^2 + Sigma_kk` of each unknown.
    fn seconds(&self, at: usize, x: &[f64], q: usize) -> Vec<f64> {
        let each = &self.each[at * Self::width(q)..][..Self::width(q)];
        let second = |k: usize| {
            let mut unit = vec![0.0; q];
            unit[k] = 1.0;
            solve_lower(&each[..q * q], q, &mut unit);
            (x[at * q + k] + each[q * q + k]).powi(2) + vector::norm2_squared(&unit)
        };
        (0..q).map(second).collect()
    }

    /// The posteriors under a given prior.
    fn under(
        family: Family,
        own: &[Regression],
        x: &[f64],
        ridge: &[f64],
        prior: Vec<f64>,
    ) -> Result<Self> {
        let q = ridge.len();
        let lines = own.par_iter().enumerate();
        let each: Result<Vec<Vec<f64>>> = lines
            .map(|(at, own)| own.posterior(family, &x[at * q..][..q], ridge, &prior))
            .collect();
        Ok(Self { each: each?.concat(), prior })
    }

    fn share(&self, at: usize, source: ErrorSource, z: &[f64]) -> ErrorPart {
        let width = Self::width(z.len());
        share(source, &self.each[at * width..][..width], &self.prior, z)
    }
}

/// The error part of a cell with design `z`.
pub(super) fn share(source: ErrorSource, posterior: &[f64], prior: &[f64], z: &[f64]) -> ErrorPart {
    let q = z.len();
    let (factor, rest) = posterior.split_at(q * q);
    let mut weights = z.to_vec();
    solve_lower(factor, q, &mut weights);
    let mut moved = weights.clone();
    solve_lower_transposed(factor, q, &mut moved);
    let of_prior: f64 = moved.iter().zip(prior).map(|(moved, prior)| prior * moved * moved).sum();
    let of_cells = vector::norm2_squared(&weights) - of_prior;
    let shift = vector::dot(&rest[..q], z) - 0.5 * rest[q] * of_cells;
    ErrorPart { source, weights, shift }
}

/// The regression of one line, or of one coefficient of a term.
#[derive(Clone)]
pub(super) struct Regression {
    /// `A`, packed.
    curvature: Vec<f64>,
    /// `sum psi'' z`, `sum psi''` and `sum V`.
    slope: Vec<f64>,
    weight: f64,
    noise: f64,
    observations: u32,
}

impl Regression {
    pub fn new(unknowns: usize) -> Self {
        let (curvature, slope) = (vec![0.0; packed_len(unknowns)], vec![0.0; unknowns]);
        Self { curvature, slope, weight: 0.0, noise: 0.0, observations: 0 }
    }

    /// Adds a cell with this design and number of observations, its `psi''` and its variance.
    pub fn add(&mut self, z: &[f64], count: u32, [weight, noise]: [f64; 2]) {
        let times = f64::from(count);
        add_square(&mut self.curvature, z, times * weight);
        vector::axpy(&mut self.slope, times * weight, z);
        self.weight += times * weight;
        self.noise += times * noise;
        self.observations += count;
    }

    /// The posterior under a prior, given the estimate `x` with its ridge: the Cholesky factor of
    /// `Sigma^-1`, then `x_post - x`, then `c`.
    pub fn posterior(
        &self,
        family: Family,
        x: &[f64],
        ridge: &[f64],
        prior: &[f64],
    ) -> Result<Vec<f64>> {
        let q = x.len();
        let is_seen = self.weight > 0.0;
        let phi = if is_seen { (self.noise / self.weight).max(VARIANCE_MIN) } else { 1.0 };
        let information: Vec<f64> = self.curvature.iter().map(|a| a / phi).collect();
        let mut out = factorised(&information, prior)?;
        let mut shift: Vec<f64> = x.iter().map(|x| -x).collect();
        if is_seen {
            for (k, shift) in shift.iter_mut().enumerate() {
                *shift = (ridge[k] / phi - prior[k]) * x[k];
            }
            solve_lower(&out, q, &mut shift);
            solve_lower_transposed(&out, q, &mut shift);
            // The mean change of the row's `theta`.
            let up = vector::dot(&shift, &self.slope) / self.weight;
            vector::scale(&mut shift, damping(family, up.max(0.0)));
        }
        out.extend(shift);
        out.push(if family == Family::Poisson { 2.0 / phi - 1.0 } else { 0.0 });
        Ok(out)
    }
}

/// The regressions of all rows, all columns and all coefficients of the other terms.
struct Regressions {
    lines: [Vec<Regression>; 2],
    terms: Vec<Vec<Regression>>,
}

impl Regressions {
    fn new(
        model: &LowRank,
        factors: &Factors,
        cells: &[Counted],
        noise: &dyn Fn(f64) -> f64,
    ) -> Self {
        let counts = [model.rows(), model.columns()];
        let mut lines = Side::BOTH
            .map(|side| vec![Regression::new(model.unknowns(side)); counts[side as usize]]);
        let mut terms = vec![Vec::new(); factors.effects.len()];
        for t in model.shared_terms() {
            terms[t] = vec![Regression::new(1); factors.effects[t].len()];
        }
        for (at, count) in cells {
            let cell = model.place(*at);
            let mean = model.mean(factors, cell);
            let weights = [model.family().variance(mean), noise(mean)];
            for side in Side::BOTH {
                let design = model.design(side, factors, cell);
                lines[side as usize][cell[side as usize]].add(&design, *count, weights);
            }
            for (term, own) in model.terms().iter().zip(&mut terms) {
                let (at, x) = term.place(model.columns(), cell);
                if let Some(own) = own.get_mut(at) {
                    own.add(&[x], *count, weights);
                }
            }
        }
        Self { lines, terms }
    }

    /// Number of observations of a cell's row or column, whichever is smaller.
    fn observations(&self, cell: [usize; 2]) -> u32 {
        self.lines[0][cell[0]].observations.min(self.lines[1][cell[1]].observations)
    }

    /// The posteriors of all regressions; `solve` takes the family, regressions, estimates and ridges.
    fn posteriors(
        &self,
        model: &LowRank,
        factors: &Factors,
        clients: u32,
        solve: impl Fn(Family, &[Regression], &[f64], &[f64]) -> Result<Posteriors>,
    ) -> Result<Uncertainty> {
        let (family, n) = (model.family(), f64::from(clients));
        let of_side = |side: Side| {
            let x = model.line_unknowns(side, factors);
            solve(family, &self.lines[side as usize], &x, &model.ridge(side, n))
        };
        let of_term = |(t, own): (usize, &Vec<Regression>)| {
            if own.is_empty() {
                return Ok(Posteriors::default());
            }
            solve(family, own, &factors.effects[t], &[n * model.term_ridge(t)])
        };
        let lines = [of_side(Side::Row)?, of_side(Side::Column)?];
        let terms = self.terms.iter().enumerate().map(of_term).collect::<Result<_>>()?;
        Ok(Uncertainty { lines, terms, usual: 0.0 })
    }
}

/// The effective number of parameters: the traces of the hat matrices of all penalised row and column
/// regressions, at most the number of parameters.
pub fn effective_parameters(
    model: &LowRank,
    factors: &Factors,
    clients: u32,
    cells: &[Counted],
) -> Result<f64> {
    // With the family's variance phi = 1, and with the ridge as prior Sigma = (A + R)^-1.
    let family = model.family();
    let all = Regressions::new(model, factors, cells, &|mean| family.variance(mean));
    let under = |family, own: &[Regression], x: &[f64], ridge: &[f64]| {
        Posteriors::under(family, own, x, ridge, ridge.to_vec())
    };
    let sure = all.posteriors(model, factors, clients, under)?;
    let trace = cells.iter().map(|(at, count)| {
        let cell = model.place(*at);
        let weight = f64::from(*count) * family.variance(model.mean(factors, cell));
        weight * sure.variance(model, factors, cell)
    });
    Ok(trace.sum::<f64>().min(model.coordinates_len() as f64))
}

/// The standard deviation of `theta`, at most [`SPREAD_MAX`] for counts.
pub(super) fn spread_of(family: Family, variance: f64) -> f64 {
    match family {
        Family::Gaussian | Family::Bernoulli => variance.sqrt(),
        Family::Poisson => variance.sqrt().min(SPREAD_MAX),
    }
}
