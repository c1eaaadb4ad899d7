//! Refits to samples of the rows, for imputations that include the uncertainty of the parameters.
//!
//! J. Honaker and G. King (2010), *What to do about missing values in time-series cross-section data*: each
//! imputation draws from a mixture that EM refits to a bootstrap sample. If only a share `f` of the rows
//! behind the fit is at hand, with mean statistics `s` of these and `s_b` of the sample, those of the other
//! rows stay, and EM iterates `theta <- T(s_hat + f (s_b(theta) - s(theta_hat)))`.

use super::{Mixed, MixedData, MixedParameters};
use crate::{LatentModel, Rows};
use whimbrel_core::{Key, Result, vector};

const STEPS_MAX: u32 = 100;
/// EM ends at a smaller change of the sample's log-likelihood: the remaining step is far below a standard
/// error.
const CHANGE_MIN: f64 = 1e-3;

impl Mixed {
    /// The parameters refitted to a bootstrap sample of these rows, which are some or all of the `total`
    /// rows behind `theta`.
    pub fn refitted(
        &self,
        theta: &MixedParameters,
        data: &MixedData,
        total: u64,
        key: Key,
    ) -> Result<MixedParameters> {
        let n = data.rows() as u64;
        let mut stream = key.stream();
        let sample: Vec<u32> = (0..n).map(|_| stream.below(n) as u32).collect();
        let share = (n as f64 / total as f64).min(1.0);
        let mean = |theta: &MixedParameters, rows: Rows<'_>| {
            let mut statistic = vec![0.0; self.statistic_len()];
            self.expect(theta, data, rows, &mut statistic).map(|found| (statistic, found))
        };
        let mut others = vec![0.0; self.statistic_len()];
        if share < 1.0 {
            others = self.expected_statistic(theta);
            vector::axpy(&mut others, -share, &mean(theta, Rows::All)?.0);
        }
        let (mut moved, mut last) = (theta.clone(), f64::NEG_INFINITY);
        for _ in 0..STEPS_MAX {
            let (own, log_likelihood) = mean(&moved, Rows::These(&sample))?;
            let mut statistic = others.clone();
            vector::axpy(&mut statistic, share, &own);
            moved = self.maximize(&statistic, &[])?.theta;
            if (log_likelihood - last).abs() * (n as f64) < CHANGE_MIN {
                break;
            }
            last = log_likelihood;
        }
        Ok(moved)
    }

    /// `E[s; theta]`.
    fn expected_statistic(&self, theta: &MixedParameters) -> Vec<f64> {
        let gaussian = self.gaussian.as_ref().zip(theta.gaussian.as_ref());
        let mut out = gaussian
            .and_then(|(model, theta)| model.expected(theta))
            .unwrap_or_else(|| theta.weights.clone());
        let (c, all) = (self.counts.len(), self.all_levels());
        for (k, weight) in theta.weights.iter().enumerate() {
            out.extend(theta.rates[k * c..][..c].iter().map(|rate| weight * rate));
        }
        for (k, weight) in theta.weights.iter().enumerate() {
            for levels in &self.levels {
                let own = &theta.levels[k * all + levels.from..][..levels.count];
                out.extend(own[1..].iter().map(|p| weight * p));
            }
        }
        out
    }
}
