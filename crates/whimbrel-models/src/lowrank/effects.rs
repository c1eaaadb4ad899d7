//! Main effects: numbers that cells share because their rows or their columns do.
//!
//! A term gives cell `(j, l)` the number `x_j z_l beta[g(j), h(l)]`: `g` and `h` are the classes of the
//! row and of the column, `x` and `z` numeric covariates of theirs, or 1. One number per row is the
//! term whose rows are each a class of their own and whose columns are all of one class; `site:month`
//! has a number for each pair of the two; a covariate of the rows has one number in all.

use super::side::Side;
use super::{Factors, LowRank};
use std::sync::Arc;
use whimbrel_core::{Error, Result};

/// The classes of the lines of one side.
#[derive(Clone, Debug, PartialEq)]
pub enum Classes {
    /// All lines are of one class.
    All,
    /// Each line is a class of its own.
    Each,
    /// The class of each line, below `count`.
    Of {
        /// How many classes.
        count: usize,
        /// One per line.
        of: Vec<u32>,
    },
}

/// What a term knows about the lines of one side.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// Their classes.
    pub classes: Classes,
    /// What the numbers are multiplied with in each line; empty: 1.
    pub weights: Vec<f64>,
}

impl Lines {
    /// Lines of these classes, unweighted.
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
        Err(Error::data(format!("effect `{name}` is not one of a table with {lines} such lines")))
    }
}

/// One term.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// As the job calls it.
    pub name: String,
    /// What it knows about rows, and about columns.
    pub sides: [Lines; 2],
}

impl Term {
    /// A number for each row.
    pub fn row() -> Self {
        let sides = [Classes::Each, Classes::All].map(Lines::of);
        Self { name: "row".into(), sides }
    }

    /// A number for each column.
    pub fn column() -> Self {
        let sides = [Classes::All, Classes::Each].map(Lines::of);
        Self { name: "column".into(), sides }
    }

    /// Whether it is one number for each line of a side.
    pub(super) fn is_line(&self, side: Side) -> bool {
        let own = side as usize;
        self.sides[own].is_plain(&Classes::Each) && self.sides[1 - own].is_plain(&Classes::All)
    }

    /// Whether it says the same in every line of a side.
    pub(super) fn ignores(&self, side: Side) -> bool {
        self.sides[side as usize].is_plain(&Classes::All)
    }

    /// Whether each row has numbers of its own.
    pub(super) fn is_of_row(&self) -> bool {
        self.sides[0].is_plain(&Classes::Each)
    }

    /// Whether cells have its numbers as they are: a shift of all is a shift of the intercept.
    pub(super) fn is_unweighted(&self) -> bool {
        self.sides.iter().all(|lines| lines.weights.is_empty())
    }

    /// Classes of rows and of columns in a table of this size.
    pub fn shape(&self, rows: usize, columns: usize) -> [usize; 2] {
        [self.sides[0].count(rows), self.sides[1].count(columns)]
    }

    /// Which of its numbers a cell has, and what it is multiplied with there.
    #[inline]
    pub(super) fn place(&self, columns: usize, [row, column]: [usize; 2]) -> (usize, f64) {
        let [of_rows, of_columns] = &self.sides;
        let at = of_rows.class(row) * of_columns.count(columns) + of_columns.class(column);
        (at, of_rows.weight(row) * of_columns.weight(column))
    }

    /// The class of a column, of how many, and what its numbers are multiplied with there.
    pub(super) fn column_class(&self, columns: usize, column: usize) -> (usize, usize, f64) {
        let own = &self.sides[1];
        (own.class(column), own.count(columns), own.weight(column))
    }
}

/// The terms that are added to the product of the factors; an intercept comes with any of them.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Effects(pub Vec<Arc<Term>>);

impl Effects {
    /// None, and no intercept: `theta = U V^T`.
    pub fn none() -> Self {
        Self::default()
    }

    /// One number per row and one per column.
    pub fn row_column() -> Self {
        Self::of(vec![Term::row(), Term::column()])
    }

    /// These terms, those of single rows and columns first.
    pub fn of(terms: Vec<Term>) -> Self {
        let order = |term: &Term| {
            Side::BOTH.iter().position(|side| term.is_line(*side)).unwrap_or(Side::BOTH.len())
        };
        let mut terms: Vec<Arc<Term>> = terms.into_iter().map(Arc::new).collect();
        terms.sort_by_key(|term| order(term));
        Self(terms)
    }

    /// Whether there is no term.
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
    /// The terms of the main effects.
    pub fn terms(&self) -> &[Arc<Term>] {
        &self.settings().effects.0
    }

    /// The term of one number per line of a side, which is fitted together with the line's factors.
    pub(super) fn line_term(&self, side: Side) -> Option<usize> {
        self.terms().iter().position(|term| term.is_line(side))
    }

    /// The other terms.
    pub(super) fn shared_terms(&self) -> impl Iterator<Item = usize> {
        let lines = Side::BOTH.map(|side| self.line_term(side));
        (0..self.terms().len()).filter(move |t| !lines.contains(&Some(*t)))
    }

    /// How many numbers a term has.
    pub(super) fn term_len(&self, term: &Term) -> usize {
        term.shape(self.rows(), self.columns()).iter().product()
    }

    /// What a term adds to a cell.
    #[inline]
    pub(super) fn term_value(&self, factors: &Factors, t: usize, cell: [usize; 2]) -> f64 {
        let (at, weight) = self.terms()[t].place(self.columns(), cell);
        weight * factors.effects[t][at]
    }

    /// `theta_jl`, not boxed.
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
