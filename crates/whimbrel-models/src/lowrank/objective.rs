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

use super::alternating::{Side, Sides, range};
use super::complete::{Sparse, chunk_rows};
use super::newton::factorised;
use super::{Factors, LowRank};
use rayon::prelude::*;
use std::ops::Range;
use whimbrel_core::linalg::{packed_len, solve_lower, solve_lower_transposed};
use whimbrel_core::{Result, vector};

/// Fewer cells are not worth a thread.
const PARALLEL_MIN: usize = 20_000;

/// The observed cells and what is wanted of them.
pub(super) struct Joint<'a> {
    model: &'a LowRank,
    cells: &'a Sparse,
    sides: Sides,
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
    /// Cholesky factors of the diagonal blocks: one per row, one per column, and the intercept's.
    rows: Vec<f64>,
    columns: Vec<f64>,
    intercept: f64,
    /// `sum w`.
    pub information: f64,
    /// What rounding adds to `g^T B^-1 g`, with `B` the diagonal blocks: `d` is off by so many units
    /// of the means and of the terms of `theta`, and a block's curvature is at least `w + lambda`.
    pub rounding: f64,
}

/// A chunk's cells and curvatures.
struct Curved {
    /// What they add to the gradient: to the chunk's own rows, and to every column.
    slab: Factors,
    theta: Vec<f64>,
    d: Vec<f64>,
    w: Vec<f64>,
    rows: Vec<f64>,
    columns: Vec<f64>,
    rounding: f64,
}

impl<'a> Joint<'a> {
    /// The fit to these cells, of which `wanted` is wanted.
    pub fn new(model: &'a LowRank, cells: &'a Sparse, shrink: f64, mut wanted: Vec<f64>) -> Self {
        let (low, high) = range(model.family());
        wanted.iter_mut().for_each(|y| *y = y.clamp(low, high));
        Self { model, cells, sides: Sides::new(model, shrink), wanted }
    }

    /// Everything a Newton step from `x` needs.
    pub fn around(&self, x: Factors) -> Result<Around> {
        let curved = self.chunks(|rows| self.curved(&x, rows));
        let mut gradient = x.zeros();
        let mut columns = vec![0.0; self.model.columns() * packed_len(self.sides.columns.unknowns)];
        let (mut theta, mut d, mut w, mut rows) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut slabs = Vec::with_capacity(curved.len());
        let mut rounding = 0.0;
        for part in curved {
            theta.extend(part.theta);
            d.extend(part.d);
            w.extend(part.w);
            rows.extend(part.rows);
            vector::axpy(&mut columns, 1.0, &part.columns);
            rounding += part.rounding;
            slabs.push(part.slab);
        }
        self.collect(slabs, &x, &mut gradient);
        let information = w.iter().sum::<f64>();
        Ok(Around {
            x,
            theta,
            d,
            w,
            gradient,
            rows: blocks(&rows, &self.sides.rows)?,
            columns: blocks(&columns, &self.sides.columns)?,
            intercept: information,
            information,
            rounding,
        })
    }

    /// The Hessian times `p`.
    pub fn product(&self, around: &Around, p: &Factors, out: &mut Factors) {
        let (r, x) = (self.model.rank(), &around.x);
        let slabs = self.chunks(|rows| {
            let mut slab = self.slab(&rows);
            for (i, row) in rows.enumerate() {
                let (u, p_u) = (&x.u[row * r..][..r], &p.u[row * r..][..r]);
                let out_u = &mut slab.u[i * r..][..r];
                let base = p.intercept + p.row_effects[row];
                for at in self.cells.cells(row) {
                    let l = self.cells.columns[at] as usize;
                    let (v, p_v) = (&x.v[l * r..][..r], &p.v[l * r..][..r]);
                    let lin = base + p.column_effects[l] + inner(p_u, v) + inner(u, p_v);
                    let (c, d) = (around.w[at] * lin, around.d[at]);
                    let out_v = &mut slab.v[l * r..][..r];
                    for k in 0..r {
                        out_u[k] += c * v[k] + d * p_v[k];
                        out_v[k] += c * u[k] + d * p_u[k];
                    }
                    slab.row_effects[i] += c;
                    slab.column_effects[l] += c;
                    slab.intercept += c;
                }
            }
            slab
        });
        self.collect(slabs, p, out);
    }

    /// `f(x + p) - f(x)`, added up from what each cell adds to it, so that nothing is lost where
    /// it is many orders of magnitude below `f`.
    pub fn change(&self, around: &Around, p: &Factors) -> f64 {
        let (r, x, family) = (self.model.rank(), &around.x, self.model.family());
        let sums = self.chunks(|rows| {
            let mut sum = 0.0;
            for row in rows {
                let (u, p_u) = (&x.u[row * r..][..r], &p.u[row * r..][..r]);
                let base = p.intercept + p.row_effects[row];
                for at in self.cells.cells(row) {
                    let l = self.cells.columns[at] as usize;
                    let (v, p_v) = (&x.v[l * r..][..r], &p.v[l * r..][..r]);
                    let bent = inner(p_u, p_v);
                    let lin = base + p.column_effects[l] + inner(p_u, v) + inner(u, p_v);
                    let rest = family.psi_remainder(around.theta[at], lin + bent);
                    sum += around.d[at] * bent + self.cells.copies[at] * rest;
                }
            }
            sum
        });
        let mut penalised = p.zeros();
        self.penalise(p, &mut penalised);
        around.gradient.dot(p) + 0.5 * penalised.dot(p) + sums.iter().sum::<f64>()
    }

