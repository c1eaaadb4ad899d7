//! Rows with a bounded influence on the statistic.
//!
//! In the frame of the complete-data Fisher information a row has the squared norm
//! `sum_k r_k^2/pi_k (1 + m_k + c_k)`, with `r_k` its responsibilities, `m_k` its squared Mahalanobis
//! distances and `c_k` from the second moments: `(m_k^2 - 2 m_k + d)/2` for full covariances,
//! `sum_j (z_j^2 - 1)^2/2` for diagonal ones, zero for known and tied ones.

use super::estep::{Scratch, log_scores};
use super::frame::FisherFrame;
use super::parameters::{Factors, GmmParameters};
use crate::lane::{LANES, Lane};
use std::f64::consts::PI;
use whimbrel_core::linalg::packed_len;
use whimbrel_core::{Frame, vector};

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

/// Additions behind an entry of the mean: within a chunk of rows, over chunks, and the products.
const ROUNDINGS: f64 = 128.0;

/// A bound of the rounding errors of `rows` times the clipped mean less `state`, in each coordinate.
///
/// A row is `y = mu + L z`, and clipping bounds `r w`, `r w |z|` and `r w |z|^2` by
/// `t = 1 + sqrt(2 pi_k) bound`. With `v = |mu| + sigma` an entry of the mean is therefore at most
/// `t`, `t v_i` or `t v_i v_j`; its roundings are relative to this, and the frame's to the sums of the
/// absolute terms.
pub(super) fn rounding(
    theta: &GmmParameters,
    rows: usize,
    bound: f64,
    state: Option<&[f64]>,
) -> f64 {
    let (components, d) = (theta.components(), theta.columns());
    let second = match theta.factors {
        Factors::Shared { .. } => 0,
        Factors::Diagonal { .. } => d,
        Factors::Full { .. } => packed_len(d),
    };
    // Entries by their place within a component.
    let mut places: Vec<Vec<(usize, f64)>> = vec![Vec::new(); 1 + d + second];
    for k in 0..components {
        let (covariance, mean) = (theta.covariance(k), theta.mean(k));
        let size = |j: usize| mean[j].abs() + covariance[j * d + j].sqrt();
        let t = 1.0 + (2.0 * PI * theta.weights()[k]).sqrt() * bound;
        let pairs = (0..d).flat_map(|i| (0..=i).map(move |j| (i, j)));
        let pairs = pairs.filter(|(i, j)| second > d || i == j).take(second);
        let sizes = [1.0].into_iter().chain((0..d).map(size));
        let sizes = sizes.chain(pairs.map(|(i, j)| size(i) * size(j)));
        for (place, size) in sizes.enumerate() {
            let at = match place {
                0 => k,
                place if place <= d => components + k * d + place - 1,
                place => components * (1 + d) + k * second + place - 1 - d,
            };
            places[place].push((at, t * size + state.map_or(0.0, |state| state[at].abs())));
        }
    }
    let frame = FisherFrame::at(theta);
    let mut sums = vec![0.0; components * (1 + d + second)];
    for entries in places {
        let mut image = vec![0.0; sums.len()];
        entries.into_iter().for_each(|(at, size)| image[at] = size);
        frame.forward(&mut image);
        sums.iter_mut().zip(image).for_each(|(sum, x)| *sum += x.abs());
    }
    let roundings = (ROUNDINGS + 4.0 * d as f64) * f64::EPSILON / 2.0;
    rows as f64 * roundings * vector::largest(sums)
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
