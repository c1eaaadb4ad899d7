//! The M-step `T`, clipped to the interior of its domain, and the penalty.
//!
//! With `R` of [`GmmPenalty`](super::GmmPenalty), lambda its Dirichlet part, nu and psi its
//! Wishart degrees and scale, `T(s) = argmin psi(theta) + R(theta) - <s, phi(theta)>` is
//!
//! - `pi_k` proportional to `s1_k + lambda` (60),
//! - `mu_k = s2_k / s1_k` (61),
//! - tied: `Sigma = (E[y y'] - sum_k s1_k mu_k mu_k' + psi I) / (1 + nu)` (62),
//! - full: `Sigma_k = (s3_k - s1_k mu_k mu_k' + psi I) / (s1_k + nu)`, its diagonal alone for
//!   diagonal covariances, and the mean of its diagonal for spherical ones.
//!
//! A component whose `s1` is at most the weight floor is dead: its `s1` and `s2` are set to zero, and it
//! gets the smallest weight (the floor, or the penalty's share), the mean of the living components, and
//! the pooled covariance.

use super::factor::definite_above;
use super::parameters::{Factors, GmmParameters, equalise};
use super::{Covariance, Gmm};
use crate::mixture::{check_finite, weights_of};
use crate::{LatentModel, Maximum, MixtureModel};
use whimbrel_core::linalg::{floor_eigenvalues, pack, packed_index, unpack};
use whimbrel_core::{Error, Result, math};

impl Gmm {
    pub(super) fn m_step(
        &self,
        statistic: &[f64],
        moments: &[f64],
    ) -> Result<Maximum<GmmParameters>> {
        if statistic.len() != self.statistic_len() || moments.len() != self.moments_len() {
            return Err(Error::internal(format!(
                "a statistic of {} and moments of {} numbers where the mixture has {} and {}",
                statistic.len(),
                moments.len(),
                self.statistic_len(),
                self.moments_len()
            )));
        }
        check_finite("the statistic holds", statistic)?;
        check_finite("the statistic's moments hold", moments)?;
        let step = Step::new(self, statistic, moments)?;
        let (covariance, floored) = step.covariances()?;
        let repairs = step.dead.len() as u32 + floored;
        let Step { weights, means, dead, .. } = step;
        let theta = self
            .assemble(weights, means, covariance)
            .map_err(|e| Error::numerical(format!("the M-step left the parameter space: {e}")))?;
        Ok(Maximum { theta, repairs, dead })
    }

    /// `R(theta)`.
    pub(super) fn penalty_of(&self, theta: &GmmParameters) -> f64 {
        let penalty = &self.settings().penalty;
        let mut total = 0.0;
        if penalty.dirichlet > 0.0 {
            total -= penalty.dirichlet * theta.weights().iter().map(|w| math::ln(*w)).sum::<f64>();
        }
        let matrices = match theta.factors {
            Factors::Shared { .. } if self.known.is_some() => 0,
            Factors::Shared { .. } => 1,
            _ => self.components(),
        };
        if penalty.wishart_degrees > 0.0 || penalty.wishart_scale > 0.0 {
            let d = self.columns();
            for k in 0..matrices {
                let precision = theta.precision(k);
                let trace: f64 = (0..d).map(|j| precision[j * d + j]).sum();
                total += 0.5 * penalty.wishart_degrees * theta.log_determinant(k)
                    + 0.5 * penalty.wishart_scale * trace;
            }
        }
        total
    }
}

impl Gmm {
    /// The number added to each column's variances: `reg_covar`, or that share of the variance over all
    /// components.
    pub(super) fn regularisers(&self, statistic: &[f64]) -> Vec<f64> {
        let (components, d, settings) = (self.components(), self.columns(), self.settings());
        if !settings.relative || settings.reg_covar == 0.0 {
            return vec![settings.reg_covar; d];
        }
        let (s1, rest) = statistic.split_at(components);
        let (s2, second) = rest.split_at(components * d);
        let size = self.second_len();
        let living = || (0..components).filter(|k| s1[*k] > 0.0);
        let alive: f64 = living().map(|k| s1[k]).sum();
        let place = |j: usize| if size == d { j } else { packed_index(j, j) };
        let square = |k: usize, j: usize| second[k * size + place(j)];
        let pooled = |j: usize| {
            let mean = living().map(|k| s2[k * d + j]).sum::<f64>() / alive;
            let square = living().map(|k| square(k, j)).sum::<f64>() / alive;
            settings.reg_covar * column_scale(square - mean * mean, square).powi(2)
        };
        (0..d).map(pooled).collect()
    }
}

/// The intermediate results of an M-step.
struct Step<'a> {
    model: &'a Gmm,
    moments: &'a [f64],
    /// Added to the columns' variances.
    regularisers: Vec<f64>,
    /// `s1`, with 0 for dead components.
    s1: Vec<f64>,
    /// Second moments in the statistic, component after component.
    second: &'a [f64],
    weights: Vec<f64>,
    means: Vec<f64>,
    dead: Vec<usize>,
}

