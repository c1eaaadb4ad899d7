//! The completed table: a dense matrix `S`, moved along the mean field and mapped to factors.
//!
//! `M` copies. Let `m_jl` be the number of observations of cell `(j, l)`, and `M >= max m_jl`. Since
//! `psi` is convex, adding `(M - m)[psi(theta) - psi'(theta') theta]` to a cell's loss majorises it,
//! with equality at `theta'`; the sum is
//!
//! ```text
//! n F(theta) <= M sum_all [psi(theta) - S theta] + n (penalties),
//! S = psi'(theta') + (1/M) sum_observed (y - psi'(theta'))
//! ```
//!
//! EM with any such `M` decreases the same `F`, and `T` minimises
//! `sum_all [psi(theta) - S theta] + (n/M)(penalties)`. The paper has `M = n`; a smaller `M` gives a
//! tighter bound and longer steps.
//!
//! `M` may differ between cells: an observed cell can have `M_jl = m_jl`, and an unobserved one a small
//! weight that only keeps `theta` near its last value. In sparsely observed tables this saves most of
//! the rounds.

use super::kernels::{bernoulli_means, poisson_means, row_field, row_theta};
use super::reactivate::reactivate;
use super::side::Side;
use super::{Factors, Family, LowRank, alternating};
use rayon::prelude::*;
use std::ops::Range;
use whimbrel_core::{Error, Result, vector};

/// Maximal number of chunks of rows. Their sums are added in order, so that results do not depend on
/// the number of threads.
const CHUNKS_MAX: usize = 32;
/// Minimal number of rows of a chunk.
const CHUNK_ROWS_MIN: usize = 8;

/// The copies of an unobserved cell after this number of full steps, where copies differ between cells:
/// 1/20 at first, a quarter of that after ten steps. Early on they stabilise a poor start; later they
/// would only slow the fit.
pub fn copies_unobserved(steps: f64) -> f64 {
    5.0 / (10.0 + steps).powi(2)
}

/// Relative norm of the field below which the factors have converged, so that only zero components can
/// still lower the objective.
const STATIONARY: f64 = 1e-8;

/// The residuals of the observed cells, in compressed rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Residuals {
    starts: Vec<usize>,
    pub(super) columns: Vec<u32>,
    /// Residuals divided by copies.
    pub(super) values: Vec<f64>,
    pub(super) copies: Vec<f64>,
    /// Whether every cell of the table has the same number of copies.
    pub(super) uniform: bool,
}

impl Residuals {
    /// From the indices of observed cells, ascending, and their residuals, with one `M` for the whole
    /// table.
    pub fn new(
        model: &LowRank,
        cells: impl Iterator<Item = (u64, f64)>,
        copies: f64,
    ) -> Result<Self> {
        let mut out = Self::with_copies(model, cells.map(|(cell, value)| (cell, value, copies)))?;
        out.uniform = true;
        Ok(out)
    }

    /// From the indices of observed cells, ascending, their residuals and their copies.
    pub fn with_copies(
        model: &LowRank,
        cells: impl Iterator<Item = (u64, f64, f64)>,
    ) -> Result<Self> {
        let (rows, width) = (model.rows(), model.columns() as u64);
        let mut out = Self {
            starts: Vec::with_capacity(rows + 1),
            columns: Vec::new(),
            values: Vec::new(),
            copies: Vec::new(),
            uniform: false,
        };
        for (cell, value, copies) in cells {
            let row = (cell / width) as usize;
            if row >= rows || row + 1 < out.starts.len() {
                return Err(Error::internal("the cells of a table are not in ascending order"));
            }
            out.starts.resize(row + 1, out.columns.len());
            out.columns.push((cell % width) as u32);
            out.values.push(value / copies);
            out.copies.push(copies);
        }
        out.starts.resize(rows + 1, out.columns.len());
        Ok(out)
    }

    /// The range of a row's cells in `columns`, `values` and `copies`.
    pub(super) fn cells(&self, row: usize) -> Range<usize> {
        self.starts[row]..self.starts[row + 1]
    }

    /// Column and copies of each cell of a row.
    pub(super) fn each_of(&self, row: usize) -> impl Iterator<Item = (usize, f64)> {
        self.cells(row).map(|at| (self.columns[at] as usize, self.copies[at]))
    }

    /// Calls `visit` with row, column, residual and copies of every observed cell.
    pub(super) fn each(&self, mut visit: impl FnMut(usize, usize, f64, f64)) {
        for row in 0..self.starts.len() - 1 {
            for at in self.cells(row) {
                let copies = self.copies[at];
                visit(row, self.columns[at] as usize, self.values[at] * copies, copies);
            }
        }
    }

