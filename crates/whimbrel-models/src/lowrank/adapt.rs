//! What somebody outside the run learns from a finished fit: an effect of its own, and factors for
//! rows that nobody had.

use super::newton::{Term, add_square, regression};
use super::uncertainty::{inverse, quadratic, row_ridge, spread_of};
use super::{Family, LowRankFit};
use whimbrel_core::linalg::{packed_index, packed_len};
use whimbrel_core::{Cell, Error, Result, vector};

/// Personal effects stay within plus and minus this: a client counts at most `e^2` times more or
/// less than the others, and the server's step can allow for it without knowing whose effect is
/// what.
pub const PERSONAL_MAX: f64 = 2.0;

/// The `e` that minimises `sum_i [psi(theta_i + e) - y_i e] + (ridge/2) e^2`, from `start` on.
pub fn own_effect(
    family: Family,
    cells: impl Iterator<Item = (f64, f64)>,
    ridge: f64,
    start: f64,
) -> Result<f64> {
    let terms: Vec<Term> = cells.map(|(offset, y)| Term { z: vec![1.0], offset, y }).collect();
    Ok(regression(family, &terms, &[ridge], vec![start])?[0])
}

/// A row that the run did not have.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRow {
    /// `a`, where rows have effects.
    pub effect: f64,
    /// `u`.
    pub u: Vec<f64>,
    /// The inverse curvature of `(u, a)`, packed: what few cells leave open.
    pub open: Vec<f64>,
    /// The largest `theta` of its cells; minus infinity where it has none.
    pub ceiling: f64,
}

impl LowRankFit {
    /// A new client's own effect, from its cells of known rows: `theta + e` is its table. It stays
    /// within [`PERSONAL_MAX`], as those of the run's clients do.
    pub fn own_effect(&self, cells: &[Cell]) -> Result<f64> {
        cells.iter().try_for_each(|cell| self.check(cell))?;
        let theta = |cell: &Cell| self.below_ceiling(cell.row as usize, cell.column as usize);
        let cells = cells.iter().map(|cell| (theta(cell), cell.value));
        // The objective is convex in e, so the best in the box is the nearest to the best.
        let effect = own_effect(self.model.family(), cells, self.ridges().1, 0.0)?;
        Ok(effect.clamp(-PERSONAL_MAX, PERSONAL_MAX))
    }

    /// Factors of a row that the run did not have, from its cells `(column, value)`, with the
    /// columns as they are and the penalties of the fit. `offset` is added to every `theta`: a
    /// client's own effect, or 0.
    pub fn new_row(&self, cells: &[(u32, f64)], offset: f64) -> Result<NewRow> {
        let (effects, r) = (self.model.settings().effects, self.model.rank());
        let (ridge, ridge_effects) = self.ridges();
        for (column, value) in cells {
            self.check(&Cell { row: 0, column: *column, value: *value })?;
        }
        let q = r + usize::from(effects.has_row());
        let mut penalties = vec![ridge; r];
        penalties.resize(q, ridge_effects);
        let zero = vec![0.0; q];
        let term = |(column, y): &(u32, f64)| {
            let column = *column as usize;
            let offset = self.row_theta(&zero, column) + offset;
            Term { z: self.design(column, q), offset, y: *y }
        };
        let terms: Vec<Term> = cells.iter().map(term).collect();
        let mut x = regression(self.model.family(), &terms, &penalties, zero.clone())?;
        let open = self.open(cells, &x, offset)?;
        let theta = cells.iter().map(|(column, _)| self.row_theta(&x, *column as usize));
        let ceiling = theta.fold(f64::NEG_INFINITY, f64::max);
        let effect = if q > r { x[r] } else { 0.0 };
        x.truncate(r);
        Ok(NewRow { effect, u: x, open, ceiling })
    }

    /// `A^-1` of a new row at `x`.
    fn open(&self, cells: &[(u32, f64)], x: &[f64], offset: f64) -> Result<Vec<f64>> {
        let (q, family) = (x.len(), self.model.family());
        let mut curvature = vec![0.0; packed_len(q)];
        let ridge = row_ridge(&self.model, &self.factors, self.clients, self.phi());
        for (k, value) in ridge.iter().enumerate() {
            curvature[packed_index(k, k)] = *value;
        }
        for (column, _) in cells {
            let theta = self.row_theta(x, *column as usize) + offset;
            let weight = family.variance(family.mean(theta));
            add_square(&mut curvature, &self.design(*column as usize, q), weight);
        }
        if q == 0 { Ok(curvature) } else { inverse(&curvature, q) }
    }

    /// The standard deviation of a new row's `theta`: of the row's own parameters, the columns
    /// being as sure as they are.
    pub fn spread_of(&self, row: &NewRow, column: usize) -> f64 {
        let q = row.u.len() + usize::from(self.model.settings().effects.has_row());
        let variance = quadratic(&row.open, &self.design(column, q));
        spread_of(self.model.family(), self.phi() * variance)
    }

    fn phi(&self) -> f64 {
        self.calibration.map_or(1.0, |calibration| calibration.dispersion)
    }

    /// `theta` of a new row's cell, below the ceiling of its own cells and of the column, and in its
    /// box.
    pub fn theta_of(&self, row: &NewRow, column: usize, offset: f64) -> f64 {
        let x: Vec<f64> = row.u.iter().copied().chain([row.effect]).collect();
        let ceiling = self.ceiling.as_ref().map(|all| all.columns[column].max(row.ceiling));
        let theta = self.row_theta(&x, column).min(ceiling.unwrap_or(f64::INFINITY));
        self.model.family().boxed(theta + offset)
    }

