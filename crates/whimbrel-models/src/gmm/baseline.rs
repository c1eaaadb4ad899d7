//! A single Gaussian as the baseline that a mixture must not be worse than.

use super::factor::inverse_factor;
use super::mstep::subtract_outer;
use super::parameters::equalise;
use super::{Covariance, Gmm, GmmPenalty};
use crate::mixture::LN_TWO_PI;
use whimbrel_core::linalg::{packed_index, packed_len};
use whimbrel_core::math;

impl Gmm {
    /// The mean negative log-likelihood of one Gaussian of the same covariance kind and `reg_covar`,
    /// fitted to rows with this mean statistic and these moments. `None` if the moments are singular, or if
    /// the model has a penalty, which would differ between a mixture and a single Gaussian.
    pub(super) fn one_gaussian(&self, statistic: &[f64], moments: &[f64]) -> Option<f64> {
        let (components, d) = (self.components(), self.columns());
        if self.settings().penalty != GmmPenalty::default() {
            return None;
        }
        let (_, rest) = statistic.split_at(components);
        let (first, second) = rest.split_at(components * d);
        let mean = summed(first, d);
        let reg = self.regularisers(statistic);
        if self.settings().covariance.is_diagonal() {
            let squares = summed(second, d);
            let own = squares.iter().zip(&mean).map(|(square, mean)| square - mean * mean);
            let mut own: Vec<f64> = own.collect();
            let mut fitted: Vec<f64> = own.iter().zip(&reg).map(|(own, reg)| own + reg).collect();
            if self.settings().covariance == Covariance::Spherical {
                equalise(&mut own);
                equalise(&mut fitted);
            }
            let each = own.iter().zip(&fitted).map(|(own, fitted)| {
                (*own > 0.0).then(|| 0.5 * (LN_TWO_PI + math::ln(*fitted) + own / fitted))
            });
            return each.sum();
        }
        let mut own = match self.settings().covariance {
            Covariance::Full => summed(second, packed_len(d)),
            _ => moments.get(d..).filter(|second| !second.is_empty())?.to_vec(),
        };
        subtract_outer(&mut own, 1.0, &mean);
        let factor = match &self.known {
            Some(known) => known.inverse.clone(),
            None => {
                let mut fitted = own.clone();
                (0..d).for_each(|j| fitted[packed_index(j, j)] += reg[j]);
                inverse_factor(&fitted, d).ok()?
            }
        };
        // tr(Sigma^-1 C), row by row of L^-1.
        let trace: f64 = (0..d)
            .map(|r| {
                let row = &factor.lower[packed_index(r, 0)..][..=r];
                let product = |i: usize| -> f64 {
                    row.iter().enumerate().map(|(j, w)| w * own[packed_index(i, j)]).sum()
                };
                row.iter().enumerate().map(|(i, w)| w * product(i)).sum::<f64>()
            })
            .sum();
        Some(0.5 * d as f64 * LN_TWO_PI + factor.half_log_det + 0.5 * trace)
    }
}

/// The sum over components of blocks of this size.
fn summed(blocks: &[f64], size: usize) -> Vec<f64> {
    blocks.chunks_exact(size).fold(vec![0.0; size], |mut sum, block| {
        sum.iter_mut().zip(block).for_each(|(sum, x)| *sum += x);
        sum
    })
}
