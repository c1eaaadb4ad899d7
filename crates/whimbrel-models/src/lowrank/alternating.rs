//! The map `T`: damped Newton steps over rows, over columns and over all effects, none of which increases
//! the objective.
//!
//! `sum_all M [psi(theta) - S theta]` plus the penalties is minimised over `(u_j, a_j)` of each row with
//! the columns fixed, then over `(v_l, b_l)` of each column, then over all effects with the factors
//! fixed. For a Gaussian table with one `M` this is alternating least squares, whose limit is the
//! soft-thresholded singular value decomposition of `S` minus the effects.

use super::complete::{Advance, RowMeans, TableStep, chunk_rows, transposed};
use super::kernels::{add_to_columns, bernoulli_variances, row_slopes, row_system, weigh};
use super::newton::{Joint, System, add_square, factorised};
use super::side::Side;
use super::{Factors, Family, LowRank, Term};
use rayon::prelude::*;
use std::sync::Arc;
use whimbrel_core::linalg::{packed_len, solve_lower, solve_lower_transposed};
use whimbrel_core::{Result, vector};

/// `S` is clipped to this distance inside the range of the means.
const EPSILON: f64 = 1e-12;
/// Tolerance beyond the range before a cell of `S` counts as outside.
const SLACK: f64 = 1e-9;
/// Sweeps stop at this decrement relative to that of a full EM step (the first sweep's over the squared
/// step size), at [`ROUNDING`] relative to the objective, or after [`SWEEPS_MAX`].
const ACCURACY: f64 = 0.05;
const ROUNDING: f64 = 1e-28;
const SWEEPS_MAX: u32 = 10;
/// Maximal sweeps where `T` is solved to convergence.
const FULL_SWEEPS_MAX: u32 = 10_000;

/// `S += gamma H`, then sweeps, then the effects.
pub(super) fn advance(
    model: &LowRank,
    s: &mut [f64],
    factors: &mut Factors,
    step: TableStep<'_>,
) -> Result<Advance> {
    let alike = step.residuals.uniform;
    // With uniform copies, sweeps and effects share an objective; row and column effects are part of
    // the sweeps.
    let in_sweeps = alike && model.shared_terms().next().is_some();
    let mut done = Advance::default();
    let mut moves = true;
    let mut enough = 0.0;
    loop {
        let mut found = sweep(model, s, factors, &step, moves)?;
        if in_sweeps {
            found.decrement += solve_effects(model, factors, s, &step);
        }
        centre(model, factors)?;
        factors.balance();
        done.sweeps += 1;
        if std::mem::take(&mut moves) {
            done.field_norm2 = found.field2;
            done.table_norm2 = found.table2;
            done.repairs = found.repairs;
            enough = ACCURACY * found.decrement / (step.gamma * step.gamma).max(f64::MIN_POSITIVE);
        }
        let rounding = ROUNDING * found.size;
        let (enough, sweeps_max) =
            if step.full { (0.0, FULL_SWEEPS_MAX) } else { (enough, SWEEPS_MAX) };
        let is_over = done.sweeps == sweeps_max || (model.rank() == 0 && !alike);
        if found.decrement <= enough.max(rounding) || is_over {
            if !alike && !model.terms().is_empty() {
                solve_effects(model, factors, s, &step);
                centre(model, factors)?;
                factors.balance();
            }
            return Ok(done);
        }
    }
}

/// Diagnostics of one sweep.
#[derive(Default)]
struct SweepSums {
    field2: f64,
    table2: f64,
    repairs: u64,
    /// `sum g^T H^-1 g` over rows and columns.
    decrement: f64,
    /// The sum of the means: the scale of the objective.
    size: f64,
}

/// A chunk of rows after its own unknowns were solved.
struct SolvedRows {
    u: Vec<f64>,
    row_effects: Vec<f64>,
    /// Gradients and packed curvatures of the columns, one component after the other.
    gradient: Vec<f64>,
    curvature: Vec<f64>,
    found: SweepSums,
}

