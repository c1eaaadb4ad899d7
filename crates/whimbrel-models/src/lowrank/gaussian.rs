//! `T` of a Gaussian table: the soft-thresholded truncated singular value decomposition of `S` less
//! the main effects, and the effects given the rest, in turn.
//!
//! The minimiser of `(1/2)|S - theta|^2 + (tau/2)(|U|^2 + |V|^2)` over matrices of rank `r` has
//! `S`'s leading singular vectors and its singular values less `tau`, at least zero. The right
//! singular vectors are found in a small subspace that is carried from call to call: the last ones,
//! the directions in which they are wrong, and two more. One sweep over `S` projects it on the
//! subspace (`Y = S Q`), solves the small problem (Rayleigh-Ritz on `Y^T Y`) and gives the
//! directions for the next (`S^T Y`). The last singular vectors being in the subspace, no sweep
//! increases the objective.

use super::complete::{Advance, Frame, Push, add, chunk_rows};
use super::kernels::{centre_row, project_row};
use super::{Factors, LowRank};
use rayon::prelude::*;
use whimbrel_core::linalg::symmetric_eigen;
use whimbrel_core::{Key, Result, vector};

/// Directions carried beside the leading singular vectors and their errors.
const SPARE: usize = 2;
/// Sweeps go on until the factors are the exact ones of a table this much nearer to `S` than the
/// step's field is long.
const ACCURACY: f64 = 0.1;
/// ... or until rounding is all that is left, or for so many sweeps.
const ROUNDING: f64 = 1e-13;
const SWEEPS_MAX: u32 = 10;

/// `S += gamma H`, then sweeps.
pub(super) fn advance(
    model: &LowRank,
    s: &mut [f64],
    factors: &mut Factors,
    basis: &mut Vec<f64>,
    step: Push<'_>,
) -> Result<Advance> {
    if basis.is_empty() {
        *basis = first_basis(model);
    }
    let mut done = Advance::default();
    let mut push = Some(&step);
    loop {
        let sums = sweep(model, s, factors, basis, push);
        done.field_norm2 += sums.field2;
        done.table_norm2 += sums.table2;
        done.sweeps += 1;
        push = None;
        let Solved { error, size } = solve(model, factors, basis, &sums, step.shrink)?;
        let near = error <= ACCURACY * done.field_norm2.sqrt() || error <= ROUNDING * size;
        if near || done.sweeps == SWEEPS_MAX {
            return Ok(done);
        }
    }
}

/// What one sweep over the table gathers, `S` standing for `S` less the effects.
struct Sums {
    /// `Y = S Q`, row after row.
    y: Vec<f64>,
    /// `S^T Y`, one direction after the other.
    z: Vec<f64>,
    /// `Y^T Y`.
    gram: Vec<f64>,
    row_sums: Vec<f64>,
    column_sums: Vec<f64>,
    field2: f64,
    table2: f64,
}

fn sweep(
    model: &LowRank,
    s: &mut [f64],
    factors: &Factors,
    basis: &[f64],
    push: Option<&Push<'_>>,
) -> Sums {
    let (columns, rows) = (model.columns(), chunk_rows(model.rows()));
    let k = basis.len() / columns;
    let frame = Frame::new(model, factors);
    let chunk = |(c, chunk): (usize, &mut [f64])| {
        let count = chunk.len() / columns;
        let mut part = Sums {
            y: vec![0.0; count * k],
            z: vec![0.0; k * columns],
            gram: vec![0.0; k * k],
            row_sums: vec![0.0; count],
            column_sums: vec![0.0; columns],
            field2: 0.0,
            table2: 0.0,
        };
        let (mut buffer, mut h) = (vec![0.0; columns], vec![0.0; columns]);
        for (i, s) in chunk.chunks_exact_mut(columns).enumerate() {
            let row = c * rows + i;
            if let Some(push) = push {
                let buffers = [&mut buffer[..], &mut h[..]];
                part.field2 += frame.push_row(factors, push, row, s, buffers);
                part.table2 += vector::norm2_squared(s);
            }
            let base = factors.intercept + factors.row_effects[row];
            centre_row(&mut buffer, s, base, &factors.column_effects);
            let y = &mut part.y[i * k..][..k];
            project_row(&buffer, basis, y, &mut part.z);
            for (a, gram) in y.iter().zip(part.gram.chunks_exact_mut(k.max(1))) {
                vector::axpy(gram, *a, y);
            }
            part.row_sums[i] = buffer.iter().sum();
            add(&mut part.column_sums, &buffer);
        }
        part
    };
    let parts: Vec<Sums> = s.par_chunks_mut(columns * rows).enumerate().map(chunk).collect();
    let mut all = Sums {
        y: Vec::with_capacity(model.rows() * k),
        z: vec![0.0; k * columns],
        gram: vec![0.0; k * k],
        row_sums: Vec::with_capacity(model.rows()),
        column_sums: vec![0.0; columns],
        field2: 0.0,
        table2: 0.0,
    };
    for part in &parts {
        all.y.extend_from_slice(&part.y);
        all.row_sums.extend_from_slice(&part.row_sums);
        add(&mut all.z, &part.z);
        add(&mut all.gram, &part.gram);
        add(&mut all.column_sums, &part.column_sums);
        all.field2 += part.field2;
        all.table2 += part.table2;
    }
    all
}

