//! Eigenvalues of the Gram matrix `A^T A / n`, of one client or of a weighted mean over clients.
//!
//! Up to [`DENSE_MAX`] columns the matrix is formed and diagonalised. For more columns, restarted
//! Lanczos with full reorthogonalisation finds the largest eigenvalue from products alone.

use super::Examples;
use crate::Rows;
use whimbrel_core::{Key, Result, linalg, vector};

/// The widest Gram matrix that is diagonalised whole.
pub(super) const DENSE_MAX: usize = 512;
/// Lanczos vectors between restarts, and restarts.
const BASIS: usize = 40;
const RESTARTS: usize = 250;
/// The residual of an eigenvector, relative to its eigenvalue, at which Lanczos stops.
const ACCURACY: f64 = 1e-11;

/// Clients with their weights; all of one dimension.
type Clients<'a> = [(f64, &'a Examples)];

/// The largest eigenvalue of the mean Gram matrix; infinite where squares overflow.
pub(super) fn largest(clients: &Clients<'_>) -> f64 {
    let Some((_, first)) = clients.first() else { return 0.0 };
    let d = first.dimension();
    if d <= DENSE_MAX {
        let found = linalg::largest_eigenvalue(&gram(clients, d), d);
        return found.map_or(f64::INFINITY, |value| value.max(0.0));
    }
    lanczos(d, |v, out| gram_vector(clients, v, out))
}

/// The smallest eigenvalue of the mean Gram matrix; 0 where squares overflow.
pub(super) fn smallest(clients: &Clients<'_>) -> f64 {
    let Some((_, first)) = clients.first() else { return 0.0 };
    let d = first.dimension();
    if clients.iter().map(|(_, data)| data.rows()).sum::<usize>() < d {
        return 0.0; // the rank is at most the number of rows
    }
    if d <= DENSE_MAX {
        let found = linalg::symmetric_eigen(&gram(clients, d), d);
        return found.map_or(0.0, |eigen| eigen.values[0].max(0.0));
    }
    // The largest eigenvalue of `top I - G` is `top` minus the smallest of `G`.
    let top = largest(clients);
    if !top.is_finite() {
        return 0.0;
    }
    let gap = lanczos(d, |v, out| {
        gram_vector(clients, v, out);
        out.iter_mut().zip(v).for_each(|(out, v)| *out = top * v - *out);
    });
    (top - gap).max(0.0)
}

/// Unit vectors, one after the other, orthogonal to every row up to rounding.
pub(super) fn null_space(clients: &Clients<'_>) -> Result<Vec<f64>> {
    let Some((_, first)) = clients.first() else { return Ok(Vec::new()) };
    let d = first.dimension();
    let linalg::Eigen { values, mut vectors } = linalg::symmetric_eigen(&gram(clients, d), d)?;
    let rounding = d as f64 * f64::EPSILON * values[d - 1];
    vectors.truncate(d * values.partition_point(|value| *value <= rounding));
    Ok(vectors)
}

/// The Frobenius norm of the Gram matrix; infinite where squares overflow.
pub(super) fn frobenius(data: &Examples) -> f64 {
    let square = frobenius_squared(data);
    if square.is_nan() { f64::INFINITY } else { square.sqrt() }
}

fn frobenius_squared(data: &Examples) -> f64 {
    let d = data.dimension();
    if d <= 4 * DENSE_MAX {
        let lower = gram(&[(1.0, data)], d);
        let rows = (0..d).map(|i| {
            let (beside, diagonal) = (&lower[i * d..][..i], lower[i * d + i]);
            2.0 * vector::norm2_squared(beside) + diagonal * diagonal
        });
        return rows.sum();
    }
    // Column by column.
    let (mut unit, mut column) = (vec![0.0; d], vec![0.0; d]);
    let mut total = 0.0;
    for j in 0..d {
        unit[j] = 1.0;
        gram_vector(&[(1.0, data)], &unit, &mut column);
        unit[j] = 0.0;
        total += vector::norm2_squared(&column);
    }
    total
}

/// The lower triangle of `sum_c weight_c A_c^T A_c / n_c`.
fn gram(clients: &Clients<'_>, d: usize) -> Vec<f64> {
    let mut out = vec![0.0; d * d];
    for (weight, data) in clients {
        let share = weight / data.rows() as f64;
        data.add_outer(&mut out, |_, a| a.fill(share));
    }
    out
}

fn gram_vector(clients: &Clients<'_>, v: &[f64], out: &mut [f64]) {
    let mut one = vec![0.0; v.len()];
    out.fill(0.0);
    for (weight, data) in clients {
        data.transposed(v, Rows::All, &mut one, |_, _| ());
        vector::axpy(out, weight / data.rows() as f64, &one);
    }
}

/// The largest eigenvalue of a positive semi-definite operator on `d` coordinates.
fn lanczos(d: usize, mut apply: impl FnMut(&[f64], &mut [f64])) -> f64 {
    let mut stream = Key::root(0).stream();
    let mut start: Vec<f64> = (0..d).map(|_| stream.uniform() - 0.5).collect();
    let mut value = 0.0;
    for _ in 0..RESTARTS {
        let norm = vector::norm2_squared(&start).sqrt();
        if norm == 0.0 {
            return 0.0;
        }
        vector::scale(&mut start, 1.0 / norm);
        let mut basis = vec![std::mem::take(&mut start)];
        let (mut diagonal, mut beside) = (Vec::new(), Vec::new());
        let mut next = vec![0.0; d];
        loop {
            let last = &basis[basis.len() - 1];
            apply(last, &mut next);
            if !vector::all_finite(&next) {
                return f64::INFINITY;
            }
            diagonal.push(vector::dot(last, &next));
            // Twice, so that rounding leaves no trace of the basis in the new direction.
            for q in basis.iter().chain(&basis) {
                let along = vector::dot(q, &next);
                vector::axpy(&mut next, -along, q);
            }
            let norm = vector::norm2_squared(&next).sqrt();
            beside.push(norm);
            let scale = diagonal.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
            if norm <= f64::EPSILON * scale || basis.len() == BASIS.min(d) {
                break;
            }
            basis.push(next.iter().map(|x| x / norm).collect());
        }
        let k = basis.len();
        let mut projected = vec![0.0; k * k];
        for i in 0..k {
            projected[i * k + i] = diagonal[i];
            if i > 0 {
                projected[i * k + i - 1] = beside[i - 1];
            }
        }
        let Ok(eigen) = linalg::symmetric_eigen(&projected, k) else { return f64::INFINITY };
        value = eigen.values[k - 1];
        let vector = &eigen.vectors[(k - 1) * k..];
        // ||A v - value v|| of the Ritz vector v.
        if beside[k - 1] * vector[k - 1].abs() <= ACCURACY * value {
            break;
        }
        start = vec![0.0; d];
        for (q, c) in basis.iter().zip(vector) {
            vector::axpy(&mut start, *c, q);
        }
    }
    value
}
