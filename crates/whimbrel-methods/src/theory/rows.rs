//! A client's estimates from single rows: the variance of its minibatches, or Lipschitz constants.

use super::{Constants, PathClient, SECANT_SHARE};
use crate::fedem::{Batch, Estimator};
use whimbrel_core::{Key, Result, vector};
use whimbrel_models::{MixtureModel, Rows};

/// The number of rows from which a client estimates `σ_i²` or `L_ij`.
const LOOKED_MAX: usize = 200;

impl<M: MixtureModel> Constants<M> {
    /// Chooses these rows, under variance reduction.
    pub(super) fn first_look(&self, rows: usize, key: Key) -> PathClient {
        if self.fit.oracle.estimator == Estimator::Minibatch {
            return PathClient::default();
        }
        let chosen = key.stream().choose(rows, rows.min(LOOKED_MAX));
        let looked: Vec<u32> = chosen.into_iter().map(|row| row as u32).collect();
        PathClient { each_lipschitz2: vec![0.0; looked.len()], looked, ..PathClient::default() }
    }

    /// `L_i² = m^-1 Σ_j L_ij²`, with `L_ij` the largest secant of `s̄_ij(T(s)) − s` so far     (A8, (34))
    pub(super) fn look_at_rows(
        &self,
        last: &PathClient,
        next: &mut PathClient,
        theta: &M::Parameters,
        data: &M::Data,
    ) -> Result<()> {
        if last.theta.is_empty() {
            return Ok(());
        }
        let theta_last = self.fit.oracle.model.from_vector(&last.theta)?;
        let moved: Vec<f64> = next.s.iter().zip(&last.s).map(|(s, last)| s - last).collect();
        let run = vector::norm2_squared(&moved);
        if run <= SECANT_SHARE * vector::norm2_squared(&next.s) {
            return Ok(());
        }
        let mut change = vec![0.0; moved.len()];
        for (row, largest) in next.looked.iter().zip(&mut next.each_lipschitz2) {
            let row = Rows::These(std::slice::from_ref(row));
            self.fit.oracle.model.expect_change(&theta_last, theta, data, row, &mut change)?;
            vector::axpy(&mut change, -1.0, &moved);
            *largest = largest.max(vector::norm2_squared(&change) / run);
        }
        next.lipschitz2 = next.each_lipschitz2.iter().sum::<f64>() / next.looked.len() as f64;
        Ok(())
    }

    /// `σ_i²`: the variance of a minibatch mean, from single rows.
    pub(super) fn variance(
        &self,
        theta: &M::Parameters,
        data: &M::Data,
        mean: &[f64],
        key: Key,
    ) -> Result<f64> {
        let Batch::Sample { size, replacement, local_steps } = self.fit.oracle.batch else {
            return Ok(0.0);
        };
        if self.fit.oracle.estimator != Estimator::Minibatch {
            return Ok(0.0);
        }
        let model = &self.fit.oracle.model;
        let rows = model.rows(data);
        let looked = key.stream().choose(rows, rows.min(LOOKED_MAX));
        let mut one = vec![0.0; mean.len()];
        let mut spread = 0.0;
        for row in &looked {
            model.expect(theta, data, Rows::These(&[*row as u32]), &mut one)?;
            vector::axpy(&mut one, -1.0, mean);
            spread += vector::norm2_squared(&one);
        }
        let (n, b) = (
            rows as f64,
            f64::from(size).min(if replacement { f64::INFINITY } else { rows as f64 }),
        );
        let correction = if replacement || rows < 2 { 1.0 } else { (n - b) / (n - 1.0) };
        Ok(spread / looked.len() as f64 * correction / (b * f64::from(local_steps)))
    }
}