    /// The largest completed value over the observed cells of a row; counts above it are extrapolated.
    /// `None` for other families, and with uniform copies.
    fn most(&self, model: &LowRank, row: usize, s: &[f64]) -> Option<f64> {
        let differs = !self.uniform && model.family() == Family::Poisson;
        differs.then(|| self.each_of(row).map(|(l, _)| s[l]).fold(0.0, f64::max))
    }

    /// `|H|^2` and `|S|^2` along a row, with extrapolated counts cut to the largest observed one.
    pub(super) fn norms2(
        &self,
        model: &LowRank,
        row: usize,
        [s, mean, h]: [&[f64]; 3],
    ) -> [f64; 2] {
        let Some(most) = self.most(model, row, s) else {
            return [h, s].map(vector::norm2_squared);
        };
        let gap = |l: usize| (mean[l].min(most) - s[l].min(most)).powi(2);
        let all: f64 = (0..s.len()).map(gap).sum();
        let observed: f64 = self.each_of(row).map(|(l, _)| h[l] * h[l] - gap(l)).sum();
        [(all + observed).max(0.0), s.iter().map(|s| s.min(most).powi(2)).sum()]
    }

    fn add_to(&self, row: usize, out: &mut [f64]) {
        let range = self.cells(row);
        for (column, value) in self.columns[range.clone()].iter().zip(&self.values[range]) {
            out[*column as usize] += value;
        }
    }
}

/// Diagnostics of one step.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Advance {
    /// `|H|^2`, with extrapolated counts cut to the largest observed one of their row.
    pub field_norm2: f64,
    /// `|S|^2` likewise, before the step.
    pub table_norm2: f64,
    /// Number of sweeps over the table in `T`.
    pub sweeps: u32,
    /// Number of cells outside the domain of `T`.
    pub repairs: u64,
}

/// One step of the table: `H = psi'(theta) - S + residuals`, `S += gamma H`.
#[derive(Clone, Copy, Debug)]
pub struct TableStep<'a> {
    pub residuals: &'a Residuals,
    pub gamma: f64,
    /// `n`, which multiplies the penalties.
    pub clients: f64,
    /// The copies of an unobserved cell, where copies differ between cells.
    pub unobserved: f64,
    /// Whether `T` is solved to convergence, without reactivation of components.
    pub full: bool,
}

impl TableStep<'_> {
    /// Writes the weights of a row's cells; false if all are one. The weight of an extrapolated count is
    /// reduced to that of the largest observed one of its row: counts extrapolated to millions would
    /// otherwise fix the factors.
    pub(super) fn weights(&self, model: &LowRank, row: usize, s: &[f64], out: &mut [f64]) -> bool {
        if self.residuals.uniform {
            return false;
        }
        // With effects alone the loss of the observed cells is convex and needs no stabilisation.
        out.fill(if model.rank() == 0 { 0.0 } else { self.unobserved });
        if let Some(most) = self.residuals.most(model, row, s) {
            let beyond = out.iter_mut().zip(s).filter(|(_, s)| **s > most);
            beyond.for_each(|(weight, s)| *weight *= most / s);
        }
        self.residuals.each_of(row).for_each(|(l, copies)| out[l] = copies);
        true
    }

    /// The factor of the penalties: `n/M`, or `n` where copies differ.
    pub(super) fn shrink(&self) -> f64 {
        let copies = self.residuals.copies.first().filter(|_| self.residuals.uniform);
        self.clients / copies.unwrap_or(&1.0)
    }
}

impl LowRank {
    /// `psi'(theta)` in every cell, row-major.
    pub fn expected(&self, factors: &Factors) -> Vec<f64> {
        let row_means = RowMeans::new(self, factors);
        let columns = self.columns();
        let mut out = vec![0.0; self.cells()];
        let each = out.par_chunks_mut(columns * chunk_rows(self.rows())).enumerate();
        each.for_each(|(c, chunk)| {
            for (i, row) in chunk.chunks_exact_mut(columns).enumerate() {
                row_means.means(c * chunk_rows(self.rows()) + i, row);
            }
        });
        out
    }

    /// `|psi'(theta) - S + residuals|^2`, with extrapolated counts cut to the largest observed one of
    /// their row.
    pub fn norms2(&self, s: &[f64], factors: &Factors, residuals: &Residuals) -> [f64; 2] {
        let row_means = RowMeans::new(self, factors);
        let (columns, rows) = (self.columns(), chunk_rows(self.rows()));
        let chunks = s.par_chunks(columns * rows).enumerate().map(|(c, chunk)| {
            let (mut mean, mut h) = (vec![0.0; columns], vec![0.0; columns]);
            let mut sums = [0.0; 2];
            for (i, s) in chunk.chunks_exact(columns).enumerate() {
                let row = c * rows + i;
                row_means.field(residuals, row, s, [&mut mean, &mut h]);
                let [field, table] = residuals.norms2(self, row, [s, &mean, &h]);
                sums = [sums[0] + field, sums[1] + table];
            }
            sums
        });
        let add = |[a, b]: [f64; 2], [c, d]: &[f64; 2]| [a + c, b + d];
        chunks.collect::<Vec<_>>().iter().fold([0.0; 2], add)
    }

