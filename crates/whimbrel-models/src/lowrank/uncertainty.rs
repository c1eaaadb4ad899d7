//! How sure the parameters are: a posterior of each row, each column and each number of a term.
//!
//! With the columns as they are, the unknowns `x = (u_j, a_j)` of row `j` are a regression on
//! `z_l = (v_l, 1)` with curvature `A = sum_observed psi'' z z^T`. The fit with ridge `R` found `x`;
//! without one it would be `x_0` with `A x_0 = (A + R) x`, to first order. Values vary `phi` times as
//! much as the family says, where `phi = sum V / sum psi''` over the row's cells and `V` is the variance
//! that calibration found. So under a normal prior of precision `P`, which all rows share,
//!
//! ```text
//! Sigma = (A/phi + P)^-1,    x_post = Sigma (A/phi) x_0 = x + Sigma (R/phi - P) x,
//! ```
//!
//! with the same damping upwards of counts as a Newton step has, since `e^theta` outruns its tangent; and EM over the rows finds the prior: `1/P_k` is the mean of `x_post_k^2 + Sigma_kk` (empirical
//! Bayes). A row with few cells is moved towards the others as far as its noise says, which the ridge
//! of the fit, one for all rows, cannot.
//!
//! Likelihoods are skew: the mean of `<z, x>` is below its mode by
//! `(c/2) z^T Sigma (A/phi) Sigma z`. For counts `c = 2/phi - 1`, from the third derivative of a negative
//! binomial likelihood: 1 of Poisson's, -1 where a factor of Gamma law makes the noise.
//!
//! Columns and each number of the other terms likewise. To first order the errors of a cell's `theta`
//! are added: one [`Share`] for its row, one for its column, one for each term.

use super::histogram::{CLASSES, class_of};
use super::newton::{add_square, damping, factorised};
use super::side::Side;
use super::{Calibration, Factors, Family, LowRank};
use rayon::prelude::*;
use whimbrel_core::linalg::{packed_len, solve_lower, solve_lower_transposed};
use whimbrel_core::{Key, Result, vector};

/// The most that a standard deviation of a `theta` of counts is said to be: a factor of twenty in
/// the mean. Probabilities need no such bound.
const SPREAD_MAX: f64 = 3.0;
/// EM of a prior ends when no variance changes by a larger share, or after this number of steps.
const CHANGE_MIN: f64 = 0.01;
const STEPS_MAX: u32 = 20;
/// Keeps `A/phi` and `P` finite where nothing varies.
const VARIANCE_MIN: f64 = 1e-100;

/// How sure the parameters are.
#[derive(Clone, Debug, PartialEq)]
pub struct Uncertainty {
    /// Of the rows, and of the columns.
    pub lines: [Posteriors; 2],
    /// Of each number of the other terms; none for those of lines.
    pub terms: Vec<Posteriors>,
    /// The mean variance of `theta` over the well observed cells of the fit.
    pub usual: f64,
}

/// A cell, and how often it was observed.
pub type Counted = (u64, u32);

/// Whose error it is. Cells with the same source share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Of a row of the fit.
    Row(usize),
    /// Of a column of the fit.
    Column(usize),
    /// Of a number of a term.
    Term(usize, usize),
    /// Of a row that was fitted after the run.
    NewRow(usize),
}

impl Source {
    /// Whether errors on held-out cells have it in them.
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

/// A part of the error of a cell's `theta`: `shift + <weights, e>`, with standard normal numbers `e` of
/// its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Whose error it is.
    pub source: Source,
    /// What the source's numbers are multiplied with.
    pub weights: Vec<f64>,
    /// Its mean.
    pub shift: f64,
}

impl Share {
    /// Its variance.
    pub fn variance(&self) -> f64 {
        vector::norm2_squared(&self.weights)
    }

    /// How far it is from its mean under a key: the same `e` for all cells that have the source.
    pub fn drawn(&self, key: Key) -> f64 {
        let mut stream = self.source.address().into_iter().fold(key, Key::child).stream();
        self.weights.iter().map(|weight| weight * stream.normal()).sum()
    }
}

impl Uncertainty {
    /// Of factors fitted to these cells, whose errors are these.
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
        let fitted = |own: &[Regression], x: &[f64], ridge: &[f64]| {
            Posteriors::fitted(family, own, x, ridge)
        };
        let mut sure = all.solved(model, factors, clients, &fitted)?;
        // Where no cell was observed often, all count.
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

