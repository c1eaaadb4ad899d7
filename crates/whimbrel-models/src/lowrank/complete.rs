//! The completed table: one dense matrix `S`, moved by the mean field and mapped to factors.
//!
//! `M` copies. Let `m_jl` be how often cell `(j, l)` was observed, and `M` at least the largest
//! `m_jl`. Since `psi` is convex, adding `(M - m)[psi(theta) - psi'(theta') theta]` to a cell's
//! loss majorises it, with equality at `theta'`; the sum is
//!
//! ```text
//! n F(theta) <= M sum_all [psi(theta) - S theta] + n (penalties),
//! S = psi'(theta') + (1/M) sum_observed (y - psi'(theta'))
//! ```
//!
//! So EM with any such `M` descends on the same `F`, where `T` minimises
//! `sum_all [psi(theta) - S theta] + (n/M)(penalties)`. The paper has `M = n`; the smaller `M`, the
//! tighter the bound and the longer the step.
//!
//! Nothing asks for the same `M` in every cell: each observed cell can have `M_jl = m_jl`, and a
//! unobserved cell a small one, so that it only holds `theta` near where it was. In a
//! table of which little was observed that saves most of the rounds.

use super::kernels::{bernoulli_means, poisson_means, row_field, row_theta};
use super::reactivate::reactivate;
use super::side::Side;
use super::{Factors, Family, LowRank, alternating};
use rayon::prelude::*;
use std::ops::Range;
use whimbrel_core::{Error, Result, vector};

/// Most chunks of rows into which tables are cut, whose sums are added in order: so bits do
/// not depend on threads.
const CHUNKS_MAX: usize = 32;
/// Fewer rows are not worth a chunk.
const CHUNK_ROWS_MIN: usize = 8;

/// The copies of an unobserved cell after so many whole steps, where copies differ from cell to cell: 1/20
/// at first, a quarter of that after ten. Early on they lead from a poor start to good factors; later they
/// would only hold the fit back.
pub fn copies_unobserved(steps: f64) -> f64 {
    5.0 / (10.0 + steps).powi(2)
}

/// Where the field is below this share of the table, factors hardly move, and what is left to gain
/// is in components that are zero.
const STATIONARY: f64 = 1e-8;

/// Residuals at the observed cells, by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Sparse {
    starts: Vec<usize>,
    pub(super) columns: Vec<u32>,
    /// Residuals over copies.
    pub(super) values: Vec<f64>,
    /// Copies of the observed cells.
    pub(super) copies: Vec<f64>,
    /// Whether every cell of the table has as many.
    pub(super) uniform: bool,
}

impl Sparse {
    /// From observed cells in ascending order (`row * columns + column`) and their residuals, with
    /// one `M` for the whole table.
    pub fn new(
        model: &LowRank,
        cells: impl Iterator<Item = (u64, f64)>,
        copies: f64,
    ) -> Result<Self> {
        let mut out = Self::with_copies(model, cells.map(|(cell, value)| (cell, value, copies)))?;
        out.uniform = true;
        Ok(out)
    }

    /// From observed cells, their residuals and their copies.
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
                return Err(Error::internal("cells of a table are not in order"));
            }
            out.starts.resize(row + 1, out.columns.len());
            out.columns.push((cell % width) as u32);
            out.values.push(value / copies);
            out.copies.push(copies);
        }
        out.starts.resize(rows + 1, out.columns.len());
        Ok(out)
    }

    /// Where in `columns` and `copies` the cells of a row are.
    pub(super) fn cells(&self, row: usize) -> Range<usize> {
        self.starts[row]..self.starts[row + 1]
    }

    /// The columns of a row's cells, and their copies.
    pub(super) fn each_of(&self, row: usize) -> impl Iterator<Item = (usize, f64)> {
        self.cells(row).map(|at| (self.columns[at] as usize, self.copies[at]))
    }

    /// Visits every observed cell: its row, its column, its residual and its copies.
    pub(super) fn each(&self, mut visit: impl FnMut(usize, usize, f64, f64)) {
        for row in 0..self.starts.len() - 1 {
            for at in self.cells(row) {
                let copies = self.copies[at];
                visit(row, self.columns[at] as usize, self.values[at] * copies, copies);
            }
        }
    }

    /// The largest count among the observed cells of a row that is completed to `s`, beyond which its others
    /// are extrapolated. None for other families, and where every cell has as many copies.
    fn most(&self, model: &LowRank, row: usize, s: &[f64]) -> Option<f64> {
        let differs = !self.uniform && model.family() == Family::Poisson;
        differs.then(|| self.each_of(row).map(|(l, _)| s[l]).fold(0.0, f64::max))
    }

    /// `|H|^2` and `|S|^2` along a row, where an extrapolated count is as large as the largest observed one.
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

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Advance {
    /// `|H|^2`, in which an extrapolated count is as large as the largest observed one of its row.
    pub field_norm2: f64,
    /// `|S|^2` likewise, before the step.
    pub table_norm2: f64,
    /// Sweeps over the table that `T` took.
    pub sweeps: u32,
    /// Cells outside the domain of `T`.
    pub repairs: u64,
}

/// One step of the table: `H = psi'(theta) - S + push`, `S += gamma H`.
#[derive(Clone, Copy, Debug)]
pub struct Push<'a> {
    /// What is added to the field at observed cells: their residuals over their copies.
    pub push: &'a Sparse,
    /// The step.
    pub gamma: f64,
    /// `n`, which the penalties weigh against the cells.
    pub clients: f64,
    /// The copies of an unobserved cell, where copies differ.
    pub unobserved: f64,
    /// Whether `T` is carried out to the end, and nothing else is done.
    pub full: bool,
}

