//! What somebody outside the run learns from a finished fit: an effect of its own, and factors for
//! rows that nobody had.

use super::newton::{Term, add_square, regression};
use super::side::Side;
use super::uncertainty::{diagonal, inverse, prior_ridge, quadratic, spread_of};
use super::{Family, LowRankFit, Parameter};
use whimbrel_core::{Cell, Error, Result, vector};

/// Personal effects stay within plus and minus this: a client counts at most `e^2` times more or
/// less than the others, and the server's step can allow for it without knowing whose effect is
/// what.
pub const PERSONAL_MAX: f64 = 2.0;

/// The `e` within plus and minus [`PERSONAL_MAX`] that minimises
/// `sum_i [psi(theta_i + e) - y_i e] + (ridge/2) e^2`, from `start` on.
pub fn own_effect(
    family: Family,
    cells: impl Iterator<Item = (f64, f64)>,
    ridge: f64,
    start: f64,
) -> Result<f64> {
    let terms: Vec<Term> = cells.map(|(offset, y)| Term { z: vec![1.0], offset, y }).collect();
    // The objective is convex in e, so the best in the box is the nearest to the best.
    let effect = regression(family, &terms, &[ridge], vec![start])?[0];
    Ok(effect.clamp(-PERSONAL_MAX, PERSONAL_MAX))
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
    /// A new client's own effect, from its cells of known rows: `theta + e` is its table.
    pub fn own_effect(&self, cells: &[Cell]) -> Result<f64> {
        cells.iter().try_for_each(|cell| self.check(cell))?;
        let theta = |cell: &Cell| self.below_ceiling(cell.row as usize, cell.column as usize);
        let cells = cells.iter().map(|cell| (theta(cell), cell.value));
        let ridge = f64::from(self.clients) * self.model.settings().lambda_effects;
        own_effect(self.model.family(), cells, ridge, 0.0)
    }

    /// Factors of a row that the run did not have, from its cells `(column, value)`, with the
    /// columns as they are and the penalties of the fit. `offset` is added to every `theta`: a
    /// client's own effect, or 0.
    pub fn new_row(&self, cells: &[(u32, f64)], offset: f64) -> Result<NewRow> {
        let (family, r) = (self.model.family(), self.model.rank());
        let mut terms = Vec::with_capacity(cells.len());
        for (column, y) in cells {
            self.check(&Cell { row: 0, column: *column, value: *y })?;
            let column = *column as usize;
            let offset = self.factors.intercept + self.factors.column_effects[column] + offset;
            terms.push(Term { z: self.design(column), offset, y: *y });
        }
        let ridge = self.model.ridge(Side::Row, f64::from(self.clients));
        let mut x = regression(family, &terms, &ridge, vec![0.0; ridge.len()])?;
        let prior = prior_ridge(&self.model, Side::Row, &self.factors, self.clients, self.phi());
        let mut curvature = diagonal(&prior);
        let mut ceiling = f64::NEG_INFINITY;
        for term in &terms {
            let theta = term.offset + vector::dot(&term.z, &x);
            add_square(&mut curvature, &term.z, family.variance(family.mean(theta)));
            ceiling = ceiling.max(theta - offset);
        }
        let open = inverse(&curvature, x.len())?;
        let effect = x.get(r).copied().unwrap_or(0.0);
        x.truncate(r);
        Ok(NewRow { effect, u: x, open, ceiling })
    }

    /// The parameter of a new row's cell: below the ceiling of its own cells and of the column, with a
    /// client's own effect added, and as sure as the row's own cells leave it.
    pub fn parameter_of(&self, row: &NewRow, column: usize, effect: f64) -> Parameter {
        let (family, r) = (self.model.family(), self.model.rank());
        let product = vector::dot(&row.u, &self.factors.v[column * r..][..r]);
        let mut theta =
            self.factors.intercept + row.effect + self.factors.column_effects[column] + product;
        if let Some(ceiling) = &self.ceiling {
            theta = theta.min(ceiling.columns[column].max(row.ceiling));
        }
        let variance = self.phi() * quadratic(&row.open, &self.design(column));
        Parameter { theta: family.boxed(theta + effect), spread: spread_of(family, variance) }
    }

    /// `(v_l, 1)`, as long as the unknowns of a row.
    fn design(&self, column: usize) -> Vec<f64> {
        self.model.design(Side::Row, &self.factors, [0, column])
    }

    fn check(&self, cell: &Cell) -> Result<()> {
        if cell.row as usize >= self.model.rows() || cell.column as usize >= self.model.columns() {
            return Err(Error::data(format!(
                "cell ({}, {}) lies outside the fitted table",
                cell.row, cell.column
            )));
        }
        self.model.family().check(cell.value).map_err(|wanted| {
            let name = self.model.family().name();
            Error::data(format!("{} is not {wanted}, as the {name} family needs", cell.value))
        })
    }
}