    /// Of factors of which no cell is known: priors as wide as what was fitted.
    pub(super) fn of_priors(model: &LowRank, factors: &Factors) -> Result<Self> {
        let all = Regressions::new(model, factors, &[], &|mean| mean);
        let fitted = |own: &[Regression], x: &[f64], ridge: &[f64]| {
            Posteriors::fitted(model.family(), own, x, ridge)
        };
        all.solved(model, factors, 1, &fitted)
    }

    /// The parts of the error of a cell's `theta`.
    pub fn shares(&self, model: &LowRank, factors: &Factors, cell: [usize; 2]) -> Vec<Share> {
        let sides = [Source::Row(cell[0]), Source::Column(cell[1])];
        let of_side = |(side, source): (Side, Source)| {
            let design = model.design(side, factors, cell);
            self.lines[side as usize].share(cell[side as usize], source, &design)
        };
        let terms = (0..self.terms.len()).filter_map(|t| self.of_term(model, t, cell));
        Side::BOTH.into_iter().zip(sides).map(of_side).chain(terms).collect()
    }

    /// What a column and the terms that do not depend on the row add to the error of a row with
    /// these factors, which the fit did not have.
    pub(super) fn shares_beside(&self, model: &LowRank, u: &[f64], column: usize) -> Vec<Share> {
        let mut design = u.to_vec();
        design.resize(model.unknowns(Side::Column), 1.0);
        let own = self.lines[1].share(column, Source::Column(column), &design);
        let terms = (0..self.terms.len()).filter(|t| model.terms()[*t].ignores(Side::Row));
        let terms = terms.filter_map(|t| self.of_term(model, t, [0, column]));
        std::iter::once(own).chain(terms).collect()
    }

    /// None for the terms of lines.
    fn of_term(&self, model: &LowRank, t: usize, cell: [usize; 2]) -> Option<Share> {
        let (at, x) = model.terms()[t].place(model.columns(), cell);
        let own = &self.terms[t];
        (!own.prior.is_empty()).then(|| own.share(at, Source::Term(t, at), &[x]))
    }

    /// The variance of a cell's `theta`.
    fn variance(&self, model: &LowRank, factors: &Factors, cell: [usize; 2]) -> f64 {
        self.shares(model, factors, cell).iter().map(Share::variance).sum()
    }
}

/// The posteriors of what has a prior in common: all rows, all columns, or all numbers of a term.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Posteriors {
    /// The diagonal of `P`: a number for each unknown.
    pub prior: Vec<f64>,
    /// One after the other the Cholesky factor of `Sigma^-1`, `x_post - x`, and `c`.
    pub each: Vec<f64>,
}

impl Posteriors {
    /// How many numbers the posterior of this number of unknowns is.
    pub fn width(unknowns: usize) -> usize {
        unknowns * unknowns + unknowns + 1
    }

    /// Under a prior that EM finds.
    fn fitted(family: Family, own: &[Regression], x: &[f64], ridge: &[f64]) -> Result<Self> {
        let q = ridge.len();
        let seen: Vec<usize> = (0..own.len()).filter(|at| own[*at].observations > 0).collect();
        // Without a cell the prior is as wide as what was fitted.
        let is_blind = seen.is_empty();
        let seen = if is_blind { (0..own.len()).collect() } else { seen };
        // Prior variances: the mean over what was seen, and never quite zero.
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

    /// `x_post_k^2 + Sigma_kk` of one of them.
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

    /// Under a given prior.
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

    fn share(&self, at: usize, source: Source, z: &[f64]) -> Share {
        let width = Self::width(z.len());
        share(source, &self.each[at * width..][..width], &self.prior, z)
    }
}

/// What a posterior says about a cell with design `z`.
pub(super) fn share(source: Source, posterior: &[f64], prior: &[f64], z: &[f64]) -> Share {
    let q = z.len();
    let (factor, rest) = posterior.split_at(q * q);
    let mut weights = z.to_vec();
    solve_lower(factor, q, &mut weights);
    let mut moved = weights.clone();
    solve_lower_transposed(factor, q, &mut moved);
    let of_prior: f64 = moved.iter().zip(prior).map(|(moved, prior)| prior * moved * moved).sum();
    let of_cells = vector::norm2_squared(&weights) - of_prior;
    let shift = vector::dot(&rest[..q], z) - 0.5 * rest[q] * of_cells;
    Share { source, weights, shift }
}

/// The regression of one line, or of one number of a term.
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
    /// Of no cell.
    pub fn new(unknowns: usize) -> Self {
        let (curvature, slope) = (vec![0.0; packed_len(unknowns)], vec![0.0; unknowns]);
        Self { curvature, slope, weight: 0.0, noise: 0.0, observations: 0 }
    }

