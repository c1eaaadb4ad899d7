//! The fit to the observed cells alone, as a function of all unknowns at once.
//!
//! With `M` copies of an observed cell and none elsewhere, what [`super::trust_region`] minimises is
//!
//! ```text
//! f(x) = sum_observed M [psi(theta) - S theta] + (penalties),    x = (mu, a, b, U, V).
//! ```
//!
//! Along `p` the parameter of a cell moves by `lin = p_mu + p_a + p_b + <p_u, v> + <u, p_v>` and, to
//! second order, by `<p_u, p_v>`. So with `d = M (psi' - S)` and `w = M psi''` the Hessian times `p`
//! is the transpose of the map `lin` applied to `w lin`, plus `d p_v` for `u` and `d p_u` for `v`:
//! two short loops per cell, and no matrix.

use super::alternating::range;
use super::complete::Sparse;
use super::newton::{add_square, factorised};
use super::side::Side;
use super::{Factors, LowRank, Settings};
use whimbrel_core::linalg::{packed_len, solve_lower, solve_lower_transposed};
use whimbrel_core::{Result, vector};

/// The observed cells and what is wanted of them.
pub(super) struct Joint<'a> {
    model: &'a LowRank,
    cells: &'a Sparse,
    /// What the penalties are multiplied with.
    shrink: f64,
    /// The penalties on the unknowns of a row, and of a column.
    ridges: [Vec<f64>; 2],
    /// Inside the range of the means.
    wanted: Vec<f64>,
}

/// What a completed table has at these cells.
pub(super) fn of_table(model: &LowRank, cells: &Sparse, s: &[f64]) -> Vec<f64> {
    let mut wanted = Vec::with_capacity(cells.columns.len());
    for (row, s) in s.chunks_exact(model.columns()).enumerate() {
        wanted.extend(cells.columns[cells.cells(row)].iter().map(|l| s[*l as usize]));
    }
    wanted
}

/// What was observed there on average: the mean at the factors, and the residual from it.
pub(super) fn of_residuals(model: &LowRank, cells: &Sparse, factors: &Factors) -> Vec<f64> {
    let mut wanted = Vec::with_capacity(cells.columns.len());
    for row in 0..model.rows() {
        wanted.extend(cells.cells(row).map(|at| {
            let theta = factors.theta(row, cells.columns[at] as usize);
            model.family().mean(theta) + cells.values[at]
        }));
    }
    wanted
}

/// The objective around one point.
pub(super) struct Around {
    /// The point.
    pub x: Factors,
    /// `theta`, `d` and `w` of each observed cell.
    theta: Vec<f64>,
    d: Vec<f64>,
    w: Vec<f64>,
    /// The gradient.
    pub gradient: Factors,
    /// Cholesky factors of the diagonal blocks: one per row, and one per column.
    rows: Vec<f64>,
    columns: Vec<f64>,
    /// `sum w`: the block of the intercept.
    pub information: f64,
    /// What rounding adds to `g^T B^-1 g`, with `B` the diagonal blocks: `d` is off by so many units
    /// of the means and of the terms of `theta`, and a block's curvature is at least `w + lambda`.
    pub rounding: f64,
}

impl<'a> Joint<'a> {
    /// The fit to these cells, of which `wanted` is wanted.
    pub fn new(model: &'a LowRank, cells: &'a Sparse, shrink: f64, mut wanted: Vec<f64>) -> Self {
        let (low, high) = range(model.family());
        wanted.iter_mut().for_each(|y| *y = y.clamp(low, high));
        let ridges = Side::BOTH.map(|side| model.ridge(side, shrink));
        Self { model, cells, shrink, ridges, wanted }
    }

    /// Everything a Newton step from `x` needs.
    pub fn around(&self, x: Factors) -> Result<Around> {
        let (r, family, cells) = (self.model.rank(), self.model.family(), self.cells);
        let lambda = self.shrink * self.model.settings().lambda;
        let [of_row, of_column] = self.ridges.each_ref().map(|ridge| packed_len(ridge.len()));
        let mut rows = vec![0.0; self.model.rows() * of_row];
        let mut columns = vec![0.0; self.model.columns() * of_column];
        let (mut theta, mut d, mut w) = (Vec::new(), Vec::new(), Vec::new());
        let (mut rounding, mut z) = (0.0, vec![1.0; r + 1]);
        self.each(|row, l, at| {
            let (u, v) = (&x.u[row * r..][..r], &x.v[l * r..][..r]);
            let effects = [x.intercept, x.row_effects[row], x.column_effects[l]];
            let own = effects.iter().sum::<f64>() + inner(u, v);
            let (mean, wanted, copies) = (family.mean(own), self.wanted[at], cells.copies[at]);
            let weight = copies * family.variance(mean);
            let terms = |sum: f64, (u, v): (&f64, &f64)| sum + (u * v).abs();
            let size = u.iter().zip(v).fold(vector::norm1(&effects), terms);
            let off = f64::EPSILON * (copies * (mean.abs() + wanted.abs()) + weight * size);
            rounding += off * off / (weight + lambda);
            theta.push(own);
            d.push(copies * (mean - wanted));
            w.push(weight);
            z[..r].copy_from_slice(v);
            let block = &mut rows[row * of_row..][..of_row];
            add_square(block, &z[..self.ridges[0].len()], weight);
            z[..r].copy_from_slice(u);
            let block = &mut columns[l * of_column..][..of_column];
            add_square(block, &z[..self.ridges[1].len()], weight);
        });
        let mut gradient = self.penalised(&x);
        self.each(|row, l, at| {
            vector::axpy(&mut gradient.u[row * r..][..r], d[at], &x.v[l * r..][..r]);
            vector::axpy(&mut gradient.v[l * r..][..r], d[at], &x.u[row * r..][..r]);
            gradient.row_effects[row] += d[at];
            gradient.column_effects[l] += d[at];
            gradient.intercept += d[at];
        });
        self.clear_absent(&mut gradient);
        let [rows, columns] = [blocks(&rows, &self.ridges[0])?, blocks(&columns, &self.ridges[1])?];
        let information = w.iter().sum::<f64>();
        Ok(Around { x, theta, d, w, gradient, rows, columns, information, rounding })
    }