    /// Moves the table and maps it to factors: `S += gamma H`, `theta = T(S)`, starting from the current
    /// factors. Once the field is negligible, zero components whose gradient exceeds the ridge are
    /// reactivated, as the optimality condition requires.
    pub fn advance(
        &self,
        s: &mut [f64],
        factors: &mut Factors,
        step: TableStep<'_>,
    ) -> Result<Advance> {
        if s.len() != self.cells() {
            return Err(Error::internal("the completed table does not have the size of the model"));
        }
        let done = alternating::advance(self, s, factors, step)?;
        if !step.full && done.field_norm2 <= STATIONARY * STATIONARY * done.table_norm2 {
            reactivate(self, factors, step.residuals, step.clients)?;
        }
        Ok(done)
    }
}

/// Means along rows: the parts of `theta` that all rows of a sweep share.
pub(super) struct RowMeans<'a> {
    model: &'a LowRank,
    pub factors: &'a Factors,
    /// `V` transposed: one component after the other.
    pub vt: Vec<f64>,
    /// The part of `theta` that depends on the column alone.
    columns: Vec<f64>,
    /// Terms that depend on both row and column.
    both: Vec<usize>,
}

impl<'a> RowMeans<'a> {
    pub fn new(model: &'a LowRank, factors: &'a Factors) -> Self {
        let (mut columns, mut both) = (vec![0.0; model.columns()], Vec::new());
        for (t, term) in model.terms().iter().enumerate() {
            if term.ignores(Side::Row) && !term.ignores(Side::Column) {
                let add =
                    |(l, own): (usize, &mut f64)| *own += model.term_value(factors, t, [0, l]);
                columns.iter_mut().enumerate().for_each(add);
            } else if !term.ignores(Side::Column) {
                both.push(t);
            }
        }
        Self { model, factors, vt: transposed(&factors.v, model.rank()), columns, both }
    }

    /// The part of `theta` that all cells of a row share, given the row's effect.
    pub fn base(&self, row: usize, effect: f64) -> f64 {
        let own = self.model.line_term(Side::Row);
        let terms = self.model.terms().iter().enumerate();
        let others = terms.filter(|(t, term)| term.ignores(Side::Column) && Some(*t) != own);
        others.fold(self.factors.intercept + effect, |sum, (t, _)| {
            sum + self.model.term_value(self.factors, t, [row, 0])
        })
    }

    /// The row's effect; 0 if the model has no row effects.
    pub fn effect(&self, row: usize) -> f64 {
        self.model.line_term(Side::Row).map_or(0.0, |t| self.factors.effects[t][row])
    }

    /// `psi'(theta)` along a row.
    pub fn means(&self, row: usize, out: &mut [f64]) {
        let r = self.model.rank();
        let base = self.base(row, self.effect(row));
        self.means_at(row, base, &self.factors.u[row * r..][..r], out);
    }

    /// `psi'(theta)` along a row with this base and these factors.
    pub fn means_at(&self, row: usize, base: f64, u: &[f64], out: &mut [f64]) {
        row_theta(out, base, &self.columns, u, &self.vt);
        for t in &self.both {
            for (l, theta) in out.iter_mut().enumerate() {
                *theta += self.model.term_value(self.factors, *t, [row, l]);
            }
        }
        match self.model.family() {
            Family::Gaussian => {}
            Family::Poisson => poisson_means(out),
            Family::Bernoulli => bernoulli_means(out),
        }
    }

    /// `psi'(theta)` and `H` along a row.
    pub fn field(&self, residuals: &Residuals, row: usize, s: &[f64], [mean, h]: [&mut [f64]; 2]) {
        self.means(row, mean);
        row_field(h, mean, s);
        residuals.add_to(row, h);
    }
}

/// Number of rows of a chunk.
pub(super) fn chunk_rows(rows: usize) -> usize {
    rows.div_ceil(CHUNKS_MAX).max(CHUNK_ROWS_MIN)
}

/// The transpose of an `n x r` matrix, both row-major.
pub(super) fn transposed(a: &[f64], r: usize) -> Vec<f64> {
    let n = a.len().checked_div(r).unwrap_or(0);
    let mut out = vec![0.0; a.len()];
    for (i, row) in a.chunks_exact(r.max(1)).enumerate() {
        for (k, value) in row.iter().enumerate() {
            out[k * n + i] = *value;
        }
    }
    out
}
