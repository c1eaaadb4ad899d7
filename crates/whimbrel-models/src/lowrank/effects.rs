//! Main effects.
//!
//! A term adds `x_j z_l beta[g(j), h(l)]` to cell `(j, l)`: `g` and `h` are classes of the row and of the
//! column, `x` and `z` numeric covariates or 1. A row effect has one class per row and one for all
//! columns; `site:month` has a coefficient for each pair of levels; a covariate of the rows has a single
//! coefficient.

use super::side::Side;
use super::{Factors, LowRank};
use std::sync::Arc;
use whimbrel_core::{Error, Result};

/// The classes of all rows, or of all columns.
#[derive(Clone, Debug, PartialEq)]
pub enum Classes {
    /// One class for all lines.
    All,
    /// One class per line.
    Each,
    /// The class of each line, below `count`.
    Of { count: usize, of: Vec<u32> },
}

/// The classes and covariates of all rows, or of all columns, in a term.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    pub classes: Classes,
    /// The covariate of each line; empty stands for 1.
    pub weights: Vec<f64>,
}

impl Lines {
    /// Classes without a covariate.
    pub fn of(classes: Classes) -> Self {
        Self { classes, weights: Vec::new() }
    }

    fn is_plain(&self, classes: &Classes) -> bool {
        self.classes == *classes && self.weights.is_empty()
    }

    fn count(&self, lines: usize) -> usize {
        match &self.classes {
            Classes::All => 1,
            Classes::Each => lines,
            Classes::Of { count, .. } => *count,
        }
    }

    #[inline]
    fn class(&self, line: usize) -> usize {
        match &self.classes {
            Classes::All => 0,
            Classes::Each => line,
            Classes::Of { of, .. } => of[line] as usize,
        }
    }

    #[inline]
    fn weight(&self, line: usize) -> f64 {
        self.weights.get(line).copied().unwrap_or(1.0)
    }

    fn check(&self, name: &str, lines: usize) -> Result<()> {
        let weights = [0, lines].contains(&self.weights.len());
        let classes = match &self.classes {
            Classes::All | Classes::Each => true,
            Classes::Of { count, of } => {
                of.len() == lines && of.iter().all(|class| (*class as usize) < *count)
            }
        };
        if weights && classes && whimbrel_core::vector::all_finite(&self.weights) {
            return Ok(());
        }
        Err(Error::data(format!("effect `{name}` does not fit a table with {lines} such lines")))
    }
}

/// A term of the main effects.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// The name in the job.
    pub name: String,
    /// Rows, then columns.
    pub sides: [Lines; 2],
}

impl Term {
    /// One effect per row.
    pub fn row() -> Self {
        let sides = [Classes::Each, Classes::All].map(Lines::of);
        Self { name: "row".into(), sides }
    }

    /// One effect per column.
    pub fn column() -> Self {
        let sides = [Classes::All, Classes::Each].map(Lines::of);
        Self { name: "column".into(), sides }
    }

    /// Whether the term is one effect per line of a side.
    pub(super) fn is_line(&self, side: Side) -> bool {
        let own = side as usize;
        self.sides[own].is_plain(&Classes::Each) && self.sides[1 - own].is_plain(&Classes::All)
    }

    /// Whether the term is constant along a side.
    pub(super) fn ignores(&self, side: Side) -> bool {
        self.sides[side as usize].is_plain(&Classes::All)
    }

    /// Whether each row has coefficients of its own.
    pub(super) fn is_of_row(&self) -> bool {
        self.sides[0].is_plain(&Classes::Each)
    }

    /// Whether the term has no covariate, so that a shift of all coefficients shifts the intercept.
    pub(super) fn is_unweighted(&self) -> bool {
        self.sides.iter().all(|lines| lines.weights.is_empty())
    }

    /// Numbers of row and column classes in a table of this size.
    pub fn shape(&self, rows: usize, columns: usize) -> [usize; 2] {
        [self.sides[0].count(rows), self.sides[1].count(columns)]
    }

