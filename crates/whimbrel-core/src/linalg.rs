//! Small dense algebra on flat row-major slices, for dimensions up to a few hundred.
//!
//! A `d x d` matrix is a slice of `d * d` numbers, entry `(i, j)` at `i * d + j`. A symmetric one
//! may be *packed*: its lower triangle row by row, `d (d + 1) / 2` numbers. Every loop has a fixed
//! order, so results do not depend on the instruction-set level. Slices of the wrong length are a
//! defect of the caller and panic.

use crate::vector::{axpy_inline, dot_inline};
use crate::{Error, Result, kernel, math};

/// A matrix that should be positive definite is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the matrix is not positive definite (pivot {pivot} of its Cholesky factor)")]
pub struct NotPositiveDefinite {
    /// The first row, from 0, whose pivot is not a positive finite number.
    pub pivot: usize,
}

impl From<NotPositiveDefinite> for Error {
    fn from(e: NotPositiveDefinite) -> Self {
        Error::numerical(e.to_string())
    }
}

kernel! {
    /// Replaces a symmetric matrix, of which only the lower triangle is read, by its lower
    /// Cholesky factor `L` (`a = L L^T`), zeros above the diagonal.
    pub fn cholesky(a: &mut [f64], d: usize) -> Result<(), NotPositiveDefinite> {
        check_square(a, d);
        for i in 0..d {
            let (above, rest) = a.split_at_mut(i * d);
            let row = &mut rest[..d];
            for j in 0..i {
                let l_j = &above[j * d..][..j + 1];
                row[j] = (row[j] - dot_inline(&row[..j], &l_j[..j])) / l_j[j];
            }
            let pivot = row[i] - dot_inline(&row[..i], &row[..i]);
            if !(pivot > 0.0 && pivot < f64::INFINITY) {
                return Err(NotPositiveDefinite { pivot: i });
            }
            row[i] = pivot.sqrt();
            row[i + 1..].fill(0.0);
        }
        Ok(())
    }
}

kernel! {
    /// Replaces a lower triangular matrix by its inverse, zeros above the diagonal.
    pub fn invert_lower(l: &mut [f64], d: usize) {
        check_square(l, d);
        let mut row = vec![0.0; d];
        for i in 0..d {
            let (inverse, rest) = l.split_at_mut(i * d);
            let l_i = &mut rest[..d];
            row.fill(0.0);
            // row i of the inverse = (e_i - sum_{k < i} l_ik (row k of the inverse)) / l_ii
            row[i] = 1.0;
            for k in 0..i {
                axpy_inline(&mut row[..=k], -l_i[k], &inverse[k * d..][..=k]);
            }
            let pivot = l_i[i];
            for (out, x) in l_i.iter_mut().zip(&row) {
                *out = x / pivot;
            }
        }
    }
}

kernel! {
    /// Solves `L x = b` in place for a lower triangular `L`.
    pub fn solve_lower(l: &[f64], d: usize, b: &mut [f64]) {
        check_square(l, d);
        for i in 0..d {
            let row = &l[i * d..][..i + 1];
            b[i] = (b[i] - dot_inline(&row[..i], &b[..i])) / row[i];
        }
    }
}

kernel! {
    /// Solves `L^T x = b` in place for a lower triangular `L`.
    pub fn solve_lower_transposed(l: &[f64], d: usize, b: &mut [f64]) {
        check_square(l, d);
        for i in (0..d).rev() {
            let row = &l[i * d..][..i + 1];
            b[i] /= row[i];
            let x = b[i];
            axpy_inline(&mut b[..i], -x, &row[..i]);
        }
    }
}

/// `ln det(L L^T)` from the lower Cholesky factor.
pub fn log_det_from_cholesky(l: &[f64], d: usize) -> f64 {
    check_square(l, d);
    2.0 * (0..d).map(|i| math::ln(l[i * d + i])).sum::<f64>()
}

kernel! {
    /// `out = A x`; `A` has `out.len()` rows and `x.len()` columns.
    pub fn matvec(out: &mut [f64], a: &[f64], x: &[f64]) {
        assert_eq!(a.len(), out.len() * x.len(), "matrix and vectors do not fit");
        for (i, out) in out.iter_mut().enumerate() {
            *out = dot_inline(&a[i * x.len()..][..x.len()], x);
        }
    }
}