/// One sweep over rows, then columns; with `moves` the table takes its step first.
fn sweep(
    model: &LowRank,
    s: &mut [f64],
    factors: &mut Factors,
    step: &TableStep<'_>,
    moves: bool,
) -> Result<SweepSums> {
    let (columns, rows) = (model.columns(), chunk_rows(model.rows()));
    let ridges = Side::BOTH.map(|side| model.ridge(side, step.shrink()));
    let row_means = RowMeans::new(model, factors);
    // The rows' design: v_l, and 1 where rows have effects.
    let mut x = row_means.vt.clone();
    x.resize(ridges[0].len() * columns, 1.0);
    let bound = MoveBound::new(&factors.v, model.rank());
    let (row_means, ridges, x, bound) = (&row_means, &ridges, &x[..], &bound);
    let job = RowJob { model, row_means, ridges, x, bound, step, moves };
    let parts = s.par_chunks_mut(columns * rows).enumerate();
    let parts: Vec<SolvedRows> =
        parts.map(|(c, chunk)| job.chunk(c * rows, chunk)).collect::<Result<_>>()?;

    let q = ridges[1].len();
    let mut gradient = vec![0.0; q * columns];
    let mut curvature = vec![0.0; packed_len(q) * columns];
    let mut found = SweepSums::default();
    let (mut u, mut row_effects) = (Vec::new(), Vec::new());
    for part in &parts {
        u.extend_from_slice(&part.u);
        row_effects.extend_from_slice(&part.row_effects);
        vector::axpy(&mut gradient, 1.0, &part.gradient);
        vector::axpy(&mut curvature, 1.0, &part.curvature);
        found.field2 += part.found.field2;
        found.table2 += part.found.table2;
        found.repairs += part.found.repairs;
        found.decrement += part.found.decrement;
        found.size += part.found.size;
    }
    factors.u = u;
    if let Some(t) = model.line_term(Side::Row) {
        factors.effects[t] = row_effects;
    }
    found.decrement += solve_columns(model, factors, &ridges[1], &gradient, &curvature)?;
    Ok(found)
}

/// The data that all chunks of a sweep share.
struct RowJob<'a> {
    model: &'a LowRank,
    row_means: &'a RowMeans<'a>,
    /// Ridges on the unknowns of a row, and of a column.
    ridges: &'a [Vec<f64>; 2],
    x: &'a [f64],
    bound: &'a MoveBound,
    step: &'a TableStep<'a>,
    moves: bool,
}

impl RowJob<'_> {
    fn chunk(&self, first: usize, s: &mut [f64]) -> Result<SolvedRows> {
        let (columns, r) = (self.model.columns(), self.model.rank());
        let [ridge, of_columns] = self.ridges;
        let (q, count) = (of_columns.len(), s.len() / columns);
        let mut part = SolvedRows {
            u: self.row_means.factors.u[first * r..][..count * r].to_vec(),
            row_effects: (first..first + count).map(|row| self.row_means.effect(row)).collect(),
            gradient: vec![0.0; q * columns],
            curvature: vec![0.0; packed_len(q) * columns],
            found: SweepSums::default(),
        };
        let mut mean = vec![0.0; columns];
        let (mut d, mut scratch, mut weights) = (mean.clone(), mean.clone(), mean.clone());
        let mut system = System::new(ridge.len());
        let mut z = vec![1.0; q];
        for (i, s) in s.chunks_exact_mut(columns).enumerate() {
            let row = first + i;
            if self.moves {
                self.row_means.field(self.step.residuals, row, s, [&mut mean, &mut d]);
                let [field2, table2] = self.step.residuals.norms2(self.model, row, [s, &mean, &d]);
                part.found.field2 += field2;
                part.found.table2 += table2;
                vector::axpy(s, self.step.gamma, &d);
            } else {
                self.row_means.means(row, &mut mean);
            }
            let weighs = self.step.weights(self.model, row, s, &mut weights);
            let weights = weighs.then_some(&weights[..]);
            let (repairs, size) = slopes(self.model.family(), &mut d, &mut mean, s, weights);
            part.found.repairs += repairs;
            part.found.size += size;
            let u = &mut part.u[i * r..][..r];
            let effect = &mut part.row_effects[i];
            if !ridge.is_empty() {
                row_system(&d, &mean, self.x, &mut scratch, &mut system.g, &mut system.h);
                part.found.decrement +=
                    step_line(&system, self.model.family(), ridge, u, effect, self.bound)?;
            }
            // The columns use the updated row.
            self.row_means.means_at(row, self.row_means.base(row, *effect), u, &mut mean);
            slopes(self.model.family(), &mut d, &mut mean, s, weights);
            z[..r].copy_from_slice(u);
            add_to_columns(&d, &mean, &z, &mut part.gradient, &mut part.curvature);
        }
        Ok(part)
    }
}

