//! Zeroed components whose gradient exceeds the ridge.
//!
//! `u_k = v_k = 0` is stationary whatever the data: rows and columns fitted in turn leave it only as
//! fast as what the component would gain exceeds its penalty, and one with a small singular value can
//! reach it on the way and stay. With `G` the gradient of the fit with respect to `U V^T`, a zero
//! component pays if `G` has a singular value above `lambda` orthogonal to the spaces of the others,
//! whose own values are `lambda` at the optimum. Its direction is then the component to add, and
//! along it `F` is least, to second order, at the size that is given here.

use super::complete::Sparse;
use super::newton::damping;
use super::{Factors, LowRank};
use whimbrel_core::linalg::symmetric_eigen;
use whimbrel_core::{Key, Result, vector};

/// A component this much smaller than the largest counts as zero.
const ZERO: f64 = 1e-6;
/// A singular value must be above `lambda` by this share.
const EXCESS: f64 = 1e-5;
/// Steps of the power method, and the change of the value that ends them.
const POWER_STEPS: usize = 300;
const POWER_SETTLED: f64 = 1e-10;
/// The stream of the first direction.
const POWER: u64 = 0x3A6E;

/// Gives a zero component of balanced factors the direction that pays best, if one does. `n` is what
/// penalties are multiplied with beside the residuals.
pub(super) fn reactivate(
    model: &LowRank,
    factors: &mut Factors,
    cells: &Sparse,
    n: f64,
) -> Result<()> {
    if model.rank() == 0 || model.settings().lambda <= 0.0 {
        return Ok(());
    }
    if let Some(found) = model.with_component(factors.separated()?, cells, n) {
        *factors = found;
    }
    Ok(())
}

impl LowRank {
    /// The smallest ridge at which factors do not pay, given the residuals of an optimum of rank 0 and
    /// their `n`: the spectral norm of the mean residual.
    pub fn lambda_max(&self, cells: &Sparse, n: f64) -> f64 {
        self.best_direction(cells, n, &[], &[]).map_or(0.0, |(_, _, sigma)| sigma)
    }

    /// Factors of which each component is one singular value, largest first, with one more; none where
    /// it does not pay.
    fn with_component(&self, mut factors: Factors, cells: &Sparse, n: f64) -> Option<Factors> {
        let (r, lambda) = (self.rank(), self.settings().lambda);
        let sizes: Vec<f64> = (0..r).map(|k| size_of(&factors, k, r)).collect();
        let zero = (0..r).find(|k| sizes[*k] <= ZERO * sizes[0])?;
        let [left, right] =
            [&factors.u, &factors.v].map(|side| basis((0..zero).map(|k| column(side, k, r))));
        let (x, y, sigma) = self.best_direction(cells, n, &left, &right)?;
        if sigma <= lambda * (1.0 + EXCESS) {
            return None;
        }
        // F(theta + t x y^T) = F - t (sigma - lambda) + (t^2/2) curvature + ...
        let family = self.family();
        let (mut curvature, mut reach) = (0.0, 0.0f64);
        cells.each(|row, column, _, copies| {
            let along = x[row] * y[column];
            let variance = family.variance(self.mean(&factors, [row, column]));
            curvature += copies * variance * along * along / n;
            reach = reach.max(along.abs());
        });
        let t = (sigma - lambda) / curvature;
        let t = t * damping(family, t * reach);
        if !(t.is_finite() && t > 0.0) {
            return None;
        }
        put(&mut factors.u, zero, r, &x, t.sqrt());
        put(&mut factors.v, zero, r, &y, t.sqrt());
        Some(factors)
    }

