//! Parameters, and their unconstrained coordinates: those of the Gaussian part (weights as logits),
//! logarithms of rates, and for each column of levels the logits of the continuation ratios
//! `p_l / (p_l + ... + p_L + p_1)`, l from 2 on. Their information is diagonal, and every vector of
//! finite numbers is a valid parameter.

use super::{FLOOR, Levels, Mixed};
use crate::LatentModel;
use crate::gmm::GmmParameters;
use crate::mixture::{LOG_MAX, check_coordinates, softmax};
use whimbrel_core::{Error, Result, math};

/// The parameters of a mixture over a table.
#[derive(Clone, Debug)]
pub struct MixedParameters {
    pub(super) weights: Vec<f64>,
    pub(super) log_weights: Vec<f64>,
    /// Means and covariances of the numbers, with the weights.
    pub(super) gaussian: Option<GmmParameters>,
    /// Rates of the counts, component after component.
    pub(super) rates: Vec<f64>,
    pub(super) log_rates: Vec<f64>,
    /// Probabilities of the levels, component after component, column after column.
    pub(super) levels: Vec<f64>,
    pub(super) log_levels: Vec<f64>,
}

impl MixedParameters {
    pub fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// Means and covariances of the numbers; `None` without numeric columns.
    pub fn gaussian(&self) -> Option<&GmmParameters> {
        self.gaussian.as_ref()
    }

    /// Rates of the counts, component after component.
    pub fn rates(&self) -> &[f64] {
        &self.rates
    }

    /// Probabilities of the levels, component after component, column after column.
    pub fn levels(&self) -> &[f64] {
        &self.levels
    }
}

impl Mixed {
    /// Parameters from weights, means and variances or full covariances of the numbers, rates of the counts
    /// and probabilities of all levels, each component after component.
    pub fn parameters(
        &self,
        weights: &[f64],
        means: &[f64],
        covariances: &[f64],
        rates: &[f64],
        levels: &[f64],
    ) -> Result<MixedParameters> {
        let k = self.components();
        let sum: f64 = weights.iter().sum();
        if weights.len() != k || (sum - 1.0).abs() > 1e-3 || !weights.iter().all(|w| *w > 0.0) {
            let what = format!("the weights must be {k} positive numbers that sum to 1");
            return Err(Error::config(what));
        }
        if rates.len() != k * self.counts.len() || !rates.iter().all(|r| *r >= 0.0) {
            let what = format!("the rates must be {} non-negative numbers", k * self.counts.len());
            return Err(Error::config(what));
        }
        if levels.len() != k * self.all_levels() || !levels.iter().all(|p| *p >= 0.0) {
            let what = format!("the levels must have {} probabilities", k * self.all_levels());
            return Err(Error::config(what));
        }
        let gaussian = self.gaussian.as_ref();
        let gaussian =
            gaussian.map(|gmm| gmm.parameters(weights, means, covariances)).transpose()?;
        let weights = weights.iter().map(|w| w / sum).collect();
        Ok(self.assemble(weights, gaussian, rates.to_vec(), levels.to_vec()))
    }

    /// Assembles the parts, with floors on rates and probabilities.
    pub(super) fn assemble(
        &self,
        weights: Vec<f64>,
        gaussian: Option<GmmParameters>,
        mut rates: Vec<f64>,
        mut levels: Vec<f64>,
    ) -> MixedParameters {
        let floors: Vec<f64> =
            self.pooled_rates(&weights, &rates).iter().map(|p| FLOOR * p.max(FLOOR)).collect();
        for rates in rates.chunks_exact_mut(floors.len().max(1)) {
            rates.iter_mut().zip(&floors).for_each(|(rate, floor)| *rate = rate.max(*floor));
        }
        for levels in levels.chunks_exact_mut(self.all_levels().max(1)) {
            for Levels { count, from, .. } in &self.levels {
                let own = &mut levels[*from..][..*count];
                own.iter_mut().for_each(|p| *p = p.max(FLOOR));
                let sum: f64 = own.iter().sum();
                own.iter_mut().for_each(|p| *p /= sum);
            }
        }
        let logs = |x: &[f64]| {
            let mut logs = x.to_vec();
            math::ln_slice(&mut logs);
            logs
        };
        MixedParameters {
            log_weights: logs(&weights),
            log_rates: logs(&rates),
            log_levels: logs(&levels),
            weights,
            gaussian,
            rates,
            levels,
        }
    }

    /// The mean of each count under the mixture.
    pub(super) fn pooled_rates(&self, weights: &[f64], rates: &[f64]) -> Vec<f64> {
        let c = self.counts.len();
        let mean = |j: usize| {
            let each = weights.iter().zip(rates.iter().skip(j).step_by(c));
            each.map(|(w, rate)| w * rate.max(0.0)).sum()
        };
        (0..c).map(mean).collect()
    }

    pub(super) fn coordinates_of(&self, theta: &MixedParameters) -> Vec<f64> {
        let mut out = match (&self.gaussian, &theta.gaussian) {
            (Some(gmm), Some(gaussian)) => gmm.to_vector(gaussian),
            _ => theta.log_weights.clone(),
        };
        out.extend_from_slice(&theta.log_rates);
        for levels in theta.levels.chunks_exact(self.all_levels().max(1)) {
            for Levels { count, from, .. } in &self.levels {
                let own = &levels[*from..][..*count];
                let left = remaining(own);
                out.extend((1..*count).map(|l| math::ln(own[l]) - math::ln(left[l])));
            }
        }
        out
    }

    pub(super) fn parameters_at(&self, coordinates: &[f64]) -> Result<MixedParameters> {
        let expected = self.coordinates_len();
        check_coordinates(coordinates, expected)?;
        let k = self.components();
        let others = k * (self.counts.len() + self.free_levels());
        let (first, rest) = coordinates.split_at(expected - others);
        let (log_rates, mut logits) = rest.split_at(k * self.counts.len());
        let (weights, gaussian) = match &self.gaussian {
            Some(gmm) => {
                let gaussian = gmm.from_vector(first)?;
                (gaussian.weights().to_vec(), Some(gaussian))
            }
            None => (softmax(first, self.settings.weight_floor), None),
        };
        let rates = log_rates.iter().map(|l| math::exp(l.clamp(-LOG_MAX, LOG_MAX))).collect();
        let mut levels = Vec::with_capacity(k * self.all_levels());
        for _ in 0..k {
            for Levels { count, .. } in &self.levels {
                let (own, after) = logits.split_at(count - 1);
                logits = after;
                let first = levels.len();
                levels.push(0.0);
                let mut left = 1.0;
                for logit in own {
                    let logit = logit.clamp(-LOG_MAX, LOG_MAX);
                    levels.push(left / (1.0 + math::exp(-logit)));
                    left /= 1.0 + math::exp(logit);
                }
                levels[first] = left;
            }
        }
        Ok(self.assemble(weights, gaussian, rates, levels))
    }
}

/// `left[l]`: the probability of level 0 and of all levels above `l`.
pub(super) fn remaining(levels: &[f64]) -> Vec<f64> {
    let mut left = vec![levels[0]; levels.len()];
    for l in (1..levels.len()).rev() {
        left[l - 1] = left[l] + levels[l];
    }
    left
}