kernel! {
    /// `out = A B` with `A` of `n x k` and `B` of `k x m`.
    pub fn matmul(out: &mut [f64], a: &[f64], b: &[f64], n: usize, k: usize, m: usize) {
        assert!(out.len() == n * m && a.len() == n * k && b.len() == k * m, "sizes do not fit");
        out.fill(0.0);
        for i in 0..n {
            let row = &mut out[i * m..][..m];
            for j in 0..k {
                axpy_inline(row, a[i * k + j], &b[j * m..][..m]);
            }
        }
    }
}

/// Length of a packed symmetric matrix.
pub const fn packed_len(d: usize) -> usize {
    d * (d + 1) / 2
}

/// The index of entry `(i, j)`, or `(j, i)`, of a packed symmetric matrix.
pub const fn packed_index(i: usize, j: usize) -> usize {
    if i >= j { i * (i + 1) / 2 + j } else { j * (j + 1) / 2 + i }
}

/// The lower triangle, row by row.
pub fn pack(a: &[f64], d: usize) -> Vec<f64> {
    check_square(a, d);
    (0..d).flat_map(|i| &a[i * d..][..i + 1]).copied().collect()
}

/// The full symmetric matrix of a packed one.
pub fn unpack(packed: &[f64], d: usize) -> Vec<f64> {
    assert_eq!(packed.len(), packed_len(d), "a packed {d} x {d} matrix has another length");
    let mut a = vec![0.0; d * d];
    for i in 0..d {
        for j in 0..=i {
            a[i * d + j] = packed[packed_index(i, j)];
            a[j * d + i] = packed[packed_index(i, j)];
        }
    }
    a
}

/// Eigenvalues in ascending order and eigenvectors of a symmetric matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Eigen {
    /// Ascending.
    pub values: Vec<f64>,
    /// Row `k` is the unit eigenvector of `values[k]`.
    pub vectors: Vec<f64>,
}

/// Eigenvalues and eigenvectors of a symmetric matrix, of which only the lower triangle is read:
/// Householder reduction to a tridiagonal matrix, then implicit QR steps with Wilkinson's shift
/// (Golub & Van Loan, *Matrix Computations*, 8.3). Refuses numbers that are not finite.
pub fn symmetric_eigen(a: &[f64], d: usize) -> Result<Eigen> {
    check_square(a, d);
    let mut work = unpack(&pack(a, d), d);
    let largest = crate::vector::norm_inf(&work);
    if !largest.is_finite() {
        return Err(Error::numerical("eigenvalues of a matrix with a value that is not finite"));
    }
    // A power of two near the largest entry: squares neither overflow nor vanish, and scaling is
    // exact.
    let unit = f64::from_bits(largest.to_bits() & (0x7FF << 52)).clamp(1e-300, 1e300);
    let unit = f64::from_bits(unit.to_bits() & (0x7FF << 52));
    crate::vector::scale(&mut work, 1.0 / unit);

    let mut t = tridiagonalise(work, d);
    if !diagonalise(&mut t, d) {
        return Err(Error::numerical(format!(
            "the eigenvalues of a {d} x {d} matrix did not converge"
        )));
    }
    let mut order: Vec<usize> = (0..d).collect();
    order.sort_by(|&i, &j| t.diagonal[i].total_cmp(&t.diagonal[j]));
    Ok(Eigen {
        values: order.iter().map(|&k| t.diagonal[k] * unit).collect(),
        vectors: order.iter().flat_map(|&k| &t.basis[k * d..][..d]).copied().collect(),
    })
}

/// The largest eigenvalue of a symmetric matrix.
pub fn largest_eigenvalue(a: &[f64], d: usize) -> Result<f64> {
    let values = symmetric_eigen(a, d)?.values;
    values
        .last()
        .copied()
        .ok_or_else(|| Error::internal("the largest eigenvalue of an empty matrix"))
}

/// Raises every eigenvalue of a symmetric matrix to at least `floor` and returns the number raised.
/// A matrix without such eigenvalues keeps its bits.
pub fn floor_eigenvalues(a: &mut [f64], d: usize, floor: f64) -> Result<usize> {
    check_square(a, d);
    // a - floor I has a Cholesky factor only if no eigenvalue is below the floor: far cheaper to
    // find out.
    let mut shifted = a.to_vec();
    for i in 0..d {
        shifted[i * d + i] -= floor;
    }
    if cholesky(&mut shifted, d).is_ok() {
        return Ok(0);
    }
    let Eigen { values, vectors } = symmetric_eigen(a, d)?;
    let raised = values.iter().filter(|v| **v < floor).count();
    // a + sum_k (floor - value_k) v_k v_k^T over those below: the rest stays as it was.
    for (value, v) in values[..raised].iter().zip(vectors.chunks_exact(d)) {
        for i in 0..d {
            for j in 0..d {
                a[i * d + j] += (floor - value) * (v[i] * v[j]);
            }
        }
    }
    Ok(raised)
}

