//! How sure the parameters of rows and columns are: what their own ridge regressions leave open.
//!
//! With the columns as they are, the unknowns `x_j = (u_j, a_j)` of row `j` are a penalised
//! regression on `z_l = (v_l, 1)`, with curvature and variance of the gradient
//!
//! ```text
//! A_j = sum_observed psi''(theta_jl) z_l z_l^T + ridge
//! B_j = sum_observed V(mu_jl) z_l z_l^T + phi ridge
//! ```
//!
//! where `V` is the variance of a value around its mean that calibration found and `phi` the
//! dispersion. So `x_j` has the covariance `A^-1 B A^-1 = M M^T` with `M = A^-1 chol(B)` (the sandwich,
//! with the ridge as a prior), and its error is `M e` with standard normal `e`. Columns and each
//! number of the other terms likewise. To first order the errors of a cell's `theta` are added: one
//! [`Share`] for its row, one for its column, one for each term.
//!
//! The ridge is that of the fit, or
//! `phi` over the mean square of the coordinate among all rows where that is more: a row of which
//! little is known is at least one of the table's.

use super::newton::add_square;
use super::side::Side;
use super::{Calibration, Factors, Family, LowRank};
use whimbrel_core::linalg::{
    cholesky, packed_index, packed_len, solve_lower, solve_lower_transposed, unpack,
};
use whimbrel_core::{Error, Key, Result, vector};

/// The most that a standard deviation of a `theta` of counts is said to be: a factor of twenty in
/// the mean. Probabilities need no such bound.
const SPREAD_MAX: f64 = 3.0;
/// Added to curvatures, relative to their largest: fewer cells than unknowns, without a penalty,
/// leave directions that have none.
const CURVATURE_MIN: f64 = 1e-12;

/// How sure the parameters are.
#[derive(Clone, Debug, PartialEq)]
pub struct Uncertainty {
    /// `M^T` of every row, and of every column: `q x q` numbers each for `q` unknowns.
    pub lines: [Vec<f64>; 2],
    /// The standard deviation of each number of the other terms; empty for those of lines.
    pub terms: Vec<Vec<f64>>,
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
    /// Of a row in which the fit had no cell.
    BareRow(usize),
    /// Of a column in which the fit had no cell.
    BareColumn(usize),
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
            Self::BareRow(at) => [3, at, 0],
            Self::BareColumn(at) => [4, at, 0],
            Self::NewRow(at) => [5, at, 0],
        };
        place.map(|number| number as u64)
    }
}

/// A part of the error of a cell's `theta`: `<weights, e>`, with standard normal numbers `e` of its
/// source.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Whose error it is.
    pub source: Source,
    /// What the source's numbers are multiplied with.
    pub weights: Vec<f64>,
}

impl Share {
    /// Its variance.
    pub fn variance(&self) -> f64 {
        vector::norm2_squared(&self.weights)
    }

    /// Its value under a key: the same `e` for all cells that have the source.
    pub fn drawn(&self, key: Key) -> f64 {
        let mut stream = self.source.address().into_iter().fold(key, Key::child).stream();
        self.weights.iter().map(|weight| weight * stream.normal()).sum()
    }
}

