//! How sure the parameters of rows and columns are: what their own ridge regressions leave open.
//!
//! With the columns as they are, the unknowns `x_j = (u_j, a_j)` of row `j` are a penalised
//! regression on `z_l = (v_l, 1)`, with curvature
//!
//! ```text
//! A_j = sum_observed psi''(theta_jl) z_l z_l^T + ridge
//! ```
//!
//! so that `theta_jl` has the variance `phi z_l^T A_j^-1 z_l` from the row's side, with `phi` the
//! dispersion, and likewise from the column's and from each number of the other terms; they are added.
//! The ridge is that of the fit, or
//! `phi` over the mean square of the coordinate among all rows where that is more: a row of which
//! little is known is at least one of the table's.

use super::newton::add_square;
use super::side::Side;
use super::{Factors, Family, LowRank};
use whimbrel_core::linalg::{
    cholesky, pack, packed_index, packed_len, solve_lower, solve_lower_transposed, unpack,
};
use whimbrel_core::{Error, Result};

/// The most that a standard deviation of a `theta` of counts is said to be: a factor of twenty in
/// the mean. Probabilities need no such bound.
const SPREAD_MAX: f64 = 3.0;
/// Added to curvatures, relative to their largest: fewer cells than unknowns, without a penalty,
/// leave directions that have none.
const CURVATURE_MIN: f64 = 1e-12;

/// `A^-1` of every row and every column.
#[derive(Clone, Debug, PartialEq)]
pub struct Uncertainty {
    /// Row after row, each packed.
    pub rows: Vec<f64>,
    /// Column after column, each packed.
    pub columns: Vec<f64>,
    /// The same of each number of the other terms; empty for those of lines.
    pub terms: Vec<Vec<f64>>,
}

/// A cell, and how often it was observed.
pub type Counted = (u64, u32);

impl Uncertainty {
    /// Of factors fitted to these cells, of dispersion `phi`.
    pub fn new(
        model: &LowRank,
        factors: &Factors,
        clients: u32,
        phi: f64,
        cells: &[Counted],
    ) -> Result<Self> {
        let ridges = Side::BOTH.map(|side| prior_ridge(model, side, factors, clients, phi));
        let term = |t: usize| {
            let own = f64::from(clients) * model.term_ridge(t);
            own.max(phi / mean_square(factors.effects[t].iter()))
        };
        Self::with_ridges(model, factors, cells, ridges, &term)
    }

    fn with_ridges(
        model: &LowRank,
        factors: &Factors,
        cells: &[Counted],
        ridges: [Vec<f64>; 2],
        term_ridge: &dyn Fn(usize) -> f64,
    ) -> Result<Self> {
        let mut terms = vec![Vec::new(); factors.effects.len()];
        for t in model.shared_terms() {
            terms[t] = vec![term_ridge(t) + f64::EPSILON; factors.effects[t].len()];
        }
        let lines = [model.rows(), model.columns()];
        let mut curvatures =
            Side::BOTH.map(|side| diagonal(&ridges[side as usize]).repeat(lines[side as usize]));
        for (at, count) in cells {
            let cell = place(model, *at);
            let weight = f64::from(*count) * information(model, factors, cell);
            for side in Side::BOTH {
                let q = packed_len(ridges[side as usize].len());
                let own = &mut curvatures[side as usize][cell[side as usize] * q..][..q];
                add_square(own, &model.design(side, factors, cell), weight);
            }
            for (term, own) in model.terms().iter().zip(&mut terms) {
                let (at, x) = term.place(model.columns(), cell);
                if let Some(curvature) = own.get_mut(at) {
                    *curvature += weight * x * x;
                }
            }
        }
        terms.iter_mut().flatten().for_each(|curvature| *curvature = 1.0 / *curvature);
        for (all, ridge) in curvatures.iter_mut().zip(&ridges) {
            for own in all.chunks_exact_mut(packed_len(ridge.len()).max(1)) {
                own.copy_from_slice(&inverse(own, ridge.len())?);
            }
        }
        let [rows, columns] = curvatures;
        Ok(Self { rows, columns, terms })
    }

