//! `T`: Newton steps by rows, by columns and of all effects, damped so that none increases its objective.
//!
//! `sum_all M [psi(theta) - S theta]` plus the penalties is minimised over the rows' unknowns
//! `(u_j, a_j)` with the columns' fixed, then over `(v_l, b_l)`, row by row and column by column, then
//! over all effects with the factors fixed. For a Gaussian table with one `M` this is alternating least
//! squares, whose limit is the soft-thresholded singular value decomposition of `S` less the effects.

use super::complete::{Advance, Frame, Push, chunk_rows, transposed};
use super::kernels::{add_to_columns, bernoulli_variances, row_slopes, row_system, weigh};
use super::newton::{Joint, System, add_square, factorised};
use super::side::Side;
use super::{Factors, Family, LowRank, Term};
use rayon::prelude::*;
use std::sync::Arc;
use whimbrel_core::linalg::{packed_len, solve_lower, solve_lower_transposed};
use whimbrel_core::{Result, vector};

/// `S` is clipped this far inside the range of the means.
const EPSILON: f64 = 1e-12;
/// `S` counts as outside its range when it is further out than this.
const SLACK: f64 = 1e-9;
/// Sweeps go on until the decrement is this small beside that of a whole step of EM, which is the
/// first sweep's over the square of the step.
const ACCURACY: f64 = 0.05;
/// ... or until rounding is all that is left, or for this number of sweeps.
const ROUNDING: f64 = 1e-28;
const SWEEPS_MAX: u32 = 10;
/// The same where `T` is carried out to the end.
const FULL_SWEEPS_MAX: u32 = 10_000;

/// `S += gamma H`, then sweeps, then the effects.
pub(super) fn advance(
    model: &LowRank,
    s: &mut [f64],
    factors: &mut Factors,
    step: Push<'_>,
) -> Result<Advance> {
    let alike = step.push.uniform;
    // Where copies are alike, sweeps and effects fit the same; those of lines are in the sweeps.
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

/// What one sweep found.
#[derive(Default)]
struct Found {
    field2: f64,
    table2: f64,
    repairs: u64,
    /// `sum g^T H^-1 g` over rows and columns.
    decrement: f64,
    /// The sum of the means, which is the size of the objective.
    size: f64,
}

/// One chunk of rows, its own unknowns solved.
struct Part {
    u: Vec<f64>,
    row_effects: Vec<f64>,
    /// Gradients and packed curvatures of the columns, one coordinate after the other.
    gradient: Vec<f64>,
    curvature: Vec<f64>,
    found: Found,
}

/// Rows, then columns; `moves`: the table moves first.
fn sweep(
    model: &LowRank,
    s: &mut [f64],
    factors: &mut Factors,
    step: &Push<'_>,
    moves: bool,
) -> Result<Found> {
    let (columns, rows) = (model.columns(), chunk_rows(model.rows()));
    let ridges = Side::BOTH.map(|side| model.ridge(side, step.shrink()));
    let frame = Frame::new(model, factors);
    // The rows' design: v_l, and 1 where rows have effects.
    let mut x = frame.vt.clone();
    x.resize(ridges[0].len() * columns, 1.0);
    let reach = Reach::new(&factors.v, model.rank());
    let (frame, ridges, x, reach) = (&frame, &ridges, &x[..], &reach);
    let job = RowJob { model, frame, ridges, x, reach, step, moves };
    let parts = s.par_chunks_mut(columns * rows).enumerate();
    let parts: Vec<Part> =
        parts.map(|(c, chunk)| job.chunk(c * rows, chunk)).collect::<Result<_>>()?;

    let q = ridges[1].len();
    let mut gradient = vec![0.0; q * columns];
    let mut curvature = vec![0.0; packed_len(q) * columns];
    let mut found = Found::default();
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

/// What the chunks of a sweep share.
struct RowJob<'a> {
    model: &'a LowRank,
    frame: &'a Frame<'a>,
    /// The penalties on the unknowns of a row, and of a column.
    ridges: &'a [Vec<f64>; 2],
    x: &'a [f64],
    reach: &'a Reach,
    step: &'a Push<'a>,
    moves: bool,
}

impl RowJob<'_> {
    fn chunk(&self, first: usize, s: &mut [f64]) -> Result<Part> {
        let (columns, r) = (self.model.columns(), self.model.rank());
        let [ridge, of_columns] = self.ridges;
        let (q, count) = (of_columns.len(), s.len() / columns);
        let mut part = Part {
            u: self.frame.factors.u[first * r..][..count * r].to_vec(),
            row_effects: (first..first + count).map(|row| self.frame.effect(row)).collect(),
            gradient: vec![0.0; q * columns],
            curvature: vec![0.0; packed_len(q) * columns],
            found: Found::default(),
        };
        let mut mean = vec![0.0; columns];
        let (mut d, mut scratch, mut weights) = (mean.clone(), mean.clone(), mean.clone());
        let mut system = System::new(ridge.len());
        let mut z = vec![1.0; q];
        for (i, s) in s.chunks_exact_mut(columns).enumerate() {
            let row = first + i;
            if self.moves {
                self.frame.field(self.step.push, row, s, [&mut mean, &mut d]);
                let [field2, table2] = self.step.push.norms2(self.model, row, [s, &mean, &d]);
                part.found.field2 += field2;
                part.found.table2 += table2;
                vector::axpy(s, self.step.gamma, &d);
            } else {
                self.frame.means(row, &mut mean);
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
                    step_line(&system, self.model.family(), ridge, u, effect, self.reach)?;
            }
            // The columns see the row where it is now.
            self.frame.means_at(row, self.frame.base(row, *effect), u, &mut mean);
            slopes(self.model.family(), &mut d, &mut mean, s, weights);
            z[..r].copy_from_slice(u);
            add_to_columns(&d, &mean, &z, &mut part.gradient, &mut part.curvature);
        }
        Ok(part)
    }
}

