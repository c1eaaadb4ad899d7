//! Zeroed components whose gradient exceeds the ridge.
//!
//! `u_k = v_k = 0` is stationary whatever the data: rows and columns fitted in turn leave it only as
//! fast as what the component would gain exceeds its penalty, and one with a small singular value can
//! reach it on the way and stay. With `G` the gradient of the fit with respect to `U V^T`, a zero
//! component pays if `G` has a singular value above `lambda` orthogonal to the spaces of the others,
//! whose own values are `lambda` at the optimum. Its direction is then the component to add, and
//! along it `F` is least, to second order, at the size that is given here.

use super::balance::{align, component_dots};
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
    let old = factors.clone();
    if let Some(found) = model.with_component(separated(&old)?, cells, n) {
        *factors = found;
        align(factors, &old)?;
    }
    Ok(())
}

impl LowRank {
    /// The smallest ridge at which factors do not pay, given the residuals of an optimum of rank 0 and
    /// their `n`: the spectral norm of the mean residual.
    pub fn lambda_max(&self, cells: &Sparse, n: f64) -> f64 {
        self.best_direction(cells, n, &[], &[]).map_or(0.0, |(_, _, sigma)| sigma)
    }

    /// Factors of which each component is one singular value, with one more; none where it does not
    /// pay.
    fn with_component(&self, mut factors: Factors, cells: &Sparse, n: f64) -> Option<Factors> {
        let (r, lambda) = (self.rank(), self.settings().lambda);
        let sizes: Vec<f64> = (0..r).map(|k| size_of(&factors, k, r)).collect();
        let largest = sizes.iter().copied().fold(0.0, f64::max);
        let is_zero = |k: &usize| sizes[*k] <= ZERO * largest;
        let zero = (0..r).find(is_zero)?;
        let live: Vec<usize> = (0..r).filter(|k| !is_zero(k)).collect();
        let [left, right] =
            [&factors.u, &factors.v].map(|side| basis(live.iter().map(|k| column(side, *k, r))));
        let (x, y, sigma) = self.best_direction(cells, n, &left, &right)?;
        if sigma <= lambda * (1.0 + EXCESS) {
            return None;
        }
        // F(theta + t x y^T) = F - t (sigma - lambda) + (t^2/2) curvature + ...
        let family = self.family();
        let (mut curvature, mut reach) = (0.0, 0.0f64);
        cells.each(|row, column, _, copies| {
            let along = x[row] * y[column];
            let mean = family.mean(factors.theta(row, column));
            curvature += copies * family.variance(mean) * along * along / n;
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

/// Balanced factors turned so that each component is one singular value: by the eigenvectors of
/// `U^T U + V^T V`.
fn separated(factors: &Factors) -> Result<Factors> {
    let r = factors.rank as usize;
    let mut dots = component_dots(&factors.u, r);
    vector::axpy(&mut dots, 1.0, &component_dots(&factors.v, r));
    let turn = symmetric_eigen(&dots, r)?.vectors;
    let turned = |side: &[f64]| -> Vec<f64> {
        let of = |row| turn.chunks_exact(r).map(move |to| vector::dot(to, row));
        side.chunks_exact(r).flat_map(of).collect()
    };
    Ok(Factors { u: turned(&factors.u), v: turned(&factors.v), ..factors.clone() })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lowrank::{Family, Settings};

    /// A Gaussian table seen whole, `5 a b^T + 2 c d^T`, whose best rank-1 part is in place.
    fn stalled(lambda: f64) -> (LowRank, Factors, Sparse) {
        let settings = Settings { rank: 2, lambda, ..Settings::new(6, 5, Family::Gaussian) };
        let model = LowRank::new(settings).unwrap();
        let unit = |n: usize, k: usize| -> Vec<f64> {
            // Rows of a Haar-like pair: orthogonal, of length one.
            let raw = |i: usize| if k == 0 || 2 * i < n { 1.0 } else { -1.0 };
            let mut all: Vec<f64> = (0..n).map(raw).collect();
            if k == 1 {
                let mean = all.iter().sum::<f64>() / n as f64;
                all.iter_mut().for_each(|a| *a -= mean);
            }
            let norm = vector::norm2_squared(&all).sqrt();
            vector::scale(&mut all, 1.0 / norm);
            all
        };
        let [a, c] = [unit(6, 0), unit(6, 1)];
        let [b, d] = [unit(5, 0), unit(5, 1)];
        let mut factors = Factors::zero(&model);
        put(&mut factors.u, 0, 2, &a, (5.0 - lambda).sqrt());
        put(&mut factors.v, 0, 2, &b, (5.0 - lambda).sqrt());
        let cell = |i: usize| {
            let (row, column) = (i / 5, i % 5);
            let value = 5.0 * a[row] * b[column] + 2.0 * c[row] * d[column];
            (i as u64, value - factors.theta(row, column), 1.0)
        };
        let cells = Sparse::with_copies(&model, (0..30).map(cell)).unwrap();
        (model, factors, cells)
    }

    /// Mixes the two components: the product stays, and neither of them looks zero.
    fn turn(factors: &mut Factors) {
        for row in factors.u.chunks_exact_mut(2).chain(factors.v.chunks_exact_mut(2)) {
            (row[0], row[1]) = (0.6 * row[0] - 0.8 * row[1], 0.8 * row[0] + 0.6 * row[1]);
        }
    }

    #[test]
    fn a_component_that_pays_is_reactivated_at_its_size() {
        let (model, mut factors, cells) = stalled(1.5);
        turn(&mut factors);
        reactivate(&model, &mut factors, &cells, 1.0).unwrap();
        // Soft-impute's: singular values 5 and 2 less 1.5, of a table that was seen whole.
        let found = separated(&factors).unwrap();
        let mut sizes = [0, 1].map(|k| size_of(&found, k, 2));
        sizes.sort_by(f64::total_cmp);
        assert!((sizes[0] - 0.5).abs() < 1e-9 && (sizes[1] - 3.5).abs() < 1e-9, "{sizes:?}");
    }

    #[test]
    fn the_largest_ridge_of_a_residual_is_its_largest_singular_value() {
        let (model, _, cells) = stalled(1.5);
        // 1.5 of the first component is left, and all of the second; their mean over four clients.
        assert!((model.lambda_max(&cells, 4.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn one_that_does_not_pay_stays_zero() {
        for lambda in [2.0, 2.5] {
            let (model, mut factors, cells) = stalled(lambda);
            turn(&mut factors);
            let before = factors.clone();
            reactivate(&model, &mut factors, &cells, 1.0).unwrap();
            assert_eq!(factors, before);
        }
        let (model, mut factors, cells) = stalled(1.5);
        // Something else is in the second place.
        put(&mut factors.u, 1, 2, &[1.0, -1.0, 0.0, 0.0, 1.0, -1.0], 0.5);
        put(&mut factors.v, 1, 2, &[1.0, -1.0, 0.0, 1.0, -1.0], 0.5);
        let before = factors.clone();
        reactivate(&model, &mut factors, &cells, 1.0).unwrap();
        assert_eq!(factors, before, "nothing is zero");
    }
}
