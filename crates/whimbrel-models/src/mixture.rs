//! Parts that Gaussian mixtures and mixtures over tables share.

use crate::LatentModel;
use std::ops::Range;
use whimbrel_core::method::Artifact;
use whimbrel_core::{Error, Key, Result, math, vector};

/// A mixture with a given number of components: starts, points for clustering, and the fitted tensors.
pub trait MixtureModel: LatentModel + Clone {
    /// Number of components.
    fn components(&self) -> usize;
    /// Number of free parameters.
    fn free_parameters(&self) -> usize;
    /// Length of [`moments`](LatentModel::moments).
    fn moments_len(&self) -> usize;
    /// Weights of the components.
    fn weights(&self, theta: &Self::Parameters) -> Vec<f64>;
    /// The number of covariances that have no width but `reg_covar`: without it they would be clipped.
    fn narrow(&self, statistic: &[f64], moments: &[f64]) -> u32;

    /// Length of a row as a point for clustering.
    fn point_len(&self) -> usize;
    /// Rows as points, with missing cells replaced by column means.
    fn points(&self, data: &Self::Data) -> Vec<f64>;
    /// One row as a point.
    fn point(&self, data: &Self::Data, row: usize) -> Vec<f64> {
        self.points(data)[row * self.point_len()..][..self.point_len()].to_vec()
    }
    /// Whether each coordinate of the points comes from an observed cell; `None` if all do.
    fn observed(&self, _data: &Self::Data) -> Option<Vec<bool>> {
        None
    }
    /// The scale of each coordinate in distances, for rows with these moments; `None` for raw distances.
    fn point_scales(&self, _moments: &[f64]) -> Option<Vec<f64>> {
        None
    }
    /// The coordinates of points without any observed cell, for rows with these moments.
    fn point_gaps(&self, _moments: &[f64]) -> Vec<usize> {
        Vec::new()
    }
    /// The mean point of rows with these moments.
    fn point_means(&self, moments: &[f64]) -> Vec<f64>;

    /// A start drawn from the pooled moments, which needs only sums over clients.
    fn initial_from_moments(&self, moments: &[f64], key: Key) -> Result<Self::Parameters>;
    /// Equal weights, these points as means, and equal components otherwise.
    fn initial_from_points(&self, points: Vec<f64>, moments: &[f64]) -> Result<Self::Parameters>;
    /// Weights proportional to `counts`, means, rates and probabilities at `centres` (one point after
    /// the other), and the pooled covariance or variances minus the scatter between the centres.
    fn initial_from_centres(
        &self,
        centres: &[f64],
        counts: &[f64],
        moments: &[f64],
    ) -> Result<Self::Parameters>;
    /// A start with these weights and means, and the same variance in every direction.
    fn initial_isotropic(
        &self,
        _weights: &[f64],
        _means: &[f64],
        _variance: f64,
    ) -> Result<Self::Parameters> {
        Err(Error::config("this mixture has no isotropic start"))
    }

    /// The fitted mixture as named tensors, component after component.
    fn artifact(&self, theta: &Self::Parameters) -> Artifact;
}

/// The diagonals of `d` x `d` matrices that follow one another.
pub(crate) fn diagonals(matrices: &[f64], d: usize) -> Vec<f64> {
    let diagonal = (0..matrices.len()).filter(|at| (at % (d * d)).is_multiple_of(d + 1));
    diagonal.map(|at| matrices[at]).collect()
}

/// `ln(2 pi)`.
pub(crate) const LN_TWO_PI: f64 = 1.837_877_066_409_345_5;
/// Logarithmic coordinates are clipped to this size: the exponential of a larger one overflows.
pub(crate) const LOG_MAX: f64 = 300.0;

/// Replaces log-weights by weights of sum one; returns the log-sum-exp.
pub(crate) fn log_sum_exp(scores: &mut [f64]) -> f64 {
    let top = scores.iter().fold(f64::NEG_INFINITY, |top, score| top.max(*score));
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = math::exp(*score - top);
        sum += *score;
    }
    scores.iter_mut().for_each(|score| *score /= sum);
    top + math::ln(sum)
}

/// Replaces the log-weights of the components that are not kept by one whose exponential is zero
/// beside any other.
pub(crate) fn left_out(log_weights: &mut [f64], kept: &[bool]) {
    let lost = log_weights.iter_mut().zip(kept).filter(|(_, kept)| !**kept);
    lost.for_each(|(weight, _)| *weight = -1e300);
}