/// The noise around a fit.
struct Noise<'a> {
    /// The dispersion, which weighs the ridge.
    phi: f64,
    /// The variance of a value around its mean.
    variance: &'a dyn Fn(f64) -> f64,
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
        let phi = calibration.dispersion;
        let prior = Prior { model, factors, clients, phi };
        let ridges = Side::BOTH.map(|side| {
            let own = model.line_term(side).map(|t| prior.of_term(t));
            prior.of_factors(side).into_iter().chain(own).collect()
        });
        let noise = Noise { phi, variance: &|mean| calibration.noise(model.family(), mean) };
        Self::with_ridges(model, factors, cells, ridges, &|t| prior.of_term(t), &noise)
    }

    fn with_ridges(
        model: &LowRank,
        factors: &Factors,
        cells: &[Counted],
        ridges: [Vec<f64>; 2],
        term_ridge: &dyn Fn(usize) -> f64,
        noise: &Noise<'_>,
    ) -> Result<Self> {
        let mut terms = vec![Vec::new(); factors.effects.len()];
        for t in model.shared_terms() {
            let ridge = term_ridge(t) + f64::EPSILON;
            terms[t] = vec![[ridge, noise.phi * ridge]; factors.effects[t].len()];
        }
        let lines = [model.rows(), model.columns()];
        let mut squares = Side::BOTH.map(|side| {
            vec![Squares::new(&ridges[side as usize], noise.phi); lines[side as usize]]
        });
        for (at, count) in cells {
            let cell = model.place(*at);
            let mean = model.mean(factors, cell);
            let weights = [model.family().variance(mean), (noise.variance)(mean)]
                .map(|weight| f64::from(*count) * weight);
            for side in Side::BOTH {
                let design = model.design(side, factors, cell);
                squares[side as usize][cell[side as usize]].add(&design, weights);
            }
            for (term, own) in model.terms().iter().zip(&mut terms) {
                let (at, x) = term.place(model.columns(), cell);
                if let Some(own) = own.get_mut(at) {
                    own.iter_mut().zip(weights).for_each(|(own, weight)| *own += weight * x * x);
                }
            }
        }
        let deviation = |[a, b]: &[f64; 2]| b.sqrt() / a;
        let root = |all: &Vec<Squares>| -> Result<Vec<f64>> {
            let roots: Result<Vec<_>> = all.iter().map(Squares::root).collect();
            Ok(roots?.concat())
        };
        let terms = terms.iter().map(|own| own.iter().map(deviation).collect()).collect();
        Ok(Self { lines: [root(&squares[0])?, root(&squares[1])?], terms })
    }

    /// The parts of the error of a cell's `theta`.
    pub fn shares(&self, model: &LowRank, factors: &Factors, cell: [usize; 2]) -> Vec<Share> {
        let sides = [Source::Row(cell[0]), Source::Column(cell[1])];
        let of_side = |(side, source): (Side, Source)| {
            let design = model.design(side, factors, cell);
            let q = design.len() * design.len();
            let root = &self.lines[side as usize][cell[side as usize] * q..][..q];
            Share { source, weights: through(root, &design) }
        };
        let of_term = |(t, own): (usize, &Vec<f64>)| {
            let (at, x) = model.terms()[t].place(model.columns(), cell);
            let deviation = own.get(at)?;
            Some(Share { source: Source::Term(t, at), weights: vec![x * deviation] })
        };
        let terms = self.terms.iter().enumerate().filter_map(of_term);
        Side::BOTH.into_iter().zip(sides).map(of_side).chain(terms).collect()
    }
}

/// `A` and `B` of one row or column, packed.
#[derive(Clone)]
pub(super) struct Squares {
    unknowns: usize,
    curvature: Vec<f64>,
    noise: Vec<f64>,
}

impl Squares {
    /// Of no cell.
    pub fn new(ridge: &[f64], phi: f64) -> Self {
        let curvature = diagonal(ridge);
        let noise = curvature.iter().map(|ridge| phi * ridge).collect();
        Self { unknowns: ridge.len(), curvature, noise }
    }

    /// Adds a cell with this design: its `psi''` and its variance.
    pub fn add(&mut self, design: &[f64], [curvature, noise]: [f64; 2]) {
        add_square(&mut self.curvature, design, curvature);
        add_square(&mut self.noise, design, noise);
    }