/// How near the factors are to `T(S)`.
struct Solved {
    /// They are exactly those of a table that lies this far from `S`.
    error: f64,
    /// The largest singular value.
    size: f64,
}

/// Factors and effects from the sums, and the subspace of the next sweep.
fn solve(
    model: &LowRank,
    factors: &mut Factors,
    basis: &mut Vec<f64>,
    sums: &Sums,
    shrink: f64,
) -> Result<Solved> {
    let (columns, r) = (model.columns(), model.rank());
    let mut solved = Solved { error: 0.0, size: 0.0 };
    if r > 0 {
        let k = basis.len() / columns;
        let tau = shrink * model.settings().lambda;
        let ritz = Ritz::new(&sums.gram, k)?;
        solved.size = ritz.sigma[0];
        // U = Y W diag(sqrt(d)/sigma), V = Q W diag(sqrt(d)), d = (sigma - tau)+
        let vectors: Vec<Vec<f64>> = (0..k).map(|i| ritz.combine(i, basis, columns)).collect();
        for (i, right) in vectors.iter().enumerate().take(r) {
            let sigma = ritz.sigma[i];
            let root = (sigma - tau).max(0.0).sqrt();
            let left = if sigma > 0.0 { root / sigma } else { 0.0 };
            let w = ritz.vector(i);
            for (u, y) in factors.u.chunks_exact_mut(r).zip(sums.y.chunks_exact(k)) {
                u[i] = left * vector::dot(y, w);
            }
            for (v, q) in factors.v.chunks_exact_mut(r).zip(right) {
                v[i] = root * q;
            }
        }
        // S^T Y w − sigma² Q w: what is missing for Q w to be singular.
        let mut wrong = Vec::new();
        let mut error2 = 0.0;
        for (i, right) in vectors.iter().enumerate().take(r) {
            let sigma = ritz.sigma[i];
            let mut residual = ritz.combine(i, &sums.z, columns);
            vector::axpy(&mut residual, -sigma * sigma, right);
            if sigma > tau && sigma > 0.0 {
                error2 += vector::norm2_squared(&residual) / (sigma * sigma);
            }
            wrong.push(residual);
        }
        solved.error = error2.sqrt();
        let spare = vectors.iter().skip(r);
        let wanted = vectors.iter().take(r).chain(&wrong).chain(spare).cloned();
        *basis = orthonormal(wanted.take(k).collect());
    }
    let moved2 = solve_effects(model, factors, sums, shrink);
    solved.error = (solved.error * solved.error + moved2).sqrt();
    let mean_size = factors.intercept.abs() * (model.cells() as f64).sqrt();
    solved.size = solved.size.max(mean_size);
    Ok(solved)
}