/// `basis a basis^T` is tridiagonal; the rows of `basis` are orthonormal.
struct Tridiagonal {
    diagonal: Vec<f64>,
    /// `beside[i]` is entry `(i, i + 1)`.
    beside: Vec<f64>,
    basis: Vec<f64>,
}

/// For a singular matrix with entries of about one, the reduction leaves rounding errors so small
/// that their squares underflow. Dropping a column of this size moves no eigenvalue by more.
const NEGLIGIBLE: f64 = f64::EPSILON * f64::EPSILON;

/// Householder reflections `H_k = I - beta v v^T`, one per column.
fn tridiagonalise(mut a: Vec<f64>, d: usize) -> Tridiagonal {
    let mut beside = vec![0.0; d.saturating_sub(1)];
    let mut reflections: Vec<(f64, Vec<f64>)> = Vec::new();
    for k in 0..d.saturating_sub(1) {
        let mut v: Vec<f64> = (k + 1..d).map(|i| a[i * d + k]).collect();
        let norm = dot_inline(&v, &v).sqrt();
        let alpha = if v[0] > 0.0 { -norm } else { norm };
        if dot_inline(&v[1..], &v[1..]) < NEGLIGIBLE * NEGLIGIBLE {
            beside[k] = v[0];
            reflections.push((0.0, v));
            continue;
        }
        beside[k] = alpha;
        v[0] -= alpha;
        let beta = 2.0 / dot_inline(&v, &v);
        reflect_both_sides(&mut a, d, k + 1, &v, beta);
        reflections.push((beta, v));
    }
    let mut basis = identity(d);
    for (k, (beta, v)) in reflections.iter().enumerate().rev() {
        if *beta != 0.0 {
            reflect_rows(&mut basis, d, k + 1, v, *beta);
        }
    }
    Tridiagonal { diagonal: (0..d).map(|i| a[i * d + i]).collect(), beside, basis }
}

kernel! {
    /// `A <- H A H` on the rows and columns from `first` on, as `A - v w^T - w v^T` with
    /// `p = beta A v`, `w = p - (beta/2) <p, v> v`.
    fn reflect_both_sides(a: &mut [f64], d: usize, first: usize, v: &[f64], beta: f64) {
        let mut w: Vec<f64> =
            (first..d).map(|i| beta * dot_inline(&a[i * d + first..(i + 1) * d], v)).collect();
        let half = 0.5 * beta * dot_inline(&w, v);
        axpy_inline(&mut w, -half, v);
        for i in first..d {
            let row = &mut a[i * d + first..(i + 1) * d];
            let (v_i, w_i) = (v[i - first], w[i - first]);
            for ((x, v), w) in row.iter_mut().zip(v).zip(&w) {
                *x -= v_i * w + w_i * v;
            }
        }
    }
}

kernel! {
    /// `R <- R H` on the rows and columns from `first` on.
    fn reflect_rows(r: &mut [f64], d: usize, first: usize, v: &[f64], beta: f64) {
        for row in r.chunks_exact_mut(d).skip(first) {
            let along = beta * dot_inline(&row[first..], v);
            axpy_inline(&mut row[first..], -along, v);
        }
    }
}

/// Implicit QR steps until the matrix is diagonal; `false` after too many steps.
fn diagonalise(t: &mut Tridiagonal, d: usize) -> bool {
    let negligible = |t: &Tridiagonal, i: usize| {
        t.beside[i].abs() <= f64::EPSILON * (t.diagonal[i].abs() + t.diagonal[i + 1].abs())
            || t.beside[i].abs() < f64::MIN_POSITIVE
    };
    let mut last = d.saturating_sub(1);
    for _ in 0..=60 * d {
        while last > 0 && negligible(t, last - 1) {
            t.beside[last - 1] = 0.0;
            last -= 1;
        }
        if last == 0 {
            return true;
        }
        let mut first = last - 1;
        while first > 0 && !negligible(t, first - 1) {
            first -= 1;
        }
        if first > 0 {
            t.beside[first - 1] = 0.0;
        }
        qr_step(t, d, first, last);
    }
    false
}