    /// The largest singular value of the mean residual beside these spaces, and its vectors.
    fn best_direction(
        &self,
        cells: &Sparse,
        n: f64,
        left: &[Vec<f64>],
        right: &[Vec<f64>],
    ) -> Option<(Vec<f64>, Vec<f64>, f64)> {
        let (mut x, mut y) = (vec![0.0; self.rows()], vec![0.0; self.columns()]);
        Key::root(POWER).stream().fill_normal(&mut y);
        let mut sigma = 0.0;
        let unit = |a: &mut [f64], spaces: &[Vec<f64>]| {
            clear(a, spaces);
            let norm = vector::norm2_squared(a).sqrt();
            (norm > 0.0).then(|| vector::scale(a, 1.0 / norm)).map(|()| norm)
        };
        unit(&mut y, right)?;
        for _ in 0..POWER_STEPS {
            x.fill(0.0);
            cells.each(|row, column, residual, _| x[row] += residual / n * y[column]);
            unit(&mut x, left)?;
            y.fill(0.0);
            cells.each(|row, column, residual, _| y[column] += residual / n * x[row]);
            let last = std::mem::replace(&mut sigma, unit(&mut y, right)?);
            if (sigma - last).abs() <= POWER_SETTLED * sigma {
                break;
            }
        }
        Some((x, y, sigma))
    }
}

impl Factors {
    /// Components turned so that each is one singular value, largest first: by the eigenvectors of
    /// `U^T U + V^T V`. Where the two are equal, as they are in a penalised optimum, that is exact.
    pub fn separated(&self) -> Result<Self> {
        let r = self.rank as usize;
        if r == 0 {
            return Ok(self.clone());
        }
        let mut dots = component_dots(&self.u, r);
        vector::axpy(&mut dots, 1.0, &component_dots(&self.v, r));
        let turn = symmetric_eigen(&dots, r)?.vectors;
        let turned = |side: &[f64]| -> Vec<f64> {
            let of = |row| turn.chunks_exact(r).rev().map(move |to| vector::dot(to, row));
            side.chunks_exact(r).flat_map(of).collect()
        };
        Ok(Self { u: turned(&self.u), v: turned(&self.v), ..self.clone() })
    }
}

/// `A^T A` of an `n x r` matrix.
fn component_dots(a: &[f64], r: usize) -> Vec<f64> {
    let mut dots = vec![0.0; r * r];
    for row in a.chunks_exact(r) {
        for (x, dots) in row.iter().zip(dots.chunks_exact_mut(r)) {
            vector::axpy(dots, *x, row);
        }
    }
    dots
}

/// Component `k` of one side.
fn column(side: &[f64], k: usize, r: usize) -> Vec<f64> {
    side.iter().skip(k).step_by(r).copied().collect()
}

fn put(side: &mut [f64], k: usize, r: usize, values: &[f64], scale: f64) {
    side.iter_mut().skip(k).step_by(r).zip(values).for_each(|(to, from)| *to = scale * from);
}

/// `|u_k| |v_k|`.
fn size_of(factors: &Factors, k: usize, r: usize) -> f64 {
    let norm2 = |side: &[f64]| vector::norm2_squared(&column(side, k, r));
    (norm2(&factors.u) * norm2(&factors.v)).sqrt()
}

/// Takes what lies in a space, given by an orthonormal basis, out of a vector. Twice: once leaves
/// rounding there, which a power method would blow up.
fn clear(a: &mut [f64], basis: &[Vec<f64>]) {
    for q in basis.iter().chain(basis) {
        let along = vector::dot(q, a);
        vector::axpy(a, -along, q);
    }
}

/// An orthonormal basis of the space of some vectors.
fn basis(vectors: impl Iterator<Item = Vec<f64>>) -> Vec<Vec<f64>> {
    let mut out: Vec<Vec<f64>> = Vec::new();
    for mut a in vectors {
        let before = vector::norm2_squared(&a).sqrt();
        clear(&mut a, &out);
        let norm = vector::norm2_squared(&a).sqrt();
        if norm > 1e-12 * before {
            vector::scale(&mut a, 1.0 / norm);
            out.push(a);
        }
    }
    out
}
