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
//! dispersion, and likewise from the column's; the two are added. The ridge is that of the fit, or
//! `phi` over the mean square of the coordinate among all rows where that is more: a row of which
//! little is known is at least one of the table's.

use super::newton::add_square;
use super::{Factors, Family, LowRank, Settings};
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
        let ridges = [Side::Row, Side::Column].map(|s| s.ridge(model, factors, clients, phi));
        let [rows, columns] = inverses(model, factors, cells, &ridges)?;
        Ok(Self { rows, columns })
    }

    /// The standard deviation of `theta_jl`.
    pub fn spread(&self, model: &LowRank, factors: &Factors, cell: [usize; 2], phi: f64) -> f64 {
        let sides = [(Side::Row, &self.rows), (Side::Column, &self.columns)];
        let variance = sides.into_iter().map(|(side, inverses)| {
            let design = side.design(model, factors, cell);
            let q = packed_len(design.len());
            let own = cell[side as usize];
            quadratic(&inverses[own * q..][..q], &design)
        });
        spread_of(model.family(), phi * variance.sum::<f64>())
    }
}

/// The standard deviation that goes with a variance of `theta`, at most [`SPREAD_MAX`] for counts.
pub(super) fn spread_of(family: Family, variance: f64) -> f64 {
    match family {
        Family::Gaussian | Family::Bernoulli => variance.sqrt(),
        Family::Poisson => variance.sqrt().min(SPREAD_MAX),
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
    let ridges = [Side::Row, Side::Column].map(|side| side.penalty(model, clients));
    let [rows, columns] = inverses(model, factors, cells, &ridges)?;
    let all = Uncertainty { rows, columns };
    let (family, mut trace) = (model.family(), 0.0);
    for (at, count) in cells {
        let cell = place(model, *at);
        let weight = family.variance(family.mean(factors.theta(cell[0], cell[1])));
        for (side, inverses) in [(Side::Row, &all.rows), (Side::Column, &all.columns)] {
            let design = side.design(model, factors, cell);
            let q = packed_len(design.len());
            let own = &inverses[cell[side as usize] * q..][..q];
            trace += f64::from(*count) * weight * quadratic(own, &design);
        }
    }
    Ok(trace.min(model.coordinates_len() as f64))
}

#[derive(Clone, Copy)]
enum Side {
    Row = 0,
    Column = 1,
}

impl Side {
    fn has_effect(self, settings: &Settings) -> bool {
        match self {
            Self::Row => settings.effects.has_row(),
            Self::Column => settings.effects.has_column(),
        }
    }

    /// What the unknowns of this side are multiplied by in a cell.
    fn design(self, model: &LowRank, factors: &Factors, [row, column]: [usize; 2]) -> Vec<f64> {
        let r = model.rank();
        let mut design = match self {
            Self::Row => factors.v[column * r..][..r].to_vec(),
            Self::Column => factors.u[row * r..][..r].to_vec(),
        };
        design.resize(r + usize::from(self.has_effect(model.settings())), 1.0);
        design
    }

    /// `n lambda` for each factor and `n lambda_effects` for the effect.
    fn penalty(self, model: &LowRank, clients: u32) -> Vec<f64> {
        let (settings, n) = (model.settings(), f64::from(clients));
        let mut ridge = vec![n * settings.lambda; settings.rank];
        if self.has_effect(settings) {
            ridge.push(n * settings.lambda_effects);
        }
        ridge
    }

    /// The same, or what the spread of the coordinate over the table says.
    fn ridge(self, model: &LowRank, factors: &Factors, clients: u32, phi: f64) -> Vec<f64> {
        let r = model.rank();
        let (u, effects) = match self {
            Self::Row => (&factors.u, &factors.row_effects),
            Self::Column => (&factors.v, &factors.column_effects),
        };
        let mean_square = |k: usize| {
            let sum: f64 = match k < r {
                true => u.iter().skip(k).step_by(r).map(|x| x * x).sum(),
                false => effects.iter().map(|x| x * x).sum(),
            };
            (sum / effects.len() as f64).max(f64::EPSILON)
        };
        let penalty = self.penalty(model, clients);
        penalty.iter().enumerate().map(|(k, own)| own.max(phi / mean_square(k))).collect()
    }
}

/// What a new row's unknowns are held by, when it is asked how sure they are.
pub(super) fn row_ridge(model: &LowRank, factors: &Factors, clients: u32, phi: f64) -> Vec<f64> {
    Side::Row.ridge(model, factors, clients, phi)
}

fn place(model: &LowRank, cell: u64) -> [usize; 2] {
    let (cell, columns) = (cell as usize, model.columns());
    [cell / columns, cell % columns]
}

fn inverses(
    model: &LowRank,
    factors: &Factors,
    cells: &[Counted],
    ridges: &[Vec<f64>; 2],
) -> Result<[Vec<f64>; 2]> {
    let family = model.family();
    let lengths = [model.rows(), model.columns()];
    let mut curvatures = [Side::Row, Side::Column].map(|side| {
        let ridge = &ridges[side as usize];
        let mut one = vec![0.0; packed_len(ridge.len())];
        for (k, value) in ridge.iter().enumerate() {
            one[packed_index(k, k)] = value + f64::EPSILON;
        }
        one.repeat(lengths[side as usize])
    });
    for (at, count) in cells {
        let cell = place(model, *at);
        let weight = family.variance(family.mean(factors.theta(cell[0], cell[1])));
        for side in [Side::Row, Side::Column] {
            let design = side.design(model, factors, cell);
            let q = packed_len(design.len());
            let own = &mut curvatures[side as usize][cell[side as usize] * q..][..q];
            add_square(own, &design, f64::from(*count) * weight);
        }
    }
    for side in [Side::Row, Side::Column] {
        let q = ridges[side as usize].len();
        for own in curvatures[side as usize].chunks_exact_mut(packed_len(q).max(1)) {
            let largest = (0..q).map(|k| own[packed_index(k, k)]).fold(0.0, f64::max);
            (0..q).for_each(|k| own[packed_index(k, k)] += CURVATURE_MIN * largest);
            own.copy_from_slice(&inverse(own, q)?);
        }
    }
    Ok(curvatures)
}

/// The inverse of a packed matrix, packed.
pub(super) fn inverse(packed: &[f64], q: usize) -> Result<Vec<f64>> {
    let mut factor = unpack(packed, q);
    cholesky(&mut factor, q).map_err(|_| Error::numerical("a row has no finite curvature"))?;
    let mut out = vec![0.0; q * q];
    for (k, column) in out.chunks_exact_mut(q).enumerate() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lowrank::Effects;
    use whimbrel_core::Key;

    fn model(lambda: f64) -> (LowRank, Factors, Vec<Counted>) {
        let settings = Settings {
            lambda,
            effects: Effects::RowColumn,
            ..Settings::new(8, 6, Family::Gaussian)
        };
        let model = LowRank::new(settings).unwrap();
        let factors = Factors::start(&model, 1.0, Key::root(5));
        let cells = (0..48).filter(|cell| cell % 3 != 0 && cell / 6 != 7).map(|cell| (cell, 1));
        (model, factors, cells.collect())
    }

    #[test]
    fn a_stronger_ridge_leaves_fewer_parameters() {
        let count = |lambda| {
            let (model, factors, cells) = model(lambda);
            effective_parameters(&model, &factors, 1, &cells).unwrap()
        };
        let (free, held, tight) = (count(1e-9), count(0.1), count(1e9));
        // Seven rows and four columns have cells: three unknowns each, or the effects alone.
        assert!((free - 33.0).abs() < 0.1 && (tight - 11.0).abs() < 0.1, "{free} {tight}");
        assert!(free > held && held > tight, "{held}");
    }

    /// Without a penalty a row with one cell determines one unknown, however large its counts are.
    #[test]
    fn rows_with_fewer_cells_than_unknowns_count_their_cells() {
        let settings = Settings { rank: 2, ..Settings::new(9, 4, Family::Poisson) };
        let model = LowRank::new(settings).unwrap();
        let factors = Factors::start(&model, 4e6, Key::root(7));
        let cells: Vec<Counted> = (0..9).map(|row| (4 * row + row % 4, 1)).collect();
        let count = effective_parameters(&model, &factors, 1, &cells).unwrap();
        // One per row, and two for each of the four columns, which have two cells or three.
        assert!((count - 17.0).abs() < 0.1, "{count}");
    }

    #[test]
    fn a_row_without_cells_is_less_sure_than_the_others() {
        let (model, mut factors, cells) = model(0.1);
        for part in [&mut factors.row_effects, &mut factors.u, &mut factors.v] {
            Key::root(6).stream().fill_normal(part);
        }
        let sure = Uncertainty::new(&model, &factors, 1, 0.5, &cells).unwrap();
        let spread = |row| sure.spread(&model, &factors, [row, 1], 0.5);
        assert!((0..7).all(|row| spread(row) < spread(7)), "{:?}", (spread(0), spread(7)));
        let inverse = inverse(&[2.0, 0.5, 1.0], 2).unwrap();
        // [[2, 1/2], [1/2, 1]] has the determinant 7/4.
        assert!((quadratic(&inverse, &[1.0, 2.0]) - (1.0 - 2.0 + 8.0) / 1.75).abs() < 1e-12);
    }
}