/// One shifted QR step on the unreduced block `first..=last`.
fn qr_step(t: &mut Tridiagonal, d: usize, first: usize, last: usize) {
    // The eigenvalue of the last 2 x 2 block nearest to its last entry.
    let half_gap = 0.5 * (t.diagonal[last - 1] - t.diagonal[last]);
    let b = t.beside[last - 1];
    let root = (half_gap * half_gap + b * b).sqrt();
    let shift = t.diagonal[last] - b * (b / (half_gap + root.copysign(half_gap)));

    let (mut x, mut bulge) = (t.diagonal[first] - shift, t.beside[first]);
    for k in first..last {
        // c and s turn (x, bulge) into (norm, 0).
        let norm = (x * x + bulge * bulge).sqrt();
        let (c, s) = if norm == 0.0 { (1.0, 0.0) } else { (x / norm, bulge / norm) };
        if k > first {
            t.beside[k - 1] = norm;
        }
        let (a, b, e) = (t.diagonal[k], t.beside[k], t.diagonal[k + 1]);
        t.diagonal[k] = c * c * a + 2.0 * c * s * b + s * s * e;
        t.diagonal[k + 1] = s * s * a - 2.0 * c * s * b + c * c * e;
        t.beside[k] = c * s * (e - a) + (c * c - s * s) * b;
        if k + 1 < last {
            x = t.beside[k];
            bulge = s * t.beside[k + 1];
            t.beside[k + 1] *= c;
        }
        let (upper, lower) = t.basis[k * d..(k + 2) * d].split_at_mut(d);
        rotate(upper, lower, c, s);
    }
}

kernel! {
    fn rotate(upper: &mut [f64], lower: &mut [f64], c: f64, s: f64) {
        for (u, l) in upper.iter_mut().zip(lower) {
            (*u, *l) = (c * *u + s * *l, c * *l - s * *u);
        }
    }
}

fn identity(d: usize) -> Vec<f64> {
    (0..d * d).map(|i| if i / d == i % d { 1.0 } else { 0.0 }).collect()
}