impl<'a> Step<'a> {
    fn new(model: &'a Gmm, statistic: &'a [f64], moments: &'a [f64]) -> Result<Self> {
        let (components, d) = (model.components(), model.columns());
        let settings = model.settings();
        let (s1, rest) = statistic.split_at(components);
        let (s2, second) = rest.split_at(components * d);

        let (s1, weights, dead) =
            weights_of(s1, settings.weight_floor, settings.penalty.dirichlet)?;

        // mu_k = s2_k / s1_k (61)
        let alive: f64 = s1.iter().sum();
        let mut living_mean = vec![0.0; d];
        for (k, s2) in s2.chunks_exact(d).enumerate().filter(|(k, _)| s1[*k] > 0.0) {
            debug_assert!(!dead.contains(&k));
            living_mean.iter_mut().zip(s2).for_each(|(m, s)| *m += s / alive);
        }
        let means: Vec<f64> = s2
            .chunks_exact(d)
            .zip(&s1)
            .flat_map(|(s2, s1)| {
                let living_mean = &living_mean;
                (0..d).map(move |j| if *s1 > 0.0 { s2[j] / s1 } else { living_mean[j] })
            })
            .collect();
        let regularisers = model.regularisers(statistic);
        Ok(Self { model, moments, regularisers, s1, second, weights, means, dead })
    }

    fn covariances(&self) -> Result<(Vec<f64>, u32)> {
        match self.model.settings().covariance {
            Covariance::Known(_) => Ok((self.model.known_triangle(), 0)),
            Covariance::Tied => self.tied(),
            Covariance::Diagonal | Covariance::Spherical => Ok(self.diagonal()),
            Covariance::Full => self.full(),
        }
    }

    fn tied(&self) -> Result<(Vec<f64>, u32)> {
        let settings = self.model.settings();
        let d = self.model.columns();
        // Sigma = (E[y y'] - sum_k s1_k mu_k mu_k' + psi I) / (1 + nu)                       (62)
        let mut scatter = self.moments[d..].to_vec();
        let centre = settings.centred.then(|| &self.moments[..d]);
        if let Some(centre) = centre {
            subtract_outer(&mut scatter, 1.0, centre);
        }
        for (s1, mean) in self.s1.iter().zip(self.means.chunks_exact(d)) {
            match centre {
                None => subtract_outer(&mut scatter, *s1, mean),
                Some(centre) => {
                    let shift: Vec<f64> = mean.iter().zip(centre).map(|(m, c)| m - c).collect();
                    subtract_outer(&mut scatter, *s1, &shift);
                }
            }
        }
        let (degrees, scale) = (settings.penalty.wishart_degrees, settings.penalty.wishart_scale);
        scatter.iter_mut().for_each(|x| *x /= 1.0 + degrees);
        for j in 0..d {
            scatter[packed_index(j, j)] += scale / (1.0 + degrees) + settings.reg_covar;
        }
        let floored = floor_packed(&mut scatter, settings.covariance_floor, &self.scales())?;
        Ok((scatter, u32::from(floored)))
    }

    fn diagonal(&self) -> (Vec<f64>, u32) {
        let settings = self.model.settings();
        let d = self.model.columns();
        let is_spherical = settings.covariance == Covariance::Spherical;
        let mut floors: Vec<f64> =
            self.scales().iter().map(|s| settings.covariance_floor * s * s).collect();
        if is_spherical {
            equalise(&mut floors);
        }
        let pooled: Vec<f64> = self.pooled_variances().map(|(variance, _)| variance).collect();
        let (degrees, scale) = (settings.penalty.wishart_degrees, settings.penalty.wishart_scale);
        let mut repairs = 0;
        let mut out = Vec::with_capacity(self.means.len());
        for (k, (mean, second)) in
            self.means.chunks_exact(d).zip(self.second.chunks_exact(d)).enumerate()
        {
            let s1 = self.s1[k];
            let variance = |j: usize| {
                let variance = if s1 > 0.0 {
                    (second[j] - s1 * mean[j] * mean[j] + scale) / (s1 + degrees)
                } else {
                    pooled[j]
                };
                variance + self.regularisers[j]
            };
            let mut variances: Vec<f64> = (0..d).map(variance).collect();
            if is_spherical {
                equalise(&mut variances);
            }
            let mut clipped = false;
            for (variance, floor) in variances.iter_mut().zip(&floors) {
                clipped |= s1 > 0.0 && *variance < *floor;
                *variance = variance.max(*floor);
            }
            repairs += u32::from(clipped);
            out.extend(variances);
        }
        (out, repairs)
    }