/// Weights raised to the floor, then normalised.
pub(crate) fn floored(weights: impl Iterator<Item = f64>, floor: f64) -> Vec<f64> {
    let mut weights: Vec<f64> = weights.map(|w| w.max(floor)).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|w| *w /= sum);
    weights
}

/// Weights from logits, floored.
pub(crate) fn softmax(logits: &[f64], floor: f64) -> Vec<f64> {
    let mut weights = logits.to_vec();
    log_sum_exp(&mut weights);
    floored(weights.into_iter(), floor)
}

/// The M-step of the weights: `s1` with 0 for dead components, the weights, and the dead components.
pub(crate) fn weights_of(
    s1: &[f64],
    weight_floor: f64,
    lambda: f64,
) -> Result<(Vec<f64>, Vec<f64>, Vec<usize>)> {
    let total: f64 = s1.iter().filter(|s| **s > 0.0).sum();
    let floor = weight_floor * total;
    let dead: Vec<usize> = (0..s1.len()).filter(|k| s1[*k] <= floor).collect();
    if dead.len() == s1.len() || !total.is_finite() {
        return Err(Error::numerical(
            "no component has a positive weight left in the statistic; a smaller step or a \
             codec with less noise would keep it in the domain of the M-step",
        ));
    }
    let s1: Vec<f64> = s1.iter().map(|s| if *s > floor { *s } else { 0.0 }).collect();
    // pi_k ∝ s1_k + lambda (60); floored, then normalised.
    let sum: f64 = s1.iter().map(|s| s + lambda).sum();
    let weights = floored(s1.iter().map(|s| (s + lambda) / sum), weight_floor);
    Ok((s1, weights, dead))
}

/// The shares of the centres in the rows; refuses other numbers of centres than of components.
pub(crate) fn shares_of(
    counts: &[f64],
    centres: &[f64],
    [components, width]: [usize; 2],
) -> Result<Vec<f64>> {
    if counts.len() != components || centres.len() != components * width {
        return Err(Error::data(format!(
            "{} centres were found for {components} components; the data may hold too few \
             distinct rows",
            counts.len()
        )));
    }
    let total: f64 = counts.iter().sum();
    if !(total > 0.0 && total.is_finite() && counts.iter().all(|c| *c >= 0.0)) {
        return Err(Error::data("the centres' counts must be non-negative and not all zero"));
    }
    Ok(counts.iter().map(|count| count / total).collect())
}

/// Refuses coordinates of another length, or with a number that is not finite.
pub(crate) fn check_coordinates(coordinates: &[f64], expected: usize) -> Result<()> {
    if coordinates.len() != expected {
        return Err(Error::peer(format!(
            "{} coordinates given where the mixture has {expected}",
            coordinates.len()
        )));
    }
    match coordinates.iter().position(|c| !c.is_finite()) {
        Some(at) => Err(Error::peer(format!("coordinate {} is {}", at + 1, coordinates[at]))),
        None => Ok(()),
    }
}

/// Refuses a statistic or moments with a number that is not finite.
pub(crate) fn check_finite(what: &str, numbers: &[f64]) -> Result<()> {
    if vector::all_finite(numbers) {
        return Ok(());
    }
    Err(Error::numerical(format!("{what} a number that is not finite")))
}

pub(crate) fn check_density(log_density: f64, statistic: &[f64]) -> Result<()> {
    if log_density.is_finite() && vector::all_finite(statistic) {
        return Ok(());
    }
    Err(Error::numerical(
        "the mixture gives some row no finite density: a component lies too far away or its \
         covariance is too small",
    ))
}

/// Writes the chunks' sums and returns their summed log-density: each half in parallel, then one
/// added to the other. The tree of additions depends on the number of chunks alone.
pub(crate) fn sum_tree(
    chunks: Range<usize>,
    sum: &(impl Fn(usize, &mut [f64]) -> f64 + Sync),
    out: &mut [f64],
) -> f64 {
    if chunks.len() == 1 {
        return sum(chunks.start, out);
    }
    let middle = chunks.start + chunks.len() / 2;
    let mut other = vec![0.0; out.len()];
    let (first, second) = rayon::join(
        || sum_tree(chunks.start..middle, sum, out),
        || sum_tree(middle..chunks.end, sum, &mut other),
    );
    out.iter_mut().zip(&other).for_each(|(out, x)| *out += x);
    first + second
}