#[inline(always)]
fn check_square(a: &[f64], d: usize) {
    assert_eq!(a.len(), d * d, "not a {d} x {d} matrix");
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Key;
    use crate::vector::norm_inf;

    const SIZES: [usize; 7] = [1, 2, 3, 7, 20, 33, 120];

    fn random(tag: u64, n: usize) -> Vec<f64> {
        let mut stream = Key::root(21).child(tag).stream();
        (0..n).map(|_| 2.0 * stream.uniform() - 1.0).collect()
    }

    fn transpose(a: &[f64], d: usize) -> Vec<f64> {
        (0..d * d).map(|i| a[(i % d) * d + i / d]).collect()
    }

    fn product(a: &[f64], b: &[f64], d: usize) -> Vec<f64> {
        let mut out = vec![0.0; d * d];
        matmul(&mut out, a, b, d, d, d);
        out
    }

    fn symmetric(d: usize) -> Vec<f64> {
        unpack(&random(d as u64, packed_len(d)), d)
    }

    /// `B B^T + I / 2`: eigenvalues from 1/2 up to about 2d.
    fn positive(d: usize) -> Vec<f64> {
        let b = random(100 + d as u64, d * d);
        let mut a = product(&b, &transpose(&b, d), d);
        (0..d).for_each(|i| a[i * d + i] += 0.5);
        a
    }

    fn distance(a: &[f64], b: &[f64]) -> f64 {
        assert_eq!(a.len(), b.len());
        norm_inf(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>())
    }

    /// The bits of all functions on some matrices, for the test of all levels.
    pub(crate) fn fingerprint() -> Vec<u64> {
        let mut all = Vec::new();
        for d in [1, 3, 20, 33] {
            let mut l = positive(d);
            cholesky(&mut l, d).unwrap();
            let mut b = random(9, d);
            solve_lower(&l, d, &mut b);
            solve_lower_transposed(&l, d, &mut b);
            let mut image = vec![0.0; d];
            matvec(&mut image, &l, &b);
            invert_lower(&mut l, d);
            let eigen = symmetric_eigen(&symmetric(d), d).unwrap();
            for v in [l, b, image, eigen.values, eigen.vectors] {
                all.extend(v.into_iter().map(f64::to_bits));
            }
        }
        all
    }

    #[test]
    fn the_cholesky_factor_gives_the_matrix_back() {
        for d in SIZES {
            let a = positive(d);
            let mut l = a.clone();
            cholesky(&mut l, d).unwrap();
            assert!((0..d).all(|i| l[i * d + i + 1..(i + 1) * d].iter().all(|x| *x == 0.0)));
            let again = product(&l, &transpose(&l, d), d);
            // |L L^T - A| <= (d + 1) eps |L| |L^T| entry by entry (Higham, Theorem 10.3), whose
            // diagonal is A's own; the product rounds as much again.
            let tolerance = 2.0 * (d as f64 + 1.0) * f64::EPSILON * norm_inf(&a);
            assert!(distance(&again, &a) <= tolerance, "d = {d}");
        }
    }

    #[test]
    fn triangular_solves_and_the_inverse_agree_with_the_matrix() {
        for d in SIZES {
            let a = positive(d);
            let mut l = a.clone();
            cholesky(&mut l, d).unwrap();
            let b = random(7, d);
            let mut x = b.clone();
            solve_lower(&l, d, &mut x);
            solve_lower_transposed(&l, d, &mut x);
            let mut again = vec![0.0; d];
            matvec(&mut again, &a, &x);
            // Backward error of two triangular solves and the factorisation: 4 d eps |A| |x|,
            // with |A|_inf <= d max|a|.
            let d_eps = d as f64 * f64::EPSILON;
            let tolerance = 4.0 * d_eps * (d as f64 * norm_inf(&a) * norm_inf(&x) + 1.0);
            assert!(distance(&again, &b) <= tolerance, "d = {d}");

            let mut inverse = l.clone();
            invert_lower(&mut inverse, d);
            // |X L - I| <= d eps |X| |L|, entries of the right side at most d max|X| max|L|.
            let tolerance = d_eps * (d as f64 * norm_inf(&inverse) * norm_inf(&l));
            assert!(distance(&product(&inverse, &l, d), &identity(d)) <= tolerance, "d = {d}");
        }
    }

    #[test]
    fn eigenvectors_diagonalise_and_are_orthonormal() {
        for d in SIZES {
            let a = symmetric(d);
            let Eigen { values, vectors } = symmetric_eigen(&a, d).unwrap();
            assert!(values.is_sorted());
            let tolerance = 10.0 * d as f64 * f64::EPSILON;
            let gram = product(&vectors, &transpose(&vectors, d), d);
            assert!(distance(&gram, &identity(d)) <= tolerance, "d = {d}: not orthonormal");
            let norm = values.iter().fold(0.0_f64, |m, v| m.max(v.abs()));
            let images = product(&vectors, &a, d);
            for k in 0..d {
                let stretched: Vec<f64> =
                    vectors[k * d..][..d].iter().map(|v| v * values[k]).collect();
                let residual = distance(&images[k * d..][..d], &stretched);
                assert!(residual <= tolerance * norm, "d = {d}, k = {k}: {residual:e}");
            }
            assert_eq!(largest_eigenvalue(&a, d).unwrap(), values[d - 1]);
        }
    }

    /// Gram matrices of few rows of categories and a constant: most of their spectrum is zero up to
    /// rounding errors.
    #[test]
    fn singular_matrices_of_categories_have_eigenvalues() {
        let (rows, groups, levels) = (15, 14, 20);
        let d = groups * levels + 1;
        for seed in 0..20 {
            let mut stream = Key::root(31).child(seed).stream();
            let mut x = vec![0.0; rows * d];
            for row in x.chunks_exact_mut(d) {
                row[d - 1] = 1.0;
                (0..groups)
                    .for_each(|g| row[g * levels + stream.below(levels as u64) as usize] = 1.0);
            }
            let mut gram = vec![0.0; d * d];
            for row in x.chunks_exact(d) {
                for (i, a) in row.iter().enumerate() {
                    row.iter()
                        .enumerate()
                        .for_each(|(j, b)| gram[i * d + j] += a * b / rows as f64);
                }
            }
            let values = symmetric_eigen(&gram, d).unwrap().values;
            let trace: f64 = (0..d).map(|i| gram[i * d + i]).sum();
            let sum: f64 = values.iter().sum();
            // d eigenvalues, each with a backward error of d rounding errors of the largest.
            let error = (d * d) as f64 * f64::EPSILON * values[d - 1];
            assert!((sum - trace).abs() <= error, "seed {seed}: {sum} {trace}");
            assert!(values[..d - rows].iter().all(|value| value.abs() <= error), "seed {seed}");
        }
    }

    #[test]
    fn eigenvalues_known_in_closed_form() {
        // Second differences: 2 - 2 cos(k pi / (d + 1)), here for d = 5, where the cosines are
        // sqrt(3)/2, 1/2, 0.
        let d = 5;
        let mut a = vec![0.0; d * d];
        for i in 0..d {
            a[i * d + i] = 2.0;
            if i > 0 {
                a[i * d + i - 1] = -1.0;
            }
        }
        let root = 3f64.sqrt();
        for unit in [1.0, 1e-290, 1e290] {
            let scaled: Vec<f64> = a.iter().map(|x| x * unit).collect();
            let values = symmetric_eigen(&scaled, d).unwrap().values;
            let values: Vec<f64> = values.iter().map(|value| value / unit).collect();
            let right = [2.0 - root, 1.0, 2.0, 3.0, 2.0 + root];
            assert!(distance(&values, &right) <= 20.0 * f64::EPSILON, "{values:?} {right:?}");
        }
        assert_eq!(symmetric_eigen(&[0.0; 9], 3).unwrap().values, [0.0; 3]);
        assert_eq!(symmetric_eigen(&identity(4), 4).unwrap().values, [1.0; 4]);
        assert!(symmetric_eigen(&[], 0).unwrap().values.is_empty());
        let subnormal = symmetric_eigen(&[5e-324], 1).unwrap().values;
        assert_eq!(subnormal, [5e-324]);
    }

    #[test]
    fn flooring_raises_what_is_below_and_nothing_else() {
        for d in SIZES {
            let a = symmetric(d);
            let before = symmetric_eigen(&a, d).unwrap().values;
            let floor = 0.1;
            let mut floored = a.clone();
            let raised = floor_eigenvalues(&mut floored, d, floor).unwrap();
            assert_eq!(raised, before.iter().filter(|v| **v < floor).count());
            let after = symmetric_eigen(&floored, d).unwrap().values;
            let norm = before.iter().fold(1.0_f64, |m, v| m.max(v.abs()));
            let right: Vec<f64> = before.iter().map(|value| value.max(floor)).collect();
            let error = distance(&after, &right);
            assert!(error <= 40.0 * d as f64 * f64::EPSILON * norm, "d = {d}: {error:e}");
            let mut fine = positive(d);
            let same = fine.clone();
            assert_eq!(floor_eigenvalues(&mut fine, d, 1e-3), Ok(0));
            assert_eq!(fine, same);
        }
    }

    #[test]
    fn what_is_not_positive_definite_or_not_finite_is_refused() {
        let mut a = [1.0, 2.0, 2.0, 1.0];
        assert_eq!(cholesky(&mut a, 2), Err(NotPositiveDefinite { pivot: 1 }));
        assert_eq!(cholesky(&mut [f64::NAN], 1), Err(NotPositiveDefinite { pivot: 0 }));
        assert_eq!(cholesky(&mut [f64::INFINITY], 1), Err(NotPositiveDefinite { pivot: 0 }));
        assert!(matches!(symmetric_eigen(&[f64::NAN], 1), Err(Error::Numerical { .. })));
        let mut bad = [1.0, 0.0, f64::INFINITY, 1.0];
        assert!(matches!(floor_eigenvalues(&mut bad, 2, 0.1), Err(Error::Numerical { .. })));
    }

    #[test]
    fn packing_and_the_log_determinant() {
        let a = symmetric(6);
        let packed = pack(&a, 6);
        assert_eq!(unpack(&packed, 6), a);
        assert_eq!(packed[packed_index(2, 4)], a[4 * 6 + 2]);
        assert_eq!(packed[packed_index(4, 2)], a[2 * 6 + 4]);
        let mut diagonal = vec![4.0, 0.0, 0.0, 9.0];
        cholesky(&mut diagonal, 2).unwrap();
        assert!((log_det_from_cholesky(&diagonal, 2) - math::ln(36.0)).abs() < 1e-15);
    }
}
