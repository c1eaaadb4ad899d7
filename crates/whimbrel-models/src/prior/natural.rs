//! Natural gradient steps of a full Gaussian's parameters.

use super::{Prior, Shape};
use whimbrel_core::linalg::{self, packed_len};
use whimbrel_core::{Error, Result, math, vector};

impl Prior {
    /// The change of a full Gaussian's `beta` by a natural gradient step: `gradient` is that of the mean of
    /// `-ln p(z | beta)`, and no log-scale changes by more than `limit`.
    ///
    /// With `z = m + L w`, the mean moves to `m + step L mean(w)` and the covariance along the geodesic of
    /// its Fisher metric to `L exp(2 H) L^T`, `H = step (mean(w w^T) - I)/2`, whose eigenvalues are cut to
    /// `[-limit, limit]`. Both are those of a diagonal Gaussian where `H` is diagonal, and neither depends
    /// on the order of the coordinates. `mean(w w^T)` is read off the gradient: below the diagonal the
    /// derivative of `L (I + A)` in `A_kj` is `sum_(i >= k) L_ik dL_ij = -mean(w_k w_j)`.
    pub fn natural_moves(
        &self,
        beta: &[f64],
        gradient: &[f64],
        (step, limit): (f64, f64),
    ) -> Result<Vec<f64>> {
        assert_eq!(self.shape, Shape::Full, "of a full Gaussian");
        self.validate(beta)?;
        let d = self.len;
        let (mean, rows) = gradient.split_at(d);
        let factor = self.factor(beta);
        let mut moves = Vec::with_capacity(beta.len());
        // L L^T g
        let column = |j: usize| (j..d).map(move |i| i * d + j);
        let pulled: Vec<f64> =
            (0..d).map(|j| column(j).zip(&mean[j..]).map(|(at, g)| factor[at] * g).sum()).collect();
        moves.extend((0..d).map(|i| -step * vector::dot(&factor[i * d..][..d], &pulled)));
        // L^T times the derivatives in L, with the logarithmic diagonal left as it is.
        let mut half = vec![0.0; d * d];
        for k in 0..d {
            for j in 0..=k {
                let below = (k + 1..d).map(|i| factor[i * d + k] * rows[packed_len(i) + j]);
                let own = rows[packed_len(k) + j] * if j < k { factor[k * d + k] } else { 1.0 };
                half[k * d + j] = -0.5 * step * (own + below.sum::<f64>());
            }
        }
        let growth = exponential(&half, d, limit)?;
        for i in 0..d {
            for j in 0..i {
                let entries = (j..=i).map(|k| factor[i * d + k] * growth[k * d + j]);
                moves.push(entries.sum::<f64>() - factor[i * d + j]);
            }
            moves.push(math::ln(growth[i * d + i]));
        }
        Ok(moves)
    }

    /// `L`.
    pub(super) fn factor(&self, beta: &[f64]) -> Vec<f64> {
        let d = self.len;
        let mut factor = vec![0.0; d * d];
        for i in 0..d {
            let row = &beta[d + packed_len(i)..][..i + 1];
            factor[i * d..][..i].copy_from_slice(&row[..i]);
            factor[i * d + i] = math::exp(row[i]);
        }
        factor
    }
}

/// The lower Cholesky factor of `exp(2 H)`, the eigenvalues of `H` cut to `[-limit, limit]`.
fn exponential(half: &[f64], d: usize, limit: f64) -> Result<Vec<f64>> {
    let eigen = linalg::symmetric_eigen(half, d).map_err(|_| {
        Error::numerical("improper prior: the gradient of its scales is not finite")
    })?;
    let mut grown = vec![0.0; d * d];
    for (value, axis) in eigen.values.iter().zip(eigen.vectors.chunks_exact(d)) {
        let square = math::exp(2.0 * value.clamp(-limit, limit));
        for (row, v) in grown.chunks_exact_mut(d).zip(axis) {
            vector::axpy(row, square * v, axis);
        }
    }
    linalg::cholesky(&mut grown, d)?;
    Ok(grown)
}
