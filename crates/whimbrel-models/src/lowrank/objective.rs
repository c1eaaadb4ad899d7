//! The fit to the observed cells alone, as a function of all unknowns at once.
//!
//! With `M` copies of an observed cell and none elsewhere, what [`super::trust_region`] minimises is
//!
//! ```text
//! f(x) = sum_observed M [psi(theta) - S theta] + (penalties),    x = (mu, effects, U, V).
//! ```
//!
//! Along `p` the parameter of a cell moves by `lin = p_mu + p_effects + <p_u, v> + <u, p_v>` and, to
//! second order, by `<p_u, p_v>`. So with `d = M (psi' - S)` and `w = M psi''` the Hessian times `p`
//! is the transpose of the map `lin` applied to `w lin`, plus `d p_v` for `u` and `d p_u` for `v`:
//! two short loops per cell, and no matrix.

use super::alternating::range;
use super::complete::Sparse;
use super::newton::{add_square, factorised};
use super::side::Side;
use super::{Factors, LowRank, Term};
use std::sync::Arc;
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
    /// Which number of each term every cell has, and what it is multiplied with: cell after cell.
    places: Vec<(u32, f64)>,
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
        wanted.extend(
            cells.cells(row).map(|at| {
                model.mean(factors, [row, cells.columns[at] as usize]) + cells.values[at]
            }),
        );
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
    /// The curvature of each number of the other terms; none for those of lines.
    terms: Vec<Vec<f64>>,
    /// `sum w`: the block of the intercept.
    pub information: f64,
    /// What rounding adds to `g^T B^-1 g`, with `B` the diagonal blocks: `d` is off by some units
    /// of the means and of the terms of `theta`, and a block's curvature is at least `w + lambda`.
    pub rounding: f64,
}

impl<'a> Joint<'a> {
    /// The fit to these cells, of which `wanted` is wanted.
    pub fn new(model: &'a LowRank, cells: &'a Sparse, shrink: f64, mut wanted: Vec<f64>) -> Self {
        let (low, high) = range(model.family());
        wanted.iter_mut().for_each(|y| *y = y.clamp(low, high));
        let ridges = Side::BOTH.map(|side| model.ridge(side, shrink));
        let mut joint = Self { model, cells, shrink, ridges, wanted, places: Vec::new() };
        let mut places = Vec::with_capacity(joint.wanted.len() * model.terms().len());
        joint.each(|row, l, _| {
            let place = |term: &Arc<Term>| term.place(model.columns(), [row, l]);
            places.extend(model.terms().iter().map(place).map(|(at, x)| (at as u32, x)));
        });
        joint.places = places;
        joint
    }

    /// Which number of each term a cell has, and what it is multiplied with.
    #[inline(always)]
    fn places(&self, at: usize) -> &[(u32, f64)] {
        let terms = self.model.terms().len();
        &self.places[at * terms..][..terms]
    }

    /// What intercept and effects are in a cell.
    #[inline(always)]
    fn effects(&self, x: &Factors, at: usize) -> f64 {
        let places = self.places(at).iter().zip(&x.effects);
        places.fold(x.intercept, |sum, ((place, weight), own)| sum + weight * own[*place as usize])
    }

    /// Adds `c` to intercept and effects as a cell has them.
    #[inline(always)]
    fn add_effects(&self, out: &mut Factors, at: usize, c: f64) {
        for ((place, weight), own) in self.places(at).iter().zip(&mut out.effects) {
            own[*place as usize] += c * weight;
        }
        out.intercept += c;
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
        let mut terms = vec![Vec::new(); x.effects.len()];
        for t in self.model.shared_terms() {
            terms[t] = vec![self.shrink * self.model.term_ridge(t); x.effects[t].len()];
        }
        self.each(|row, l, at| {
            let [u, v] = x.lines(row, l);
            let own = self.effects(&x, at) + inner(u, v);
            let (mean, wanted, copies) = (family.mean(own), self.wanted[at], cells.copies[at]);
            let weight = copies * family.variance(mean);
            let mut size =
                u.iter().zip(v).fold(x.intercept.abs(), |sum, (u, v)| sum + (u * v).abs());
            let places = self.places(at).iter().zip(&x.effects).zip(&mut terms);
            for (((place, weight), own), term) in places {
                size += (weight * own[*place as usize]).abs();
                if let Some(curvature) = term.get_mut(*place as usize) {
                    *curvature += weight * weight * cells.copies[at] * family.variance(mean);
                }
            }
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
            self.add_effects(&mut gradient, at, d[at]);
        });
        self.clear_absent(&mut gradient);
        let [rows, columns] = [blocks(&rows, &self.ridges[0])?, blocks(&columns, &self.ridges[1])?];
        let information = w.iter().sum::<f64>();
        Ok(Around { x, theta, d, w, gradient, rows, columns, terms, information, rounding })
    }