    /// Solves with the diagonal blocks of the Hessian: `p = B^-1 r`.
    pub fn precondition(&self, around: &Around, r: &Factors) -> Factors {
        let mut p = r.clone();
        let Around { rows, columns, intercept, .. } = around;
        solve_blocks(&self.sides.rows, rows, &mut p.u, &mut p.row_effects);
        solve_blocks(&self.sides.columns, columns, &mut p.v, &mut p.column_effects);
        p.intercept = if *intercept > 0.0 { p.intercept / intercept } else { 0.0 };
        p
    }

    /// Slopes, curvatures and what they add up to, over some rows.
    fn curved(&self, x: &Factors, rows: Range<usize>) -> Curved {
        let (r, family, push) = (self.model.rank(), self.model.family(), self.cells);
        let (q_rows, q_columns) = (self.sides.rows.unknowns, self.sides.columns.unknowns);
        let (packed_row, packed_column) = (packed_len(q_rows), packed_len(q_columns));
        let mut part = Curved {
            slab: self.slab(&rows),
            theta: Vec::new(),
            d: Vec::new(),
            w: Vec::new(),
            rows: vec![0.0; rows.len() * packed_row],
            columns: vec![0.0; self.model.columns() * packed_column],
            rounding: 0.0,
        };
        let slab = &mut part.slab;
        for (i, row) in rows.enumerate() {
            let u = &x.u[row * r..][..r];
            for at in push.cells(row) {
                let l = push.columns[at] as usize;
                let v = &x.v[l * r..][..r];
                let effects = [x.intercept, x.row_effects[row], x.column_effects[l]];
                let theta = effects.iter().sum::<f64>() + inner(u, v);
                let (mean, wanted) = (family.mean(theta), self.wanted[at]);
                let d = push.copies[at] * (mean - wanted);
                let w = push.copies[at] * family.variance(mean);
                let terms = |sum: f64, (u, v): (&f64, &f64)| sum + (u * v).abs();
                let size = u.iter().zip(v).fold(vector::norm1(&effects), terms);
                let off = f64::EPSILON * (push.copies[at] * (mean.abs() + wanted.abs()) + w * size);
                part.rounding += off * off / (w + self.sides.lambda);
                vector::axpy(&mut slab.u[i * r..][..r], d, v);
                vector::axpy(&mut slab.v[l * r..][..r], d, u);
                slab.row_effects[i] += d;
                slab.column_effects[l] += d;
                slab.intercept += d;
                add_block(&mut part.rows[i * packed_row..][..packed_row], w, v, q_rows);
                add_block(&mut part.columns[l * packed_column..][..packed_column], w, u, q_columns);
                part.theta.push(theta);
                part.d.push(d);
                part.w.push(w);
            }
        }
        part
    }

    /// Chunks of rows, always the same ones, so that bits do not depend on threads.
    fn chunks<T: Send>(&self, each: impl Fn(Range<usize>) -> T + Sync) -> Vec<T> {
        let (rows, size) = (self.model.rows(), chunk_rows(self.model.rows()));
        let range = |c: usize| c * size..((c + 1) * size).min(rows);
        let count = rows.div_ceil(size);
        if self.wanted.len() < PARALLEL_MIN {
            return (0..count).map(|c| each(range(c))).collect();
        }
        (0..count).into_par_iter().map(|c| each(range(c))).collect()
    }

    fn slab(&self, rows: &Range<usize>) -> Factors {
        let (r, columns) = (self.model.rank(), self.model.columns());
        Factors {
            rank: r as u32,
            intercept: 0.0,
            row_effects: vec![0.0; rows.len()],
            column_effects: vec![0.0; columns],
            u: vec![0.0; rows.len() * r],
            v: vec![0.0; columns * r],
        }
    }

