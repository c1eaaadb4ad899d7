//! The range of steps along which a statistic's moments remain those of a distribution.
//!
//! `M_k(S) = [[s1, s2'], [s2, s3 + reg s1 I]]` is positive definite inside the domain of `T`; along a
//! direction `H` it stays so as long as `1 + gamma lambda > 0` for every eigenvalue `lambda` of
//! `M_k(H)` relative to `M_k(S)`. Diagonal covariances have a 2 x 2 matrix per column, spherical ones
//! `[[s1, s2'], [s2, tr(s3 + reg s1 I) I]]`; a tied covariance
//! has `[[diag s1, s2], [s2', E[y y'] + reg I]]` with moments about the pooled mean, whose last block is
//! constant; a known one has `s1` alone.

use super::{Covariance, Gmm};
use crate::{LatentModel, StepRange};
use whimbrel_core::Result;
use whimbrel_core::linalg::{
    cholesky, invert_lower, matmul, packed_index, packed_len, symmetric_eigen,
};

impl Gmm {
    pub(super) fn step_range_of(
        &self,
        statistic: &[f64],
        direction: &[f64],
        moments: &[f64],
    ) -> Result<StepRange> {
        debug_assert_eq!(statistic.len(), self.statistic_len());
        let mut reach = StepRange::default();
        let reg = self.regularisers(statistic);
        match self.settings().covariance {
            Covariance::Known(_) => {
                let components = self.components();
                reach = StepRange::of_weights(&statistic[..components], &direction[..components]);
            }
            Covariance::Tied => {
                let size = self.components() + self.columns();
                let (mean, second) = moments.split_at(self.columns());
                let at = self.tied_matrix(statistic, mean, Some(second));
                match relative_range(at, &self.tied_matrix(direction, mean, None), size)? {
                    Some(range) => range.into_iter().for_each(|x| reach.include(x)),
                    None => reach
                        .outside
                        .extend((0..self.components()).filter(|k| statistic[*k] <= 0.0)),
                }
            }
            Covariance::Diagonal => {
                for k in 0..self.components() {
                    let ranges = (0..self.columns())
                        .map(|j| {
                            let at = self.column_matrix(statistic, k, j, reg[j]);
                            let along = self.column_matrix(direction, k, j, reg[j]);
                            relative_range(at.to_vec(), &along, 2)
                        })
                        .collect::<Result<Option<Vec<_>>>>()?;
                    reach.add(k, ranges.map(|all| all.concat()));
                }
            }
            Covariance::Spherical | Covariance::Full => {
                let size = self.columns() + 1;
                let matrix = |s: &[f64], k: usize| match self.settings().covariance {
                    Covariance::Full => self.full_matrix(s, k, &reg),
                    _ => self.spherical_matrix(s, k, &reg),
                };
                for k in 0..self.components() {
                    let range = relative_range(matrix(statistic, k), &matrix(direction, k), size)?;
                    reach.add(k, range.map(|range| range.to_vec()));
                }
            }
        }
        Ok(reach)
    }

    /// `M_k` of a statistic with second moments, row-major.
    fn full_matrix(&self, s: &[f64], k: usize, reg: &[f64]) -> Vec<f64> {
        let (components, d) = (self.components(), self.columns());
        let (s1, s2) = (s[k], &s[components + k * d..][..d]);
        let s3 = &s[components * (1 + d) + k * packed_len(d)..][..packed_len(d)];
        let size = d + 1;
        let mut m = vec![0.0; size * size];
        m[0] = s1;
        for i in 0..d {
            m[(i + 1) * size] = s2[i];
            m[i + 1] = s2[i];
            for j in 0..d {
                m[(i + 1) * size + j + 1] = s3[packed_index(i, j)];
            }
            m[(i + 1) * (size + 1)] += reg[i] * s1;
        }
        m
    }

    /// The matrix of a spherical covariance.
    fn spherical_matrix(&self, s: &[f64], k: usize, reg: &[f64]) -> Vec<f64> {
        let (components, d) = (self.components(), self.columns());
        let (s2, s3) = (&s[components + k * d..][..d], &s[components * (1 + d) + k * d..][..d]);
        let trace: f64 = s3.iter().zip(reg).map(|(s3, reg)| s3 + reg * s[k]).sum();
        let mut m = vec![0.0; (d + 1) * (d + 1)];
        m[0] = s[k];
        for i in 1..=d {
            m[i * (d + 1)] = s2[i - 1];
            m[i] = s2[i - 1];
            m[i * (d + 2)] = trace;
        }
        m
    }

    /// The same for one column.
    fn column_matrix(&self, s: &[f64], k: usize, j: usize, reg: f64) -> [f64; 4] {
        let (components, d) = (self.components(), self.columns());
        let (s1, s2) = (s[k], s[components + k * d + j]);
        let s3 = s[components * (1 + d) + k * d + j];
        [s1, s2, s2, s3 + reg * s1]
    }

    /// The matrix of a tied covariance about the pooled mean, without second moments for a direction.
    fn tied_matrix(&self, s: &[f64], mean: &[f64], second: Option<&[f64]>) -> Vec<f64> {
        let (components, d) = (self.components(), self.columns());
        let size = components + d;
        let mut m = vec![0.0; size * size];
        for k in 0..components {
            m[k * (size + 1)] = s[k];
            for j in 0..d {
                let centred = s[components + k * d + j] - mean[j] * s[k];
                m[k * size + components + j] = centred;
                m[(components + j) * size + k] = centred;
            }
        }
        let Some(second) = second else { return m };
        for i in 0..d {
            for j in 0..d {
                m[(components + i) * size + components + j] =
                    second[packed_index(i, j)] - mean[i] * mean[j];
            }
            m[(components + i) * (size + 1)] += self.settings().reg_covar;
        }
        m
    }
}

/// The smallest and the largest eigenvalue of `direction` relative to `at`; `None` unless `at` is positive
/// definite.
fn relative_range(mut at: Vec<f64>, direction: &[f64], size: usize) -> Result<Option<[f64; 2]>> {
    if cholesky(&mut at, size).is_err() {
        return Ok(None);
    }
    invert_lower(&mut at, size);
    let transposed: Vec<f64> = (0..size * size).map(|n| at[n % size * size + n / size]).collect();
    let (mut room, mut relative) = (vec![0.0; size * size], vec![0.0; size * size]);
    matmul(&mut room, &at, direction, size, size, size);
    matmul(&mut relative, &room, &transposed, size, size, size);
    let values = symmetric_eigen(&relative, size)?.values;
    Ok(Some([values[0], values[size - 1]]))
}