    /// `n lambda` and `n lambda_effects`, which stand beside sums over cells.
    fn ridges(&self) -> (f64, f64) {
        let (settings, n) = (self.model.settings(), f64::from(self.clients));
        (n * settings.lambda, n * settings.lambda_effects)
    }

    /// `(v_l, 1)`, as long as the unknowns of a row.
    fn design(&self, column: usize, q: usize) -> Vec<f64> {
        let r = self.model.rank();
        let mut design = self.factors.v[column * r..][..r].to_vec();
        design.resize(q, 1.0);
        design
    }

    fn row_theta(&self, x: &[f64], column: usize) -> f64 {
        let design = self.design(column, x.len());
        self.factors.intercept + self.factors.column_effects[column] + vector::dot(&design, x)
    }

    fn check(&self, cell: &Cell) -> Result<()> {
        if cell.row as usize >= self.model.rows() || cell.column as usize >= self.model.columns() {
            return Err(Error::data(format!(
                "cell ({}, {}) lies outside the fitted table",
                cell.row, cell.column
            )));
        }
        self.model.family().check(cell.value).map_err(|wanted| {
            Error::data(format!(
                "{} is not {wanted}, as the {} family needs",
                cell.value,
                self.model.family().name()
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lowrank::{Effects, Factors, LowRank, Settings};
    use whimbrel_core::Key;

    fn fit(family: Family, effects: Effects) -> LowRankFit {
        let settings = Settings { effects, lambda: 0.05, ..Settings::new(9, 7, family) };
        let model = LowRank::new(settings).unwrap();
        let mut factors = Factors::start(&model, 0.6, Key::root(3));
        vector::scale(&mut factors.v, 5.0);
        LowRankFit {
            model,
            factors,
            ceiling: None,
            clients: 3,
            calibration: None,
            uncertainty: None,
        }
    }

    #[test]
    fn a_new_client_counts_no_more_than_one_of_the_run() {
        let fit = fit(Family::Poisson, Effects::None);
        let cells: Vec<Cell> = (0..5).map(|column| Cell { row: 0, column, value: 1e6 }).collect();
        assert_eq!(fit.own_effect(&cells).unwrap(), PERSONAL_MAX);
    }

    #[test]
    fn a_new_row_is_where_its_gradient_vanishes() {
        for family in Family::ALL {
            for effects in [Effects::None, Effects::RowColumn] {
                let fit = fit(family, effects);
                let cells = [(0, 1.0), (2, 0.0), (5, 1.0), (6, 1.0)];
                let row = fit.new_row(&cells, 0.25).unwrap();
                for k in 0..2 {
                    let slope: f64 = cells
                        .iter()
                        .map(|(l, y)| {
                            let theta = fit.theta_of(&row, *l as usize, 0.25);
                            (family.mean(theta) - y) * fit.factors.v[*l as usize * 2 + k]
                        })
                        .sum();
                    let slope = slope + 3.0 * 0.05 * row.u[k];
                    assert!(slope.abs() < 1e-10, "{family:?} {effects:?}: {slope}");
                }
            }
        }
        assert!(fit(Family::Poisson, Effects::None).new_row(&[(1, 0.5)], 0.0).is_err());
        assert!(fit(Family::Poisson, Effects::None).new_row(&[(7, 1.0)], 0.0).is_err());
    }

    /// Counts of 600 rows of the table's own kind, of which one to three cells are known: the other
    /// cells are to be inside their intervals in nine of ten. Rows count once each, so the share
    /// has a standard deviation of at most 1.5 %.
    #[test]
    fn intervals_of_new_rows_with_few_cells_cover() {
        let settings = Settings {
            rank: 1,
            effects: Effects::RowColumn,
            lambda: 0.1,
            ..Settings::new(200, 20, Family::Poisson)
        };
        let model = LowRank::new(settings).unwrap();
        let mut factors = Factors::zero(&model);
        let mut stream = Key::root(21).stream();
        let mut normals = |sd: f64, out: &mut Vec<f64>| {
            out.iter_mut().for_each(|x| *x = sd * stream.normal());
        };
        factors.intercept = 1.5;
        normals(0.8, &mut factors.row_effects);
        normals(0.4, &mut factors.column_effects);
        normals(0.6, &mut factors.u);
        normals(0.6, &mut factors.v);
        let fit = LowRankFit {
            model,
            factors,
            ceiling: None,
            clients: 4,
            calibration: None,
            uncertainty: None,
        };
        for known in 1..=3 {
            let (mut inside, mut all) = (0, 0);
            for _ in 0..600 {
                let (a, u) = (0.8 * stream.normal(), 0.6 * stream.normal());
                let mut count = |l: usize| {
                    let theta = 1.5 + a + fit.factors.column_effects[l] + u * fit.factors.v[l];
                    Family::Poisson.draw(Family::Poisson.mean(theta), 1.0, &mut stream)
                };
                let counts: Vec<f64> = (0..20).map(&mut count).collect();
                let cells: Vec<(u32, f64)> = (0..known).map(|l| (l, counts[l as usize])).collect();
                let row = fit.new_row(&cells, 0.0).unwrap();
                for (l, count) in counts.iter().enumerate().skip(known as usize) {
                    let theta = fit.theta_of(&row, l, 0.0);
                    let (low, high) = fit.interval_of(theta, fit.spread_of(&row, l));
                    inside += u32::from((low..=high).contains(count));
                    all += 1;
                }
            }
            let share = f64::from(inside) / f64::from(all);
            assert!(share > 0.85, "{share} with {known} cells");
        }
    }
}