/// Writes slopes `psi' - S` and replaces means by curvatures. Returns the number of cells of `S` outside
/// the range, and the sum of the means.
fn slopes(
    family: Family,
    d: &mut [f64],
    mean: &mut [f64],
    s: &[f64],
    weights: Option<&[f64]>,
) -> (u64, f64) {
    let (low, high) = range(family);
    // Zero counts lie on the boundary, and rounding errors are tolerated.
    let (out_low, out_high) = (low - EPSILON - SLACK, high + EPSILON + SLACK);
    let repairs = row_slopes(d, mean, s, low, high, out_low, out_high);
    let size = vector::norm1(mean);
    match family {
        Family::Gaussian => mean.fill(1.0),
        Family::Poisson => {}
        Family::Bernoulli => bernoulli_variances(mean),
    }
    if let Some(weights) = weights {
        weigh(d, mean, weights);
    }
    (repairs, size)
}

/// Damped Newton steps of all effects jointly, with the factors fixed; returns the decrement of the
/// first. Where copies differ, only the observed cells enter, so that the steps decrease `F` itself and
/// weakly linked effects are not slowed by unobserved cells. In a model without factors these steps are
/// the fit and run to convergence.
fn solve_effects(model: &LowRank, factors: &mut Factors, s: &[f64], step: &TableStep<'_>) -> f64 {
    let (columns, (low, high)) = (model.columns(), range(model.family()));
    let mut starts = vec![1];
    starts.extend(factors.effects.iter().scan(1, |end, own| {
        *end += own.len();
        Some(*end)
    }));
    let mut joint = Joint::new(model.family(), 1 + model.terms().len());
    for (row, s) in s.chunks_exact(columns).enumerate() {
        let mut add = |l: usize, copies: f64| {
            let place = |(term, start): (&Arc<Term>, &usize)| {
                let (at, weight) = term.place(columns, [row, l]);
                (start + at, weight)
            };
            let places = model.terms().iter().zip(&starts).map(place);
            let [u, v] = factors.lines(row, l);
            let design = std::iter::once((0, 1.0)).chain(places);
            joint.add(design, vector::dot(u, v), s[l].clamp(low, high), copies);
        };
        if step.residuals.uniform {
            (0..columns).for_each(|l| add(l, 1.0));
        } else {
            step.residuals.each_of(row).for_each(|(l, copies)| add(l, copies));
        }
    }
    let (mut x, mut ridge) = (vec![factors.intercept], vec![0.0]);
    for (t, own) in factors.effects.iter().enumerate() {
        x.extend(own);
        ridge.resize(x.len(), step.shrink() * model.term_ridge(t));
    }
    let decrement = joint.solve(&ridge, &mut x, model.rank() == 0);
    factors.intercept = x[0];
    let numbers = factors.effects.iter_mut().flatten();
    numbers.zip(&x[1..]).for_each(|(own, found)| *own = *found);
    decrement
}

/// The range of a family's means, reduced by [`EPSILON`].
fn range(family: Family) -> (f64, f64) {
    match family {
        Family::Gaussian => (f64::NEG_INFINITY, f64::INFINITY),
        Family::Poisson => (EPSILON, f64::INFINITY),
        Family::Bernoulli => (EPSILON, 1.0 - EPSILON),
    }
}

/// Sizes of the other side's factors, which bound the change of a cell's `theta` by a step of this side.
struct MoveBound {
    components: Vec<f64>,
    norm: f64,
}

impl MoveBound {
    fn new(other: &[f64], r: usize) -> Self {
        let mut bound = Self { components: vec![0.0; r], norm: 0.0 };
        for row in other.chunks_exact(r.max(1)) {
            for (most, value) in bound.components.iter_mut().zip(row) {
                *most = value.abs().max(*most);
            }
            bound.norm = vector::norm2_squared(row).sqrt().max(bound.norm);
        }
        bound
    }

