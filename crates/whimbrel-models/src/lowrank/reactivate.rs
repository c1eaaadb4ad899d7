//! Reactivation of zero components.
//!
//! `u_k = v_k = 0` is stationary for any data, so alternating fits can stall there although the component
//! would lower the objective. With `G` the gradient of the loss with respect to `U V^T`, a zero component
//! lowers it if `G` has a singular value above `lambda` orthogonal to the spans of the other components,
//! whose singular values are `lambda` at the optimum. The singular vectors are the component to add; its
//! size minimises `F` along them to second order.

use super::complete::Residuals;
use super::newton::damping;
use super::{Factors, LowRank};
use whimbrel_core::linalg::symmetric_eigen;
use whimbrel_core::{Key, Result, vector};

/// Relative size below which a component counts as zero.
const ZERO: f64 = 1e-6;
/// Relative margin by which a singular value must exceed `lambda`.
const EXCESS: f64 = 1e-5;
/// Maximal iterations of the power method, and the relative change at which it stops.
const POWER_STEPS: usize = 300;
const POWER_SETTLED: f64 = 1e-10;
/// The key of the initial direction.
const POWER: u64 = 0x3A6E;

/// Gives a zero component of balanced factors the best direction, if one lowers the objective. `n` is
/// the number of clients, which multiplies the penalties.
pub(super) fn reactivate(
    model: &LowRank,
    factors: &mut Factors,
    cells: &Residuals,
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
    /// The smallest `lambda` for which all factors are zero, given the residuals of the rank-0 optimum and
    /// the number of clients: the spectral norm of the mean residual.
    pub fn lambda_max(&self, cells: &Residuals, n: f64) -> f64 {
        self.best_direction(cells, n, &[], &[]).map_or(0.0, |(_, _, sigma)| sigma)
    }

    /// Adds a component to factors whose components are singular vectors, largest first; `None` if that
    /// does not lower the objective.
    fn with_component(&self, mut factors: Factors, cells: &Residuals, n: f64) -> Option<Factors> {
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

    /// The largest singular value of the mean residual orthogonal to these bases, with its vectors.
    fn best_direction(
        &self,
        cells: &Residuals,
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
    /// Rotates the components to singular vectors, largest first, by the eigenvectors of
    /// `U^T U + V^T V`. Exact where the two Gram matrices are equal, as at a penalised optimum.
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

/// Removes a vector's projection onto the span of an orthonormal basis. Done twice, since the power
/// method would amplify the rounding errors of a single pass.
fn clear(a: &mut [f64], basis: &[Vec<f64>]) {
    for q in basis.iter().chain(basis) {
        let along = vector::dot(q, a);
        vector::axpy(a, -along, q);
    }
}

/// An orthonormal basis of the span of some vectors.
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