    /// `M^T`, row `k` of which is `A^-1` times column `k` of `chol(B)`.
    pub fn root(&self) -> Result<Vec<f64>> {
        let q = self.unknowns;
        let largest =
            |packed: &[f64]| (0..q).map(|k| packed[packed_index(k, k)]).fold(0.0, f64::max);
        let factor = |packed: &[f64]| {
            let (mut factor, largest) = (unpack(packed, q), largest(packed));
            (0..q).for_each(|k| factor[k * q + k] += CURVATURE_MIN * largest);
            let done = cholesky(&mut factor, q);
            done.map_err(|_| Error::numerical("a row has no finite curvature"))?;
            Ok::<_, Error>(factor)
        };
        let mut out = vec![0.0; q * q];
        if largest(&self.noise) == 0.0 {
            return Ok(out);
        }
        let (of_curvature, of_noise) = (factor(&self.curvature)?, factor(&self.noise)?);
        for (k, column) in out.chunks_exact_mut(q.max(1)).enumerate() {
            (k..q).for_each(|i| column[i] = of_noise[i * q + k]);
            solve_lower(&of_curvature, q, column);
            solve_lower_transposed(&of_curvature, q, column);
        }
        Ok(out)
    }
}

/// `M^T z`.
pub(super) fn through(root: &[f64], design: &[f64]) -> Vec<f64> {
    root.chunks_exact(design.len().max(1)).map(|row| vector::dot(row, design)).collect()
}

/// How many parameters the cells determine: the trace of the rows' regressions and of the columns',
/// each with the penalties of the fit, at most as many as there are numbers.
pub fn effective_parameters(
    model: &LowRank,
    factors: &Factors,
    clients: u32,
    cells: &[Counted],
) -> Result<f64> {
    let ridges = Side::BOTH.map(|side| model.ridge(side, f64::from(clients)));
    let term = |t: usize| f64::from(clients) * model.term_ridge(t);
    // With the family's own variance and a dispersion of one, A^-1 B A^-1 is A^-1.
    let noise = Noise { phi: 1.0, variance: &|mean| model.family().variance(mean) };
    let all = Uncertainty::with_ridges(model, factors, cells, ridges, &term, &noise)?;
    let trace = cells.iter().map(|(at, count)| {
        let cell = model.place(*at);
        let weight = f64::from(*count) * model.family().variance(model.mean(factors, cell));
        weight * all.shares(model, factors, cell).iter().map(Share::variance).sum::<f64>()
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

/// The ridge of the fit, or what the spread of a coordinate over the table says.
pub(super) struct Prior<'a> {
    pub model: &'a LowRank,
    pub factors: &'a Factors,
    pub clients: u32,
    pub phi: f64,
}

impl Prior<'_> {
    /// Of the factors of a line.
    pub fn of_factors(&self, side: Side) -> Vec<f64> {
        let (r, all) = (self.model.rank(), [&self.factors.u, &self.factors.v][side as usize]);
        let lambda = self.model.settings().lambda;
        (0..r).map(|k| self.of(lambda, all.iter().skip(k).step_by(r))).collect()
    }

    /// Of each number of a term.
    pub fn of_term(&self, t: usize) -> f64 {
        self.of(self.model.term_ridge(t), self.factors.effects[t].iter())
    }

    fn of<'a>(&self, ridge: f64, values: impl Iterator<Item = &'a f64>) -> f64 {
        (f64::from(self.clients) * ridge).max(self.phi / mean_square(values))
    }
}

/// The mean of the squares, and never quite zero.
fn mean_square<'a>(values: impl Iterator<Item = &'a f64>) -> f64 {
    let add = |(sum, count): (f64, f64), x: &f64| (sum + x * x, count + 1.0);
    let (sum, count) = values.fold((0.0, 0.0), add);
    (sum / count).max(f64::EPSILON)
}

/// A packed matrix with the ridge on its diagonal.
fn diagonal(ridge: &[f64]) -> Vec<f64> {
    let mut packed = vec![0.0; packed_len(ridge.len())];
    for (k, value) in ridge.iter().enumerate() {
        packed[packed_index(k, k)] = value + f64::EPSILON;
    }
    packed
}
