//! Among all pairs with the same product `U V^T`, the one with the smallest norms.
//!
//! `(|U|^2 + |V|^2)/2` is least where `U^T U = V^T V`, and is then the nuclear norm of the product.
//! Rotating both by the same rotation changes neither; [`align`] uses that to keep factors close to
//! what they were, so that a memory of them on a downlink stays a good guess.

use super::Factors;
use whimbrel_core::linalg::{matmul, symmetric_eigen};
use whimbrel_core::{Key, Result, vector};

/// Components below this, relative to the largest, are left out of the rotation: in the squares it
/// is computed from they would be rounding.
const LIVE_MIN: f64 = 1e-6;
/// Neither factor of a component falls below this norm: from exactly zero none comes back when the
/// table later asks for it.
const FACTOR_MIN: f64 = 1e-7;

/// Rotates and scales the components; the product stays.
pub(super) fn balance(factors: &mut Factors) -> Result<()> {
    let r = factors.rank as usize;
    if r == 0 {
        return Ok(());
    }
    equalise(factors, r);
    let a = component_dots(&factors.u, r);
    let live = live(&a, r);
    if live.len() > 1 {
        let b = component_dots(&factors.v, r);
        rotate(factors, &live, &pick(&a, &live, r), &pick(&b, &live, r))?;
    }
    Ok(())
}

/// Components that are not about to vanish, by the squared norms on the diagonal.
fn live(dots: &[f64], r: usize) -> Vec<usize> {
    let largest = (0..r).map(|k| dots[k * r + k]).fold(0.0, f64::max);
    (0..r).filter(|k| dots[k * r + k] > LIVE_MIN * largest).collect()
}

/// Gives both factors of each component the same norm.
fn equalise(factors: &mut Factors, r: usize) {
    for k in 0..r {
        let norm = |a: &[f64]| a.iter().skip(k).step_by(r).map(|x| x * x).sum::<f64>().sqrt();
        let (u, v) = (norm(&factors.u), norm(&factors.v));
        if u == 0.0 || v == 0.0 {
            continue;
        }
        let common = (u * v).sqrt().max(FACTOR_MIN);
        factors.u.iter_mut().skip(k).step_by(r).for_each(|x| *x *= common / u);
        factors.v.iter_mut().skip(k).step_by(r).for_each(|x| *x *= common / v);
    }
}

/// With `U^T U = P a P^T`, `U P a^(-1/2)` is orthonormal; the right singular vectors of the rest,
/// `V P a^(1/2)`, diagonalise the product.
fn rotate(factors: &mut Factors, live: &[usize], a: &[f64], b: &[f64]) -> Result<()> {
    let n = live.len();
    let left = symmetric_eigen(a, n)?;
    // Row k of `root` is the k-th eigenvector times sqrt(a_k): root^T root = U^T U.
    let roots: Vec<f64> = left.values.iter().map(|v| v.max(0.0).sqrt()).collect();
    if roots[0] < 1e-7 * roots[n - 1] {
        // Two components are all but the same: as they are, they are as good as any.
        return Ok(());
    }
    let scaled = |power: fn(f64) -> f64| -> Vec<f64> {
        let rows = left.vectors.chunks_exact(n).zip(&roots);
        rows.flat_map(|(row, root)| row.iter().map(move |x| x * power(*root))).collect()
    };
    let (root, inverse) = (scaled(|x| x), scaled(|x| 1.0 / x));
    // root b root^T = (V P a^(1/2))^T (V P a^(1/2))
    let (mut half, mut core) = (vec![0.0; n * n], vec![0.0; n * n]);
    matmul(&mut half, &root, b, n, n, n);
    matmul(&mut core, &half, &transpose(&root, n), n, n, n);
    let right = symmetric_eigen(&core, n)?;
    if right.values[0] <= 1e-24 * right.values[n - 1] {
        return Ok(());
    }
    // Largest first: row k turns into sigma_k^(1/2) (or its inverse) times the k-th eigenvector.
    let (mut turn_u, mut turn_v) = (vec![0.0; n * n], vec![0.0; n * n]);
    for k in 0..n {
        let from = n - 1 - k;
        let size = right.values[from].sqrt().sqrt();
        for m in 0..n {
            turn_u[k * n + m] = right.vectors[from * n + m] * size;
            turn_v[k * n + m] = right.vectors[from * n + m] / size;
        }
    }
    let (mut on_u, mut on_v) = (vec![0.0; n * n], vec![0.0; n * n]);
    matmul(&mut on_u, &turn_u, &inverse, n, n, n);
    matmul(&mut on_v, &turn_v, &root, n, n, n);
    apply(&mut factors.u, factors.rank as usize, live, &on_u);
    apply(&mut factors.v, factors.rank as usize, live, &on_v);
    Ok(())
}

/// Replaces the live components of each row by `turn` times them.
fn apply(a: &mut [f64], r: usize, live: &[usize], turn: &[f64]) {
    let n = live.len();
    let mut old = vec![0.0; n];
    for row in a.chunks_exact_mut(r) {
        old.iter_mut().zip(live).for_each(|(old, k)| *old = row[*k]);
        for (k, turn) in live.iter().zip(turn.chunks_exact(n)) {
            row[*k] = turn.iter().zip(&old).map(|(t, x)| t * x).sum();
        }
    }
}