    /// Puts the chunks together, and adds the penalties' part at `x`.
    fn collect(&self, slabs: Vec<Factors>, x: &Factors, out: &mut Factors) {
        *out = x.zeros();
        self.penalise(x, out);
        let (mut row, r) = (0, self.model.rank());
        for slab in &slabs {
            let count = slab.row_effects.len();
            vector::axpy(&mut out.row_effects[row..][..count], 1.0, &slab.row_effects);
            vector::axpy(&mut out.u[row * r..][..count * r], 1.0, &slab.u);
            vector::axpy(&mut out.column_effects, 1.0, &slab.column_effects);
            vector::axpy(&mut out.v, 1.0, &slab.v);
            out.intercept += slab.intercept;
            row += count;
        }
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

    /// Adds the penalties' gradient at `x`.
    fn penalise(&self, x: &Factors, out: &mut Factors) {
        let Sides { lambda, lambda_effects, .. } = self.sides;
        vector::axpy(&mut out.u, lambda, &x.u);
        vector::axpy(&mut out.v, lambda, &x.v);
        vector::axpy(&mut out.row_effects, lambda_effects, &x.row_effects);
        vector::axpy(&mut out.column_effects, lambda_effects, &x.column_effects);
    }
}

#[inline(always)]
fn inner(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Adds `w z z^T` to a packed block, with `z = (other, 1)` or `other`.
#[inline(always)]
fn add_block(block: &mut [f64], w: f64, other: &[f64], unknowns: usize) {
    let z = |k: usize| other.get(k).copied().unwrap_or(1.0);
    let mut at = 0;
    for k in 0..unknowns {
        let wz = w * z(k);
        for m in 0..=k {
            block[at] += wz * z(m);
            at += 1;
        }
    }
}

/// Cholesky factors of packed blocks with the penalties on their diagonals.
fn blocks(packed: &[f64], side: &Side) -> Result<Vec<f64>> {
    let each = packed.chunks_exact(packed_len(side.unknowns).max(1));
    let factors: Result<Vec<Vec<f64>>> = each.map(|one| factorised(one, &side.ridge)).collect();
    Ok(factors?.concat())
}

fn solve_blocks(side: &Side, blocks: &[f64], factors: &mut [f64], effects: &mut [f64]) {
    let (q, r) = (side.unknowns, side.rank);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lowrank::{Effects, Family, Settings, Sparse};
    use whimbrel_core::Key;

    /// `sum_observed M [psi(theta) - S theta]` plus the penalties, in so many words.
    fn objective(model: &LowRank, push: &Sparse, s: &[f64], x: &Factors) -> f64 {
        let mut sum = 3.0 * model.penalty(x);
        for row in 0..model.rows() {
            for at in push.cells(row) {
                let l = push.columns[at] as usize;
                let (theta, s) = (x.theta(row, l), s[row * model.columns() + l]);
                sum += push.copies[at] * (model.family().psi(theta) - s * theta);
            }
        }
        sum
    }

    /// Gradient and Hessian products are the derivatives of the objective, `change` is its
    /// difference, and absent effects stay out of all of them.
    #[test]
    fn derivatives_are_those_of_the_objective() {
        for family in Family::ALL {
            for effects in [Effects::None, Effects::Row, Effects::Column, Effects::RowColumn] {
                let settings = Settings {
                    effects,
                    lambda: 0.1,
                    lambda_effects: 0.02,
                    ..Settings::new(20, 6, family)
                };
                let model = LowRank::new(settings).unwrap();
                let cells = (0..120).filter(|i| i % 3 != 1).map(|i| (i, 0.0, 1.0 + (i % 2) as f64));
                let push = Sparse::with_copies(&model, cells).unwrap();
                let s: Vec<f64> = (0..120).map(|i| f64::from(i % 7) / 8.0 + 0.05).collect();
                let joint = Joint::new(&model, &push, 3.0, of_table(&model, &push, &s));
                let x = Factors::start(&model, 0.6, Key::root(1));
                let here = joint.around(x.clone()).unwrap();
                // A direction that the model has.
                let p = joint.precondition(&here, &here.gradient);
                let moved = |t: f64| {
                    let mut moved = x.clone();
                    moved.add(t, &p);
                    moved
                };
                let at = |t: f64| objective(&model, &push, &s, &moved(t));
                let h = 1e-4;
                let slope = (at(h) - at(-h)) / (2.0 * h);
                let wanted = here.gradient.dot(&p);
                assert!((slope - wanted).abs() < 1e-6 * wanted, "{family:?} {effects:?} {slope}");
                let mut bent = x.zeros();
                joint.product(&here, &p, &mut bent);
                let mut gap = joint.around(moved(h)).unwrap().gradient;
                gap.add(-1.0, &joint.around(moved(-h)).unwrap().gradient);
                gap.add(-2.0 * h, &bent);
                let (gap, size) = (gap.dot(&gap).sqrt() / (2.0 * h), bent.dot(&bent).sqrt());
                assert!(gap < 1e-6 * size, "{family:?} {effects:?} {gap} {size}");
                let (change, wanted) = (joint.change(&here, &p), at(1.0) - at(0.0));
                assert!((change - wanted).abs() < 1e-10 * at(0.0).abs(), "{change} {wanted}");
                assert_eq!(p.intercept != 0.0, effects.has_intercept());
                assert_eq!(p.row_effects[2] != 0.0, effects.has_row());
                assert_eq!(p.column_effects[2] != 0.0, effects.has_column());
            }
        }
    }
}