    /// A bound on the change of any cell's `theta` by `delta`.
    fn bound(&self, delta: &[f64]) -> f64 {
        let (factors, effect) = delta.split_at(self.components.len());
        let box_bound: f64 = factors.iter().zip(&self.components).map(|(d, m)| d.abs() * m).sum();
        let ball_bound = vector::norm2_squared(factors).sqrt() * self.norm;
        box_bound.min(ball_bound) + effect.iter().map(|e| e.abs()).sum::<f64>()
    }
}

/// One damped Newton step of a row or column; returns its decrement.
fn step_line(
    system: &System,
    family: Family,
    ridge: &[f64],
    factors: &mut [f64],
    effect: &mut f64,
    bound: &MoveBound,
) -> Result<f64> {
    let r = factors.len();
    let mut x = factors.to_vec();
    x.resize(ridge.len(), *effect);
    let (_, decrement) = system.step(family, ridge, &mut x, |delta| bound.bound(delta))?;
    factors.copy_from_slice(&x[..r]);
    x[r..].iter().for_each(|moved| *effect = *moved);
    Ok(decrement)
}

/// Newton steps of all columns; returns the sum of their decrements.
fn solve_columns(
    model: &LowRank,
    factors: &mut Factors,
    ridge: &[f64],
    gradient: &[f64],
    curvature: &[f64],
) -> Result<f64> {
    let (columns, r, q) = (model.columns(), model.rank(), ridge.len());
    if q == 0 {
        return Ok(0.0);
    }
    let bound = MoveBound::new(&factors.u, r);
    let (g, h) = (transposed(gradient, columns), transposed(curvature, columns));
    let mut system = System::new(q);
    let (own, mut decrement) = (model.line_term(Side::Column), 0.0);
    for l in 0..columns {
        system.g.copy_from_slice(&g[l * q..][..q]);
        system.h.copy_from_slice(&h[l * packed_len(q)..][..packed_len(q)]);
        let mut none = 0.0;
        let b = own.map_or(&mut none, |t| &mut factors.effects[t][l]);
        let v = &mut factors.v[l * r..][..r];
        decrement += step_line(&system, model.family(), ridge, v, b, &bound)?;
    }
    Ok(decrement)
}

/// Among equal `theta`, picks the parametrisation of least penalty: a vector added to all factors of one
/// side is subtracted from the effects of the other, and the means of effects go to the intercept.
fn centre(model: &LowRank, factors: &mut Factors) -> Result<()> {
    let (r, lambda) = (model.rank(), model.settings().lambda);
    for side in [Side::Column, Side::Row] {
        let Some(t) = model.line_term(side).filter(|_| r > 0) else { continue };
        let Factors { u, v, effects, .. } = &mut *factors;
        let (own, other) = if side == Side::Column { (u, v) } else { (v, u) };
        // c = argmin lambda sum |u_j + c|^2 + ridge sum (b_l - <c, v_l>)^2
        let (ridge, count) = (model.term_ridge(t), (own.len() / r) as f64);
        let (mut curvature, mut c) = (vec![0.0; packed_len(r)], vec![0.0; r]);
        for (v, b) in other.chunks_exact(r).zip(&effects[t]) {
            add_square(&mut curvature, v, ridge);
            vector::axpy(&mut c, ridge * b, v);
        }
        own.chunks_exact(r).for_each(|u| vector::axpy(&mut c, -lambda, u));
        let factor = factorised(&curvature, &vec![lambda * count; r])?;
        solve_lower(&factor, r, &mut c);
        solve_lower_transposed(&factor, r, &mut c);
        own.chunks_exact_mut(r).for_each(|u| vector::axpy(u, 1.0, &c));
        for (v, b) in other.chunks_exact(r).zip(&mut effects[t]) {
            *b -= vector::dot(&c, v);
        }
    }
    for (term, own) in model.terms().iter().zip(&mut factors.effects) {
        if term.is_unweighted() {
            let mean = own.iter().sum::<f64>() / own.len() as f64;
            own.iter_mut().for_each(|effect| *effect -= mean);
            factors.intercept += mean;
        }
    }
    Ok(())
}