/// Rotates balanced factors as near to `old` as they come: the orthogonal Procrustes problem. With
/// the singular value decomposition `P S Q^T` of `U^T U_old + V^T V_old` the rotation is `P Q^T`.
/// Components that are about to vanish are left out.
pub(super) fn align(factors: &mut Factors, old: &Factors) -> Result<()> {
    let r = factors.rank as usize;
    let live = live(&component_dots(&factors.u, r), r);
    let n = live.len();
    if n == 0 {
        return Ok(());
    }
    let mut overlap = vec![0.0; n * n];
    for (new, old) in [(&factors.u, &old.u), (&factors.v, &old.v)] {
        for (new, old) in new.chunks_exact(r).zip(old.chunks_exact(r)) {
            for (i, row) in live.iter().zip(overlap.chunks_exact_mut(n)) {
                row.iter_mut().zip(&live).for_each(|(sum, j)| *sum += new[*i] * old[*j]);
            }
        }
    }
    // Largest first; what is too small to have a direction gets one from the rest.
    let right = symmetric_eigen(&component_dots(&overlap, n), n)?;
    let q: Vec<&[f64]> = right.vectors.chunks_exact(n).rev().collect();
    let image = |q: &&[f64]| overlap.chunks_exact(n).map(|row| vector::dot(row, q)).collect();
    let p = orthonormal(q.iter().map(image).collect::<Vec<Vec<f64>>>());
    // (P Q^T)^T, which acts on the components of a row.
    let mut turn = vec![0.0; n * n];
    for (p, q) in p.chunks_exact(n).zip(&q) {
        for (q, turn) in q.iter().zip(turn.chunks_exact_mut(n)) {
            vector::axpy(turn, *q, p);
        }
    }
    apply(&mut factors.u, r, &live, &turn);
    apply(&mut factors.v, r, &live, &turn);
    Ok(())
}

fn pick(a: &[f64], live: &[usize], r: usize) -> Vec<f64> {
    live.iter().flat_map(|i| live.iter().map(move |j| a[i * r + j])).collect()
}

fn transpose(a: &[f64], n: usize) -> Vec<f64> {
    (0..n * n).map(|at| a[at % n * n + at / n]).collect()
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

/// Gram-Schmidt, twice over; a vector with nothing of its own is replaced by a random one.
fn orthonormal(vectors: Vec<Vec<f64>>) -> Vec<f64> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lowrank::{Family, LowRank, Settings};

    fn factors(rank: usize) -> Factors {
        let model =
            LowRank::new(Settings { rank, ..Settings::new(30, 12, Family::Poisson) }).unwrap();
        let mut factors = Factors::start(&model, 4.0, Key::root(8));
        // Unequal sizes, and components that overlap.
        for u in factors.u.chunks_exact_mut(rank) {
            for k in 0..rank {
                u[k] *= 3.0 / (1.0 + k as f64);
                u[k] += 0.2 * u[0];
            }
        }
        factors
    }

    #[test]
    fn the_product_stays_and_the_grams_agree() {
        for rank in [1, 2, 5] {
            let before = factors(rank);
            let mut after = before.clone();
            balance(&mut after).unwrap();
            for row in 0..30 {
                for column in 0..12 {
                    let gap = before.theta(row, column) - after.theta(row, column);
                    assert!(gap.abs() < 1e-12, "{gap}");
                }
            }
            let (a, b) = (component_dots(&after.u, rank), component_dots(&after.v, rank));
            for i in 0..rank {
                for j in 0..rank {
                    let wanted = if i == j { b[i * rank + j] } else { 0.0 };
                    assert!((a[i * rank + j] - wanted).abs() < 1e-10 * a[0], "{a:?} {b:?}");
                }
            }
            let size = |f: &Factors| vector::norm2_squared(&f.u) + vector::norm2_squared(&f.v);
            assert!(size(&after) <= size(&before) * (1.0 + 1e-12));
        }
    }

    #[test]
    fn aligned_factors_undo_a_rotation() {
        for rank in [1, 2, 3] {
            let mut old = factors(rank);
            balance(&mut old).unwrap();
            let mut turned = old.clone();
            // Swapped and flipped, as a new decomposition may be.
            for row in turned.u.chunks_exact_mut(rank).chain(turned.v.chunks_exact_mut(rank)) {
                row.reverse();
                row[0] = -row[0];
            }
            align(&mut turned, &old).unwrap();
            for (a, b) in turned.u.iter().zip(&old.u) {
                assert!((a - b).abs() < 1e-12, "{a} {b}");
            }
        }
    }

    #[test]
    fn a_vanishing_component_keeps_its_direction() {
        let mut factors = factors(2);
        factors.u.iter_mut().skip(1).step_by(2).for_each(|u| *u *= 1e-40);
        balance(&mut factors).unwrap();
        let norm2 = factors.v.iter().skip(1).step_by(2).map(|v| v * v).sum::<f64>();
        assert!((norm2.sqrt() - FACTOR_MIN).abs() < 1e-12, "{norm2}");
    }
}