    /// The index of a cell's coefficient, and the covariate that multiplies it.
    #[inline]
    pub(super) fn place(&self, columns: usize, [row, column]: [usize; 2]) -> (usize, f64) {
        let [of_rows, of_columns] = &self.sides;
        let at = of_rows.class(row) * of_columns.count(columns) + of_columns.class(column);
        (at, of_rows.weight(row) * of_columns.weight(column))
    }

    /// The class of a column, the number of column classes, and the column's covariate.
    pub(super) fn column_class(&self, columns: usize, column: usize) -> (usize, usize, f64) {
        let own = &self.sides[1];
        (own.class(column), own.count(columns), own.weight(column))
    }
}

/// The terms added to the product of the factors. A model with any term also has an intercept.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Effects(pub Vec<Arc<Term>>);

impl Effects {
    /// No effects and no intercept: `theta = U V^T`.
    pub fn none() -> Self {
        Self::default()
    }

    /// One effect per row and one per column.
    pub fn row_column() -> Self {
        Self::of(vec![Term::row(), Term::column()])
    }

    /// The given terms, row and column effects first.
    pub fn of(terms: Vec<Term>) -> Self {
        let order = |term: &Term| {
            Side::BOTH.iter().position(|side| term.is_line(*side)).unwrap_or(Side::BOTH.len())
        };
        let mut terms: Vec<Arc<Term>> = terms.into_iter().map(Arc::new).collect();
        terms.sort_by_key(|term| order(term));
        Self(terms)
    }

    /// Row effects, column effects and the other terms, each with its place among these terms.
    pub fn with_lines(&self) -> (Self, Vec<Option<usize>>) {
        let of_line = |side: Side| self.0.iter().position(|term| term.is_line(side));
        let is_other = |t: &usize| !Side::BOTH.iter().any(|side| self.0[*t].is_line(*side));
        let others = (0..self.0.len()).filter(is_other).map(Some);
        let places: Vec<Option<usize>> =
            Side::BOTH.map(of_line).into_iter().chain(others).collect();
        let others = places[Side::BOTH.len()..].iter().flatten().map(|t| self.0[*t].clone());
        (Self(Self::row_column().0.into_iter().chain(others).collect()), places)
    }

    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn check(&self, rows: usize, columns: usize) -> Result<()> {
        for term in &self.0 {
            term.sides[0].check(&term.name, rows)?;
            term.sides[1].check(&term.name, columns)?;
        }
        Ok(())
    }
}

impl LowRank {
    pub fn terms(&self) -> &[Arc<Term>] {
        &self.settings().effects.0
    }

    /// The term with one effect per line of a side, which is fitted together with the line's factors.
    pub(super) fn line_term(&self, side: Side) -> Option<usize> {
        self.terms().iter().position(|term| term.is_line(side))
    }

    /// All terms except the row and column effects.
    pub(super) fn shared_terms(&self) -> impl Iterator<Item = usize> {
        let lines = Side::BOTH.map(|side| self.line_term(side));
        (0..self.terms().len()).filter(move |t| !lines.contains(&Some(*t)))
    }

    /// Number of coefficients of a term.
    pub(super) fn term_len(&self, term: &Term) -> usize {
        term.shape(self.rows(), self.columns()).iter().product()
    }

    /// The contribution of a term to a cell's `theta`.
    #[inline]
    pub(super) fn term_value(&self, factors: &Factors, t: usize, cell: [usize; 2]) -> f64 {
        let (at, weight) = self.terms()[t].place(self.columns(), cell);
        weight * factors.effects[t][at]
    }

    /// `theta_jl`, not clipped to the family's bound.
    #[inline]
    pub fn theta(&self, factors: &Factors, row: usize, column: usize) -> f64 {
        let [u, v] = factors.lines(row, column);
        let product: f64 = u.iter().zip(v).map(|(u, v)| u * v).sum();
        let terms = 0..self.terms().len();
        let effects = |sum: f64, t: usize| sum + self.term_value(factors, t, [row, column]);
        terms.fold(factors.intercept, effects) + product
    }

    /// `psi'(theta_jl)`.
    pub fn mean(&self, factors: &Factors, [row, column]: [usize; 2]) -> f64 {
        self.family().mean(self.theta(factors, row, column))
    }
}
