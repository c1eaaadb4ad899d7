//! Inverse Cholesky factors of small covariances.
//!
//! Clients with few rows spend most of a round on these. Elimination on whole lanes, factorising and
//! inverting at once, is about three times faster at twenty columns than the two functions of
//! `whimbrel_core::linalg`.

use crate::lane::{LANES, Lane, one_lane_at_a_time};
use whimbrel_core::linalg::{invert_lower, packed_index, packed_len};
use whimbrel_core::{kernel, math};

/// The inverse Cholesky factor of a covariance `Sigma = L L'`, for the E-step.
#[derive(Clone, Debug)]
pub(super) struct InverseFactor {
    /// The lower triangle of `L^-1`, row after row.
    pub lower: Vec<f64>,
    /// `(1/2) ln det Sigma`.
    pub half_log_det: f64,
}

impl InverseFactor {
    /// `Sigma`, row-major.
    pub(super) fn covariance(&self, d: usize) -> Vec<f64> {
        let mut l = vec![0.0; d * d];
        for i in 0..d {
            let row = &self.lower[packed_index(i, 0)..=packed_index(i, i)];
            l[i * d..=i * d + i].copy_from_slice(row);
        }
        invert_lower(&mut l, d);
        let mut sigma = vec![0.0; d * d];
        for i in 0..d {
            for j in 0..=i {
                let (a, b) = (&l[i * d..=i * d + j], &l[j * d..=j * d + j]);
                let dot: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                sigma[i * d + j] = dot;
                sigma[j * d + i] = dot;
            }
        }
        sigma
    }
}

/// Factorises a covariance given by its lower triangle; the error is a message.
pub(super) fn inverse_factor(packed: &[f64], d: usize) -> Result<InverseFactor, String> {
    let mut pivots = vec![0.0; d];
    let rows = eliminate_shifted(packed, d, 0.0, &mut pivots)
        .ok_or("the covariance is not positive definite")?;
    let width = rows.len() / d;
    let mut lower = Vec::with_capacity(packed_len(d));
    for (i, row) in rows.chunks_exact(width).enumerate() {
        let inverse = row[width / 2..].iter().flat_map(|lane| lane.0);
        lower.extend(inverse.take(i + 1));
    }
    if lower.iter().any(|w| !w.is_finite()) {
        return Err("the covariance is too close to singular".to_string());
    }
    math::ln_slice(&mut pivots);
    Ok(InverseFactor { lower, half_log_det: pivots.iter().sum() })
}

/// Whether every eigenvalue of a symmetric matrix, given by its lower triangle, is above `floor`.
pub(super) fn definite_above(packed: &[f64], d: usize, floor: f64) -> bool {
    eliminate_shifted(packed, d, floor, &mut vec![0.0; d]).is_some()
}

/// Eliminates on `[Sigma - floor I | I]`: rows of `[L' | L^-1]`, each half padded to whole lanes.
fn eliminate_shifted(
    packed: &[f64],
    d: usize,
    floor: f64,
    pivots: &mut [f64],
) -> Option<Vec<Lane>> {
    let half = d.div_ceil(LANES);
    let mut rows = vec![Lane::ZERO; d * 2 * half];
    let mut rest = packed;
    for i in 0..d {
        let (row, next) = rest.split_at(i + 1);
        rest = next;
        for (j, x) in row.iter().enumerate() {
            rows[j * 2 * half + i / LANES].0[i % LANES] = *x;
        }
        rows[i * 2 * half + i / LANES].0[i % LANES] -= floor;
        rows[i * 2 * half + half + i / LANES].0[i % LANES] = 1.0;
    }
    eliminate(&mut rows, d, pivots).then_some(rows)
}

kernel! {
    /// Row by row: divide by the root of the pivot, then take from each later row its multiple.
    /// The left half holds the upper triangle; false at a pivot that is not positive and finite.
    fn eliminate(rows: &mut [Lane], d: usize, pivots: &mut [f64]) -> bool {
        let width = rows.len() / d;
        let half = width / 2;
        for j in 0..d {
            let (done, later) = rows[j * width..].split_at_mut(width);
            let pivot = done[j / LANES].0[j % LANES];
            if !(pivot > 0.0 && pivot < f64::INFINITY) {
                return false;
            }
            pivots[j] = pivot.sqrt();
            let share = Lane::splat(1.0 / pivots[j]);
            // Entries left of the pivot's lane and right of the inverse's diagonal are zero.
            let (from, to) = (j / LANES, half + j / LANES + 1);
            for x in &mut done[from..to] {
                *x = *x * share;
                one_lane_at_a_time();
            }
            for (n, row) in later.chunks_exact_mut(width).enumerate() {
                let k = j + 1 + n;
                let factor = Lane::splat(done[k / LANES].0[k % LANES]);
                for (x, y) in row[from..to].iter_mut().zip(&done[from..to]) {
                    *x = *x - factor * *y;
                    one_lane_at_a_time();
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::linalg::{cholesky, invert_lower, log_det_from_cholesky, pack, unpack};

    #[test]
    fn agrees_with_the_plain_factor() {
        for d in [1, 2, 3, 7, 8, 9, 16, 20, 25] {
            let packed: Vec<f64> = (0..d)
                .flat_map(|i| {
                    (0..=i).map(move |j| if i == j { 2.0 } else { 1.0 / (1 + i + j) as f64 })
                })
                .collect();
            let mut plain = unpack(&packed, d);
            cholesky(&mut plain, d).unwrap();
            let log_det = log_det_from_cholesky(&plain, d);
            invert_lower(&mut plain, d);
            let found = inverse_factor(&packed, d).unwrap();
            assert!((2.0 * found.half_log_det - log_det).abs() < 1e-12);
            assert_eq!(found.lower.len(), packed_len(d));
            for (a, b) in found.lower.iter().zip(pack(&plain, d)) {
                assert!((a - b).abs() < 1e-14, "{a} {b}");
            }
            assert!(definite_above(&packed, d, 0.5));
            assert!(!definite_above(&packed, d, 3.5));
        }
        assert!(inverse_factor(&[1.0, 2.0, 1.0], 2).is_err());
        assert!(inverse_factor(&[f64::NAN], 1).is_err());
        assert!(inverse_factor(&[f64::INFINITY], 1).is_err());
    }
}
