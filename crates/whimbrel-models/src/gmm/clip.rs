//! Rows with a bounded influence on the statistic.
//!
//! In the frame of the complete-data Fisher information a row has the squared norm
//! `sum_k r_k^2/pi_k (1 + m_k + c_k)`, with `r_k` its responsibilities, `m_k` its squared Mahalanobis
//! distances and `c_k` from the second moments: `(m_k^2 - 2 m_k + d)/2` for full covariances,
//! `sum_j (z_j^2 - 1)^2/2` for diagonal ones, zero for known and tied ones.

use super::estep::{Scratch, log_scores};
use super::parameters::{Factors, GmmParameters};
use crate::lane::{LANES, Lane};

/// Scores a block and multiplies the responsibilities of each row by `min(1, bound/norm)`; the
/// statistic is linear in them. Returns the number of tiles.
pub(super) fn score_clipped(
    theta: &GmmParameters,
    bound: f64,
    block: &[Lane],
    scratch: &mut Scratch,
) -> usize {
    let tiles = log_scores(theta, block, scratch);
    let used = tiles * theta.components();
    let Scratch { scores, scores_before: logs, .. } = &mut *scratch;
    logs[..used].copy_from_slice(&scores[..used]);
    scratch.normalise(tiles, theta.components());
    let Scratch { scores, scores_before: logs, .. } = scratch;
    for tile in 0..tiles {
        let rows = &block[tile * theta.columns()..][..theta.columns()];
        let mut norms2 = Lane::ZERO;
        for k in 0..theta.components() {
            let (r, log) = (&scores[k * tiles + tile].0, &logs[k * tiles + tile].0);
            let fourth = fourth_powers(theta, k, rows);
            for lane in 0..LANES {
                let distance = (2.0 * (theta.constants[k] - log[lane])).max(0.0);
                let size = 1.0 + distance + second(theta, distance, fourth.0[lane]);
                norms2.0[lane] += r[lane] * r[lane] / theta.weights()[k] * size;
            }
        }
        for k in 0..theta.components() {
            for (r, norm2) in scores[k * tiles + tile].0.iter_mut().zip(norms2.0) {
                // A row whose norm overflows does not count.
                *r *= if norm2.is_finite() { (bound / norm2.sqrt()).min(1.0) } else { 0.0 };
            }
        }
    }
    tiles
}

/// `c_k`, from the squared Mahalanobis distance and, for diagonal covariances, `sum_j z_j^4`.
fn second(theta: &GmmParameters, distance: f64, fourth: f64) -> f64 {
    let columns = theta.columns() as f64;
    match theta.factors {
        Factors::Shared { .. } => 0.0,
        Factors::Diagonal { .. } => 0.5 * (fourth - 2.0 * distance + columns),
        Factors::Full { .. } => 0.5 * (distance * distance - 2.0 * distance + columns),
    }
}

/// `sum_j z_j^4` of each row for diagonal covariances, otherwise zero.
fn fourth_powers(theta: &GmmParameters, k: usize, rows: &[Lane]) -> Lane {
    let mut sums = Lane::ZERO;
    let Factors::Diagonal { scales } = &theta.factors else { return sums };
    let d = theta.columns();
    let of_component = theta.means()[k * d..].iter().zip(&scales[k * d..]);
    for (y, (mean, scale)) in rows.iter().zip(of_component) {
        for (sum, y) in sums.0.iter_mut().zip(y.0) {
            let square = ((y - mean) * scale).powi(2);
            *sum += square * square;
        }
    }
    sums
}