impl Push<'_> {
    /// The weights of the cells of a row that is completed to `s`, where they differ. An unobserved count
    /// beyond the largest observed one of its row weighs no more than that: extrapolated to millions, it
    /// would hold the factors where they are.
    pub(super) fn weights(&self, model: &LowRank, row: usize, s: &[f64], out: &mut [f64]) -> bool {
        if self.push.uniform {
            return false;
        }
        // Effects alone are convex in the observed cells, and nothing need hold them.
        out.fill(if model.rank() == 0 { 0.0 } else { self.unobserved });
        if let Some(most) = self.push.most(model, row, s) {
            let beyond = out.iter_mut().zip(s).filter(|(_, s)| **s > most);
            beyond.for_each(|(weight, s)| *weight *= most / s);
        }
        self.push.each_of(row).for_each(|(l, copies)| out[l] = copies);
        true
    }

    /// What the penalties are multiplied with: `n/M`, or `n` where copies differ.
    pub(super) fn shrink(&self) -> f64 {
        let copies = self.push.copies.first().filter(|_| self.push.uniform);
        self.clients / copies.unwrap_or(&1.0)
    }
}

impl LowRank {
    /// `psi'(theta)` in every cell, row after row.
    pub fn expected(&self, factors: &Factors) -> Vec<f64> {
        let frame = Frame::new(self, factors);
        let columns = self.columns();
        let mut out = vec![0.0; self.cells()];
        let each = out.par_chunks_mut(columns * chunk_rows(self.rows())).enumerate();
        each.for_each(|(c, chunk)| {
            for (i, row) in chunk.chunks_exact_mut(columns).enumerate() {
                frame.means(c * chunk_rows(self.rows()) + i, row);
            }
        });
        out
    }

    /// `|psi'(theta) - S + push|^2`, in which an extrapolated count is as large as the largest observed one
    /// of its row.
    pub fn field_norm2(&self, s: &[f64], factors: &Factors, push: &Sparse) -> f64 {
        let frame = Frame::new(self, factors);
        let (columns, rows) = (self.columns(), chunk_rows(self.rows()));
        let chunks = s.par_chunks(columns * rows).enumerate().map(|(c, chunk)| {
            let (mut mean, mut h) = (vec![0.0; columns], vec![0.0; columns]);
            let mut sum = 0.0;
            for (i, s) in chunk.chunks_exact(columns).enumerate() {
                let row = c * rows + i;
                frame.field(push, row, s, [&mut mean, &mut h]);
                sum += push.norms2(self, row, [s, &mean, &h])[0];
            }
            sum
        });
        chunks.collect::<Vec<f64>>().iter().sum()
    }

    /// Moves the table and maps it to factors: `S += gamma H`, `theta = T(S)`, starting from the
    /// factors there are. Where the table is all but still, zeroed components whose gradient exceeds
    /// the ridge are reactivated: the rest of the optimality condition.
    pub fn advance(&self, s: &mut [f64], factors: &mut Factors, step: Push<'_>) -> Result<Advance> {
        if s.len() != self.cells() {
            return Err(Error::internal("the completed table has another size than the model"));
        }
        let done = alternating::advance(self, s, factors, step)?;
        if !step.full && done.field_norm2 <= STATIONARY * STATIONARY * done.table_norm2 {
            reactivate(self, factors, step.push, step.clients)?;
        }
        Ok(done)
    }
}

/// What the rows of one sweep share.
pub(super) struct Frame<'a> {
    model: &'a LowRank,
    pub factors: &'a Factors,
    /// `V`, one component after the other.
    pub vt: Vec<f64>,
    /// What each column has in every row, whatever the row.
    columns: Vec<f64>,
    /// Terms that differ along a row and from row to row.
    both: Vec<usize>,
}

impl<'a> Frame<'a> {
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

    /// What all cells of a row share, if this is the row's own effect.
    pub fn base(&self, row: usize, effect: f64) -> f64 {
        let own = self.model.line_term(Side::Row);
        let terms = self.model.terms().iter().enumerate();
        let others = terms.filter(|(t, term)| term.ignores(Side::Column) && Some(*t) != own);
        others.fold(self.factors.intercept + effect, |sum, (t, _)| {
            sum + self.model.term_value(self.factors, t, [row, 0])
        })
    }

    /// The row's own effect; 0 where rows have none.
    pub fn effect(&self, row: usize) -> f64 {
        self.model.line_term(Side::Row).map_or(0.0, |t| self.factors.effects[t][row])
    }

    /// `psi'(theta)` along a row.
    pub fn means(&self, row: usize, out: &mut [f64]) {
        let r = self.model.rank();
        let base = self.base(row, self.effect(row));
        self.means_at(row, base, &self.factors.u[row * r..][..r], out);
    }

    /// The same of a row that has this base and these factors.
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
    pub fn field(&self, push: &Sparse, row: usize, s: &[f64], [mean, h]: [&mut [f64]; 2]) {
        self.means(row, mean);
        row_field(h, mean, s);
        push.add_to(row, h);
    }
}

/// Rows of a chunk.
pub(super) fn chunk_rows(rows: usize) -> usize {
    rows.div_ceil(CHUNKS_MAX).max(CHUNK_ROWS_MIN)
}

/// `n x r`, row after row, as `r x n`.
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