    /// Adds a cell with this design, observed so often: its `psi''` and its variance.
    pub fn add(&mut self, z: &[f64], count: u32, [weight, noise]: [f64; 2]) {
        let times = f64::from(count);
        add_square(&mut self.curvature, z, times * weight);
        vector::axpy(&mut self.slope, times * weight, z);
        self.weight += times * weight;
        self.noise += times * noise;
        self.observations += count;
    }

    /// The posterior of a fit `x` with this ridge under this prior: the Cholesky factor of `Sigma^-1`,
    /// then `x_post - x`, then `c`.
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
            // How far it moves the row's cells on average.
            let up = vector::dot(&shift, &self.slope) / self.weight;
            vector::scale(&mut shift, damping(family, up.max(0.0)));
        }
        out.extend(shift);
        out.push(if family == Family::Poisson { 2.0 / phi - 1.0 } else { 0.0 });
        Ok(out)
    }
}

/// What finds posteriors: of these regressions, whose fit with this ridge is `x`.
type Solve<'a> = dyn Fn(&[Regression], &[f64], &[f64]) -> Result<Posteriors> + 'a;

/// The regressions of all rows, of all columns and of the numbers of the other terms.
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

    /// How often the row or the column of a cell was observed, whichever is less.
    fn observations(&self, cell: [usize; 2]) -> u32 {
        self.lines[0][cell[0]].observations.min(self.lines[1][cell[1]].observations)
    }

    fn solved(
        &self,
        model: &LowRank,
        factors: &Factors,
        clients: u32,
        solve: &Solve<'_>,
    ) -> Result<Uncertainty> {
        let n = f64::from(clients);
        let of_side = |side: Side| {
            let x = model.line_unknowns(side, factors);
            solve(&self.lines[side as usize], &x, &model.ridge(side, n))
        };
        let of_term = |(t, own): (usize, &Vec<Regression>)| match own.is_empty() {
            true => Ok(Posteriors::default()),
            false => solve(own, &factors.effects[t], &[n * model.term_ridge(t)]),
        };
        let lines = [of_side(Side::Row)?, of_side(Side::Column)?];
        let terms = self.terms.iter().enumerate().map(of_term).collect::<Result<_>>()?;
        Ok(Uncertainty { lines, terms, usual: 0.0 })
    }
}

/// How many parameters the cells determine: the trace of the rows' regressions and of the columns',
/// each with the penalties of the fit, at most as many as there are numbers.
pub fn effective_parameters(
    model: &LowRank,
    factors: &Factors,
    clients: u32,
    cells: &[Counted],
) -> Result<f64> {
    // With the family's own variance phi is one, and under the ridge as a prior Sigma = (A + R)^-1.
    let family = model.family();
    let all = Regressions::new(model, factors, cells, &|mean| family.variance(mean));
    let under = |own: &[Regression], x: &[f64], ridge: &[f64]| {
        Posteriors::under(family, own, x, ridge, ridge.to_vec())
    };
    let sure = all.solved(model, factors, clients, &under)?;
    let trace = cells.iter().map(|(at, count)| {
        let cell = model.place(*at);
        let weight = f64::from(*count) * family.variance(model.mean(factors, cell));
        weight * sure.variance(model, factors, cell)
    });
    Ok(trace.sum::<f64>().min(model.coordinates_len() as f64))
}

/// The standard deviation that goes with a variance of `theta`, at most [`SPREAD_MAX`] for counts.
pub(super) fn spread_of(family: Family, variance: f64) -> f64 {
    match family {
        Family::Gaussian | Family::Bernoulli => variance.sqrt(),
        Family::Poisson => variance.sqrt().min(SPREAD_MAX),
    }
}