    /// `z^T A^-1 z` of a cell from each side and each term.
    fn variances(&self, model: &LowRank, factors: &Factors, cell: [usize; 2]) -> f64 {
        let of = |side: Side| {
            let design = model.design(side, factors, cell);
            let q = packed_len(design.len());
            let all = [&self.rows, &self.columns][side as usize];
            quadratic(&all[cell[side as usize] * q..][..q], &design)
        };
        let terms = model.terms().iter().zip(&self.terms).map(|(term, own)| {
            let (at, x) = term.place(model.columns(), cell);
            own.get(at).map_or(0.0, |open| x * x * open)
        });
        Side::BOTH.into_iter().map(of).chain(terms).sum()
    }

    /// The standard deviation of `theta_jl`.
    pub fn spread(&self, model: &LowRank, factors: &Factors, cell: [usize; 2], phi: f64) -> f64 {
        spread_of(model.family(), phi * self.variances(model, factors, cell))
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
    let ridges = Side::BOTH.map(|side| model.ridge(side, f64::from(clients)));
    let term = |t: usize| f64::from(clients) * model.term_ridge(t);
    let all = Uncertainty::with_ridges(model, factors, cells, ridges, &term)?;
    let trace = cells.iter().map(|(at, count)| {
        let cell = place(model, *at);
        let weight = f64::from(*count) * information(model, factors, cell);
        weight * all.variances(model, factors, cell)
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

/// The ridge of the fit, or what the spread of the coordinate over the table says.
pub(super) fn prior_ridge(
    model: &LowRank,
    side: Side,
    factors: &Factors,
    clients: u32,
    phi: f64,
) -> Vec<f64> {
    let u = match side {
        Side::Row => &factors.u,
        Side::Column => &factors.v,
    };
    let effects = model.line_term(side).map(|t| &factors.effects[t]);
    let mean_square = |k: usize| match effects {
        Some(effects) if k >= model.rank() => mean_square(effects.iter()),
        _ => mean_square(u.iter().skip(k).step_by(model.rank())),
    };
    let penalty = model.ridge(side, f64::from(clients));
    penalty.iter().enumerate().map(|(k, own)| own.max(phi / mean_square(k))).collect()
}

/// The mean of the squares, and never quite zero.
pub(super) fn mean_square<'a>(values: impl Iterator<Item = &'a f64>) -> f64 {
    let add = |(sum, count): (f64, f64), x: &f64| (sum + x * x, count + 1.0);
    let (sum, count) = values.fold((0.0, 0.0), add);
    (sum / count).max(f64::EPSILON)
}

/// `psi''(theta_jl)`.
fn information(model: &LowRank, factors: &Factors, [row, column]: [usize; 2]) -> f64 {
    model.family().variance(model.family().mean(model.theta(factors, row, column)))
}

fn place(model: &LowRank, cell: u64) -> [usize; 2] {
    [cell as usize / model.columns(), cell as usize % model.columns()]
}

/// A packed matrix with the ridge on its diagonal.
pub(super) fn diagonal(ridge: &[f64]) -> Vec<f64> {
    let mut packed = vec![0.0; packed_len(ridge.len())];
    for (k, value) in ridge.iter().enumerate() {
        packed[packed_index(k, k)] = value + f64::EPSILON;
    }
    packed
}

/// The inverse of a packed matrix, packed.
pub(super) fn inverse(packed: &[f64], q: usize) -> Result<Vec<f64>> {
    let mut factor = unpack(packed, q);
    let largest = (0..q).map(|k| factor[k * q + k]).fold(0.0, f64::max);
    (0..q).for_each(|k| factor[k * q + k] += CURVATURE_MIN * largest);
    cholesky(&mut factor, q).map_err(|_| Error::numerical("a row has no finite curvature"))?;
    let mut out = vec![0.0; q * q];
    for (k, column) in out.chunks_exact_mut(q.max(1)).enumerate() {
        column[k] = 1.0;
        solve_lower(&factor, q, column);
        solve_lower_transposed(&factor, q, column);
    }
    Ok(pack(&out, q))
}

/// `z^T A z` of a packed matrix.
pub(super) fn quadratic(a: &[f64], z: &[f64]) -> f64 {
    let mut sum = 0.0;
    for k in 0..z.len() {
        for m in 0..k {
            sum += 2.0 * a[packed_index(k, m)] * z[k] * z[m];
        }
        sum += a[packed_index(k, k)] * z[k] * z[k];
    }
    sum.max(0.0)
}