/// The effects that suit the factors best, in closed form; returns how far they moved `theta`,
/// squared.
fn solve_effects(model: &LowRank, factors: &mut Factors, sums: &Sums, shrink: f64) -> f64 {
    let effects = model.settings().effects;
    if !effects.has_intercept() {
        return 0.0;
    }
    let (rows, columns, r) = (model.rows() as f64, model.columns() as f64, model.rank());
    let tau = shrink * model.settings().lambda_effects;
    let u_sum = component_sums(&factors.u, r);
    let v_sum = component_sums(&factors.v, r);
    // Sums along rows and columns of what the factors leave of S, less the effects there were.
    let left = |sum: f64, own: &[f64], other: &[f64]| sum - vector::dot(own, other);
    let row_left: Vec<f64> = (0..model.rows())
        .map(|j| left(sums.row_sums[j], &factors.u[j * r..][..r], &v_sum))
        .collect();
    let column_left: Vec<f64> = (0..model.columns())
        .map(|l| left(sums.column_sums[l], &factors.v[l * r..][..r], &u_sum))
        .collect();
    // Penalised effects sum to zero, so the intercept is the mean; they always have, so sums over
    // the effects there were vanish.
    let shift = row_left.iter().sum::<f64>() / (rows * columns);
    factors.intercept += shift;
    let mut moved2 = rows * columns * shift * shift;
    let mut fit = |present: bool, own: &mut [f64], left: &[f64], across: f64| {
        if !present {
            return;
        }
        for (own, left) in own.iter_mut().zip(left) {
            let next = (left - across * shift + across * *own) / (across + tau);
            moved2 += across * (next - *own) * (next - *own);
            *own = next;
        }
    };
    fit(effects.has_row(), &mut factors.row_effects, &row_left, columns);
    fit(effects.has_column(), &mut factors.column_effects, &column_left, rows);
    moved2
}

/// `A^T A` of an `n x r` matrix.
pub(super) fn component_dots(a: &[f64], r: usize) -> Vec<f64> {
    let mut dots = vec![0.0; r * r];
    for row in a.chunks_exact(r.max(1)) {
        for (x, dots) in row.iter().zip(dots.chunks_exact_mut(r)) {
            vector::axpy(dots, *x, row);
        }
    }
    dots
}

fn component_sums(a: &[f64], r: usize) -> Vec<f64> {
    let mut sums = vec![0.0; r];
    a.chunks_exact(r.max(1)).for_each(|row| add(&mut sums, row));
    sums
}

/// The small problem's solution, largest first.
struct Ritz {
    sigma: Vec<f64>,
    /// Row `i` belongs to `sigma[i]`.
    w: Vec<f64>,
    k: usize,
}

impl Ritz {
    fn new(gram: &[f64], k: usize) -> Result<Self> {
        let eigen = symmetric_eigen(gram, k)?;
        let sigma = eigen.values.iter().rev().map(|value| value.max(0.0).sqrt()).collect();
        let w = eigen.vectors.chunks_exact(k).rev().flatten().copied().collect();
        Ok(Self { sigma, w, k })
    }

    fn vector(&self, i: usize) -> &[f64] {
        &self.w[i * self.k..][..self.k]
    }

    /// `sum_m w_im rows_m`.
    fn combine(&self, i: usize, rows: &[f64], columns: usize) -> Vec<f64> {
        let mut out = vec![0.0; columns];
        for (w, row) in self.vector(i).iter().zip(rows.chunks_exact(columns)) {
            vector::axpy(&mut out, *w, row);
        }
        out
    }
}

/// Random directions: as many as the leading vectors, their errors, and the spare ones.
fn first_basis(model: &LowRank) -> Vec<f64> {
    let (r, columns) = (model.rank(), model.columns());
    let k = if r == 0 { 0 } else { (2 * r + SPARE).min(columns) };
    orthonormal(vec![vec![0.0; columns]; k])
}

/// Gram-Schmidt, twice over; a vector with nothing of its own is replaced by a random one.
pub(super) fn orthonormal(vectors: Vec<Vec<f64>>) -> Vec<f64> {
    /// The streams of the replacements.
    const BASIS: u64 = 0xBA515;
    let mut done: Vec<Vec<f64>> = Vec::with_capacity(vectors.len());
    for (i, mut x) in vectors.into_iter().enumerate() {
        let mut attempt = 0;
        while !normalise_against(&done, &mut x) {
            Key::root(BASIS).fold(i as u64).fold(attempt).stream().fill_normal(&mut x);
            attempt += 1;
        }
        done.push(x);
    }
    done.concat()
}

/// Makes `x` a unit vector orthogonal to the others; says whether enough of it was left.
fn normalise_against(others: &[Vec<f64>], x: &mut [f64]) -> bool {
    let before = vector::norm2_squared(x).sqrt();
    if !(before > f64::MIN_POSITIVE.sqrt() && before.is_finite()) {
        return false;
    }
    vector::scale(x, 1.0 / before);
    // What the first pass leaves may be mostly rounding; the second is orthogonal to that too.
    for least in [1e-12, 0.1] {
        for other in others {
            let overlap = vector::dot(x, other);
            vector::axpy(x, -overlap, other);
        }
        let left = vector::norm2_squared(x).sqrt();
        if left < least {
            return false;
        }
        vector::scale(x, 1.0 / left);
    }
    true
}
