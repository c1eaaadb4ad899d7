//! The frame of the complete-data Fisher information: that of the Gaussian part, and in addition
//!
//! - for a count with rate lambda, `(b - lambda a) / sqrt(pi lambda)`,
//! - for level l of a column, with R_l the probability that remains after levels 2 to l,
//!   `[c_l - (p_l / R_{l-1}) (a - c_2 - ... - c_{l-1})] / sqrt(pi p_l R_l / R_{l-1})`,
//!
//! whose second moment under the model is the identity. The information of the coordinates of rates and
//! levels is diagonal, with the same square roots.

use super::parameters::remaining;
use super::{BOUNDARY, Levels, Mixed, MixedParameters};
use crate::LatentModel;
use whimbrel_core::Frame;

/// A frame at some parameters.
pub(super) struct MixedFrame {
    /// The frame of the Gaussian part; without numeric columns, `sqrt(pi_k)` alone.
    gaussian: Option<Box<dyn Frame>>,
    roots: Vec<f64>,
    /// Offset of the other parts.
    gaussian_len: usize,
    counts: usize,
    /// For every count and component the rate; for every free level `p_l / R_{l-1}`.
    rates: Vec<f64>,
    ratios: Vec<f64>,
    rate_scales: Vec<f64>,
    level_scales: Vec<f64>,
    /// Levels of each column.
    levels: Vec<usize>,
    is_statistic: bool,
}

impl MixedFrame {
    pub(super) fn of_statistics(model: &Mixed, theta: &MixedParameters) -> Self {
        let gaussian = model.gaussian.as_ref().zip(theta.gaussian.as_ref());
        let gaussian = gaussian.and_then(|(gmm, theta)| gmm.frame(theta));
        Self::new(model, theta, gaussian, model.gaussian_len(), true)
    }

    pub(super) fn of_coordinates(model: &Mixed, theta: &MixedParameters) -> Self {
        let gaussian = model.gaussian.as_ref().zip(theta.gaussian.as_ref());
        let length = gaussian.map_or(model.components(), |(gmm, _)| gmm.coordinates_len());
        let gaussian = gaussian.and_then(|(gmm, theta)| gmm.coordinates_frame(theta));
        Self::new(model, theta, gaussian, length, false)
    }

    fn new(
        model: &Mixed,
        theta: &MixedParameters,
        gaussian: Option<Box<dyn Frame>>,
        gaussian_len: usize,
        is_statistic: bool,
    ) -> Self {
        let counts = model.counts.len();
        let pooled = model.pooled_rates(&theta.weights, &theta.rates);
        let rate_scale = |(at, rate): (usize, &f64)| {
            (theta.weights[at / counts] * rate.max(BOUNDARY * pooled[at % counts])).sqrt()
        };
        let rate_scales = theta.rates.iter().enumerate().map(rate_scale).collect();
        let (mut ratios, mut level_scales) = (Vec::new(), Vec::new());
        let all = model.all_levels().max(1);
        for (weight, levels) in theta.weights.iter().zip(theta.levels.chunks_exact(all)) {
            for Levels { count, from, .. } in &model.levels {
                let own = &levels[*from..][..*count];
                let left = remaining(own);
                for l in 1..*count {
                    ratios.push(own[l] / left[l - 1]);
                    let variance = (own[l] * left[l] / left[l - 1]).max(BOUNDARY);
                    level_scales.push((weight * variance).sqrt());
                }
            }
        }
        Self {
            gaussian,
            roots: theta.weights.iter().map(|w| w.sqrt()).collect(),
            gaussian_len,
            counts,
            rates: theta.rates.clone(),
            ratios,
            rate_scales,
            level_scales,
            levels: model.levels.iter().map(|levels| levels.count).collect(),
            is_statistic,
        }
    }

    /// Subtracts from counts and levels their regression on the weights and the previous levels, or adds it
    /// back; `a` is the weights' part of the statistic.
    fn centre(&self, a: &[f64], rest: &mut [f64], add: bool) {
        let sign = if add { 1.0 } else { -1.0 };
        let (counts, levels) = rest.split_at_mut(self.rates.len());
        for (at, (count, rate)) in counts.iter_mut().zip(&self.rates).enumerate() {
            *count += sign * rate * a[at / self.counts];
        }
        let mut from = 0;
        for a in a {
            for count in &self.levels {
                let own = &mut levels[from..][..count - 1];
                let mut left = *a;
                for (level, ratio) in own.iter_mut().zip(&self.ratios[from..]) {
                    let before = *level;
                    *level += sign * ratio * left;
                    left -= if add { *level } else { before };
                }
                from += count - 1;
            }
        }
    }

    fn scale(&self, rest: &mut [f64], divide: bool) {
        let scales = self.rate_scales.iter().chain(&self.level_scales);
        for (x, scale) in rest.iter_mut().zip(scales).filter(|(_, scale)| **scale > 0.0) {
            *x = if divide { *x / scale } else { *x * scale };
        }
    }
}

impl Frame for MixedFrame {
    fn forward(&self, x: &mut [f64]) {
        let (first, rest) = x.split_at_mut(self.gaussian_len);
        if self.is_statistic {
            self.centre(&first[..self.roots.len()], rest, false);
        }
        self.scale(rest, self.is_statistic);
        match &self.gaussian {
            Some(gaussian) => gaussian.forward(first),
            None => first.iter_mut().zip(&self.roots).for_each(|(x, root)| {
                *x = if self.is_statistic { *x / root } else { *x * root };
            }),
        }
    }

    fn inverse(&self, x: &mut [f64]) {
        let (first, rest) = x.split_at_mut(self.gaussian_len);
        match &self.gaussian {
            Some(gaussian) => gaussian.inverse(first),
            None => first.iter_mut().zip(&self.roots).for_each(|(x, root)| {
                *x = if self.is_statistic { *x * root } else { *x / root };
            }),
        }
        self.scale(rest, !self.is_statistic);
        if self.is_statistic {
            self.centre(&first[..self.roots.len()], rest, true);
        }
    }
}