/// Slopes `psi' - S`, and curvatures in place of the means; how many cells of `S` were outside, and the
/// sum of the means.
fn slopes(
    family: Family,
    d: &mut [f64],
    mean: &mut [f64],
    s: &[f64],
    weights: Option<&[f64]>,
) -> (u64, f64) {
    let (low, high) = range(family);
    // Zero counts are at the end of the range, not outside it; rounding is no way out either.
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

/// Damped Newton steps of all effects at once, with the factors as they are; the decrement of the first.
/// Where copies differ only the observed cells count, in which it is `F` that falls: what held the others
/// near their last value does not hold effects that few cells link. Without factors these steps are the
/// fit, and are carried to its end.
fn solve_effects(model: &LowRank, factors: &mut Factors, s: &[f64], step: &Push<'_>) -> f64 {
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
        match step.push.uniform {
            true => (0..columns).for_each(|l| add(l, 1.0)),
            false => step.push.each_of(row).for_each(|(l, copies)| add(l, copies)),
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

/// The means of a family, [`EPSILON`] inside their range.
fn range(family: Family) -> (f64, f64) {
    match family {
        Family::Gaussian => (f64::NEG_INFINITY, f64::INFINITY),
        Family::Poisson => (EPSILON, f64::INFINITY),
        Family::Bernoulli => (EPSILON, 1.0 - EPSILON),
    }
}

/// How large the other side's factors are: what a change of this side can do to a cell.
struct Reach {
    components: Vec<f64>,
    norm: f64,
}

impl Reach {
    fn new(other: &[f64], r: usize) -> Self {
        let mut reach = Self { components: vec![0.0; r], norm: 0.0 };
        for row in other.chunks_exact(r.max(1)) {
            for (most, value) in reach.components.iter_mut().zip(row) {
                *most = value.abs().max(*most);
            }
            reach.norm = vector::norm2_squared(row).sqrt().max(reach.norm);
        }
        reach
    }

    /// The most by which `delta` moves a cell.
    fn bound(&self, delta: &[f64]) -> f64 {
        let (factors, effect) = delta.split_at(self.components.len());
        let box_bound: f64 = factors.iter().zip(&self.components).map(|(d, m)| d.abs() * m).sum();
        let ball_bound = vector::norm2_squared(factors).sqrt() * self.norm;
        box_bound.min(ball_bound) + effect.iter().map(|e| e.abs()).sum::<f64>()
    }
}

/// One damped Newton step of a row or column; its decrement.
fn step_line(
    system: &System,
    family: Family,
    ridge: &[f64],
    factors: &mut [f64],
    effect: &mut f64,
    reach: &Reach,
) -> Result<f64> {
    let r = factors.len();
    let mut x = factors.to_vec();
    x.resize(ridge.len(), *effect);
    let (_, decrement) = system.step(family, ridge, &mut x, |delta| reach.bound(delta))?;
    factors.copy_from_slice(&x[..r]);
    x[r..].iter().for_each(|moved| *effect = *moved);
    Ok(decrement)
}

/// Newton steps of all columns; the sum of their decrements.
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
    let reach = Reach::new(&factors.u, r);
    // One column after the other.
    let (g, h) = (transposed(gradient, columns), transposed(curvature, columns));
    let mut system = System::new(q);
    let (own, mut decrement) = (model.line_term(Side::Column), 0.0);
    for l in 0..columns {
        system.g.copy_from_slice(&g[l * q..][..q]);
        system.h.copy_from_slice(&h[l * packed_len(q)..][..packed_len(q)]);
        let mut none = 0.0;
        let b = own.map_or(&mut none, |t| &mut factors.effects[t][l]);
        let v = &mut factors.v[l * r..][..r];
        decrement += step_line(&system, model.family(), ridge, v, b, &reach)?;
    }
    Ok(decrement)
}

/// Moves what factors and effects can both say to where the penalty is least, as `theta` stays: a vector
/// that is added to all factors of one side is taken from the effects of the other, and means of effects
/// go to the intercept.
fn centre(model: &LowRank, factors: &mut Factors) -> Result<()> {
    let (r, lambda) = (model.rank(), model.settings().lambda);
    for (side, t) in
        Side::BOTH.into_iter().zip([Side::Column, Side::Row].map(|s| model.line_term(s)))
    {
        let Some(t) = t.filter(|_| r > 0) else { continue };
        let Factors { u, v, effects, .. } = &mut *factors;
        let (own, other) = if side == Side::Row { (u, v) } else { (v, u) };
        // c least in lambda sum |u_j + c|^2 + ridge sum (b_l - <c, v_l>)^2
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