    fn full(&self) -> Result<(Vec<f64>, u32)> {
        let settings = self.model.settings();
        let (d, size) = (self.model.columns(), self.model.triangle());
        let scales = self.scales();
        let (degrees, scale) = (settings.penalty.wishart_degrees, settings.penalty.wishart_scale);
        let mut repairs = 0;
        let mut out = Vec::with_capacity(self.second.len());
        for (k, (mean, second)) in
            self.means.chunks_exact(d).zip(self.second.chunks_exact(size)).enumerate()
        {
            let s1 = self.s1[k];
            let mut sigma = if s1 > 0.0 {
                let mut scatter = second.to_vec();
                subtract_outer(&mut scatter, s1, mean);
                for j in 0..d {
                    scatter[packed_index(j, j)] += scale;
                }
                scatter.iter_mut().for_each(|x| *x /= s1 + degrees);
                scatter
            } else {
                self.pooled_covariance()
            };
            for j in 0..d {
                sigma[packed_index(j, j)] += self.regularisers[j];
            }
            let floored = floor_packed(&mut sigma, settings.covariance_floor, &scales)
                .map_err(|e| Error::numerical(format!("component {}: {e}", k + 1)))?;
            repairs += u32::from(floored && s1 > 0.0);
            out.extend(sigma);
        }
        Ok((out, repairs))
    }

    /// The pooled standard deviation of each column, bounded below by the rounding error of its squares.
    fn scales(&self) -> Vec<f64> {
        let scale = |(variance, square)| column_scale(variance, square);
        self.pooled_variances().map(scale).collect()
    }

    /// First and second moments of the pooled data: the given ones, or those of the living components.
    fn pooled(&self) -> (Vec<f64>, Vec<f64>) {
        let (d, size) = (self.model.columns(), self.model.second_len());
        if !self.moments.is_empty() {
            let (mean, second) = self.moments.split_at(d);
            return (mean.to_vec(), second.to_vec());
        }
        let alive: f64 = self.s1.iter().sum();
        let (mut mean, mut second) = (vec![0.0; d], vec![0.0; size]);
        for (k, s1) in self.s1.iter().enumerate().filter(|(_, s1)| **s1 > 0.0) {
            let share = s1 / alive;
            mean.iter_mut().zip(&self.means[k * d..]).for_each(|(m, x)| *m += share * x);
            second.iter_mut().zip(&self.second[k * size..]).for_each(|(m, x)| *m += x / alive);
        }
        (mean, second)
    }

    /// The pooled variance and mean square of each column.
    fn pooled_variances(&self) -> impl Iterator<Item = (f64, f64)> {
        let d = self.model.columns();
        let (mean, second) = self.pooled();
        let at =
            move |j: usize| if second.len() == d { second[j] } else { second[packed_index(j, j)] };
        (0..d).map(move |j| (at(j) - mean[j] * mean[j], at(j)))
    }

    fn pooled_covariance(&self) -> Vec<f64> {
        let (mean, mut second) = self.pooled();
        subtract_outer(&mut second, 1.0, &mean);
        second
    }
}

/// `packed -= weight v v'`, on the lower triangle.
pub(super) fn subtract_outer(packed: &mut [f64], weight: f64, v: &[f64]) {
    let mut rest = packed;
    for (i, v_i) in v.iter().enumerate() {
        let (row, next) = rest.split_at_mut(i + 1);
        rest = next;
        for (x, v_j) in row.iter_mut().zip(v) {
            *x -= weight * v_i * v_j;
        }
    }
}

/// The standard deviation of a column with this variance and mean square.
pub(super) fn column_scale(variance: f64, square: f64) -> f64 {
    let scale = variance.max(f64::EPSILON * square.abs()).sqrt();
    if scale > 0.0 && scale.is_finite() { scale } else { 1.0 }
}

/// Raises the eigenvalues of a packed covariance to `floor`, with each column in units of its scale (so
/// that the units of columns do not matter); returns whether any eigenvalue was below.
///
/// The floor is at least the rounding error of the largest entry, so that the result has a Cholesky
/// factor.
pub(super) fn floor_packed(packed: &mut [f64], floor: f64, scales: &[f64]) -> Result<bool> {
    let d = scales.len();
    let mut unit = packed.to_vec();
    rescale(&mut unit, scales, |x, s| x / s);
    let largest = (0..d).map(|j| unit[packed_index(j, j)].abs()).fold(0.0, f64::max);
    let mut floor = floor.max(largest * f64::EPSILON * d as f64);
    if definite_above(&unit, d, floor) {
        return Ok(false);
    }
    let mut square = unpack(&unit, d);
    for _ in 0..8 {
        floor_eigenvalues(&mut square, d, floor)?;
        packed.copy_from_slice(&pack(&square, d));
        rescale(packed, scales, |x, s| x * s);
        if definite_above(packed, d, 0.0) {
            return Ok(true);
        }
        floor *= 16.0;
    }
    Err(Error::numerical("a covariance could not be made positive definite"))
}

/// Applies `by(entry, scale_i)` and `by(entry, scale_j)` to each entry of a lower triangle.
fn rescale(packed: &mut [f64], scales: &[f64], by: impl Fn(f64, f64) -> f64) {
    let mut rest = packed;
    for (i, s_i) in scales.iter().enumerate() {
        let (row, next) = rest.split_at_mut(i + 1);
        rest = next;
        for (x, s_j) in row.iter_mut().zip(scales) {
            *x = by(by(*x, *s_i), *s_j);
        }
    }
}