    /// The Hessian times `p`.
    pub fn product(&self, around: &Around, p: &Factors) -> Factors {
        let (r, x) = (self.model.rank(), &around.x);
        let mut out = self.penalised(p);
        self.each(|row, l, at| {
            let (u, p_u) = (&x.u[row * r..][..r], &p.u[row * r..][..r]);
            let (v, p_v) = (&x.v[l * r..][..r], &p.v[l * r..][..r]);
            let effects = p.intercept + p.row_effects[row] + p.column_effects[l];
            let c = around.w[at] * (effects + inner(p_u, v) + inner(u, p_v));
            let d = around.d[at];
            let (out_u, out_v) = (&mut out.u[row * r..][..r], &mut out.v[l * r..][..r]);
            for k in 0..r {
                out_u[k] += c * v[k] + d * p_v[k];
                out_v[k] += c * u[k] + d * p_u[k];
            }
            out.row_effects[row] += c;
            out.column_effects[l] += c;
            out.intercept += c;
        });
        self.clear_absent(&mut out);
        out
    }

    /// `f(x + p) - f(x)`, added up from what each cell adds to it, so that nothing is lost where
    /// it is many orders of magnitude below `f`.
    pub fn change(&self, around: &Around, p: &Factors) -> f64 {
        let (r, x, family) = (self.model.rank(), &around.x, self.model.family());
        let mut sum = around.gradient.dot(p) + 0.5 * self.penalised(p).dot(p);
        self.each(|row, l, at| {
            let (u, p_u) = (&x.u[row * r..][..r], &p.u[row * r..][..r]);
            let (v, p_v) = (&x.v[l * r..][..r], &p.v[l * r..][..r]);
            let effects = p.intercept + p.row_effects[row] + p.column_effects[l];
            let (lin, bent) = (effects + inner(p_u, v) + inner(u, p_v), inner(p_u, p_v));
            let rest = family.psi_remainder(around.theta[at], lin + bent);
            sum += around.d[at] * bent + self.cells.copies[at] * rest;
        });
        sum
    }

    /// Solves with the diagonal blocks of the Hessian: `p = B^-1 r`.
    pub fn precondition(&self, around: &Around, r: &Factors) -> Factors {
        let mut p = r.clone();
        let [of_rows, of_columns] = self.ridges.each_ref().map(Vec::len);
        solve_blocks(of_rows, &around.rows, &mut p.u, &mut p.row_effects);
        solve_blocks(of_columns, &around.columns, &mut p.v, &mut p.column_effects);
        let information = around.information;
        p.intercept = if information > 0.0 { p.intercept / information } else { 0.0 };
        p
    }

    /// Visits every observed cell: its row, its column, and its place among them.
    fn each(&self, mut visit: impl FnMut(usize, usize, usize)) {
        for row in 0..self.model.rows() {
            for at in self.cells.cells(row) {
                visit(row, self.cells.columns[at] as usize, at);
            }
        }
    }

    /// The penalties' gradient at `x`.
    fn penalised(&self, x: &Factors) -> Factors {
        let Settings { lambda, lambda_effects, .. } = *self.model.settings();
        let mut out = x.clone();
        out.intercept = 0.0;
        for part in [&mut out.u, &mut out.v] {
            vector::scale(part, self.shrink * lambda);
        }
        for part in [&mut out.row_effects, &mut out.column_effects] {
            vector::scale(part, self.shrink * lambda_effects);
        }
        out
    }

    /// Takes out what the model does not have.
    fn clear_absent(&self, out: &mut Factors) {
        let effects = self.model.settings().effects;
        if !effects.has_row() {
            out.row_effects.fill(0.0);
        }
        if !effects.has_column() {
            out.column_effects.fill(0.0);
        }
        if !effects.has_intercept() {
            out.intercept = 0.0;
        }
    }
}

#[inline(always)]
fn inner(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Cholesky factors of packed blocks with the penalties on their diagonals.
fn blocks(packed: &[f64], ridge: &[f64]) -> Result<Vec<f64>> {
    let each = packed.chunks_exact(packed_len(ridge.len()).max(1));
    let factors: Result<Vec<Vec<f64>>> = each.map(|one| factorised(one, ridge)).collect();
    Ok(factors?.concat())
}

/// Solves with the blocks of one side, of `q` unknowns a line.
fn solve_blocks(q: usize, blocks: &[f64], factors: &mut [f64], effects: &mut [f64]) {
    let r = factors.len() / effects.len();
    let mut b = vec![0.0; q];
    for (i, l) in blocks.chunks_exact((q * q).max(1)).enumerate() {
        let factors = &mut factors[i * r..][..r];
        b[..r].copy_from_slice(factors);
        b[r..].fill(effects[i]);
        solve_lower(l, q, &mut b);
        solve_lower_transposed(l, q, &mut b);
        factors.copy_from_slice(&b[..r]);
        if q > r {
            effects[i] = b[r];
        }
    }
}