    /// The Hessian times `p`.
    pub fn product(&self, around: &Around, p: &Factors) -> Factors {
        let (r, x) = (self.model.rank(), &around.x);
        let mut out = self.penalised(p);
        self.each(|row, l, at| {
            let ([u, v], [p_u, p_v]) = (x.lines(row, l), p.lines(row, l));
            let c = around.w[at] * (self.effects(p, at) + inner(p_u, v) + inner(u, p_v));
            let d = around.d[at];
            let (out_u, out_v) = (&mut out.u[row * r..][..r], &mut out.v[l * r..][..r]);
            for k in 0..r {
                out_u[k] += c * v[k] + d * p_v[k];
                out_v[k] += c * u[k] + d * p_u[k];
            }
            self.add_effects(&mut out, at, c);
        });
        self.clear_absent(&mut out);
        out
    }

    /// `f(x + p) - f(x)`, added up from what each cell adds to it, so that nothing is lost where
    /// it is many orders of magnitude below `f`.
    pub fn change(&self, around: &Around, p: &Factors) -> f64 {
        let (x, family) = (&around.x, self.model.family());
        let mut sum = around.gradient.dot(p) + 0.5 * self.penalised(p).dot(p);
        self.each(|row, l, at| {
            let ([u, v], [p_u, p_v]) = (x.lines(row, l), p.lines(row, l));
            let lin = self.effects(p, at) + inner(p_u, v) + inner(u, p_v);
            let bent = inner(p_u, p_v);
            let rest = family.psi_remainder(around.theta[at], lin + bent);
            sum += around.d[at] * bent + self.cells.copies[at] * rest;
        });
        sum
    }

    /// Solves with the diagonal blocks of the Hessian: `p = B^-1 r`.
    pub fn precondition(&self, around: &Around, r: &Factors) -> Factors {
        let mut p = r.clone();
        for side in Side::BOTH {
            let (q, own) = (self.ridges[side as usize].len(), self.model.line_term(side));
            let (blocks, factors) = match side {
                Side::Row => (&around.rows, &mut p.u),
                Side::Column => (&around.columns, &mut p.v),
            };
            let effects = own.map_or(&mut [][..], |t| &mut p.effects[t]);
            solve_blocks(q, self.model.rank(), blocks, factors, effects);
        }
        for (own, curvature) in p.effects.iter_mut().zip(&around.terms) {
            own.iter_mut().zip(curvature).for_each(|(own, curvature)| {
                *own = if *curvature > 0.0 { *own / curvature } else { 0.0 };
            });
        }
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
        let mut out = x.clone();
        out.intercept = 0.0;
        for part in [&mut out.u, &mut out.v] {
            vector::scale(part, self.shrink * self.model.settings().lambda);
        }
        for (t, own) in out.effects.iter_mut().enumerate() {
            vector::scale(own, self.shrink * self.model.term_ridge(t));
        }
        out
    }

    /// A model without effects has no intercept.
    fn clear_absent(&self, out: &mut Factors) {
        if self.model.terms().is_empty() {
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

/// Solves with the blocks of one side, of `q` unknowns a line: `r` factors, and an effect or none.
fn solve_blocks(q: usize, r: usize, blocks: &[f64], factors: &mut [f64], effects: &mut [f64]) {
    let mut b = vec![0.0; q];
    for (i, l) in blocks.chunks_exact((q * q).max(1)).enumerate() {
        let factors = &mut factors[i * r..][..r];
        b[..r].copy_from_slice(factors);
        if q > r {
            b[r] = effects[i];
        }
        solve_lower(l, q, &mut b);
        solve_lower_transposed(l, q, &mut b);
        factors.copy_from_slice(&b[..r]);
        if q > r {
            effects[i] = b[r];
        }
    }
}
