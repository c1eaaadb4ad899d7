//! `theta`: weights, means and covariances, with quantities precomputed for the E-step.

use super::factor::{InverseFactor, inverse_factor};
use super::kernels::{self, GROUP, pack_panels, panels_len};
use super::{Covariance, Gmm};
use crate::lane::LANES;
use crate::mixture::LN_TWO_PI;
use whimbrel_core::linalg::{packed_index, packed_len, unpack};
use whimbrel_core::{Error, Result, math};

/// The parameters of a Gaussian mixture.
#[derive(Clone, Debug)]
pub struct GmmParameters {
    columns: usize,
    weights: Vec<f64>,
    means: Vec<f64>,
    /// One lower triangle (known, tied), one per component (full), or variances (diagonal).
    covariance: Vec<f64>,
    /// The inverse Cholesky factors behind `factors`, in the same order; empty for diagonal.
    inverse: Vec<InverseFactor>,
    pub(super) factors: Factors,
    /// `ln pi_k - (d/2) ln 2 pi - (1/2) ln det Sigma_k`.
    pub(super) constants: Vec<f64>,
}

/// Inverse Cholesky factors, in the order in which the kernels read them.
#[derive(Clone, Debug)]
pub(super) enum Factors {
    /// One covariance: the factor, the mean of the mixture, which is subtracted from rows (so that data far
    /// from the origin lose no digits), and the whitened means relative to it.
    Shared { centre: Vec<f64>, panels: Vec<f64>, whitened: Vec<f64> },
    /// Inverse standard deviations.
    Diagonal { scales: Vec<f64> },
    /// One covariance per component; whitened means are padded to groups.
    Full { centre: Vec<f64>, panels: Vec<f64>, offsets: Vec<f64> },
}

impl GmmParameters {
    pub fn components(&self) -> usize {
        self.weights.len()
    }

    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Weights, positive and of sum 1.
    pub fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// Means, component after component.
    pub fn means(&self) -> &[f64] {
        &self.means
    }

    /// The mean of component `k`.
    pub fn mean(&self, k: usize) -> &[f64] {
        &self.means[k * self.columns..][..self.columns]
    }

    /// The covariance of component `k`, row-major.
    pub fn covariance(&self, k: usize) -> Vec<f64> {
        let d = self.columns;
        let at = if matches!(self.factors, Factors::Full { .. }) { k } else { 0 };
        match self.factors {
            Factors::Diagonal { .. } => {
                let mut square = vec![0.0; d * d];
                for (j, variance) in self.covariance[k * d..][..d].iter().enumerate() {
                    square[j * d + j] = *variance;
                }
                square
            }
            _ if self.covariance.is_empty() => self.inverse[at].covariance(d),
            _ => unpack(&self.covariance[at * packed_len(d)..][..packed_len(d)], d),
        }
    }

    /// Inverse Cholesky factors: one (known, tied), one per component (full), none (diagonal).
    pub(super) fn inverse(&self) -> &[InverseFactor] {
        &self.inverse
    }

    /// Variances of a diagonal mixture, component after component.
    pub(crate) fn variances(&self) -> &[f64] {
        &self.covariance
    }

    /// `ln det Sigma_k`.
    pub(super) fn log_determinant(&self, k: usize) -> f64 {
        2.0 * (math::ln(self.weights[k]) - self.constants[k]) - self.columns as f64 * LN_TWO_PI
    }

    /// `Sigma_k^-1`, row-major.
    pub(super) fn precision(&self, k: usize) -> Vec<f64> {
        let d = self.columns;
        let mut precision = vec![0.0; d * d];
        match &self.factors {
            Factors::Diagonal { .. } => {
                for (j, variance) in self.covariance[k * d..][..d].iter().enumerate() {
                    precision[j * d + j] = 1.0 / variance;
                }
            }
            _ => {
                let at = if matches!(self.factors, Factors::Full { .. }) { k } else { 0 };
                // Sigma^-1 = W^T W with W = L^-1.
                let mut rest = &self.inverse[at].lower[..];
                for r in 0..d {
                    let (row, next) = rest.split_at(r + 1);
                    rest = next;
                    for i in 0..=r {
                        for j in 0..=r {
                            precision[i * d + j] += row[i] * row[j];
                        }
                    }
                }
            }
        }
        precision
    }

    /// `phi(theta)`: (56), and for component-wise covariances the coordinates
    /// `ln pi_k - (1/2) ln det Sigma_k - (1/2) mu' Sigma_k^-1 mu`, `Sigma_k^-1 mu_k`,
    /// `-(1/2) Sigma_k^-1` (entries off the diagonal doubled, since the triangle holds each once).
    pub(super) fn natural(&self) -> Vec<f64> {
        let (components, d) = (self.components(), self.columns);
        let own_covariance = !matches!(self.factors, Factors::Shared { .. });
        let (mut first, mut second, mut third) = (Vec::new(), Vec::new(), Vec::new());
        let mut precision = Vec::new();
        for k in 0..components {
            if k == 0 || own_covariance {
                precision = self.precision(k);
            }
            let mean = self.mean(k);
            let scaled: Vec<f64> = precision
                .chunks_exact(d)
                .map(|row| row.iter().zip(mean).map(|(p, m)| p * m).sum())
                .collect();
            let square: f64 = scaled.iter().zip(mean).map(|(p, m)| p * m).sum();
            let half_log_det = if own_covariance { 0.5 * self.log_determinant(k) } else { 0.0 };
            first.push(math::ln(self.weights[k]) - half_log_det - 0.5 * square);
            second.extend(scaled);
            match self.factors {
                Factors::Shared { .. } => {}
                Factors::Diagonal { .. } => {
                    third.extend((0..d).map(|j| -0.5 * precision[j * d + j]))
                }
                Factors::Full { .. } => {
                    for i in 0..d {
                        third.extend((0..i).map(|j| -precision[i * d + j]));
                        third.push(-0.5 * precision[i * d + i]);
                    }
                }
            }
        }
        [first, second, third].concat()
    }
}

impl Gmm {
    /// Parameters from weights, means (component after component), and covariances: one row-major matrix
    /// (known, tied), one per component (full), or variances (diagonal).
    ///
    /// A known covariance may be empty; otherwise it must equal the model's.
    pub fn parameters(
        &self,
        weights: &[f64],
        means: &[f64],
        covariance: &[f64],
    ) -> Result<GmmParameters> {
        let (d, size) = (self.columns(), self.columns() * self.columns());
        let check = |expected: usize, what: &str| {
            let given = covariance.len();
            let fault = || Error::config(format!("{given} numbers given where {what} {expected}"));
            (given == expected).then_some(()).ok_or_else(fault)
        };
        let packed = match &self.settings().covariance {
            Covariance::Known(matrix) => {
                if !covariance.is_empty() && covariance != matrix.as_slice() {
                    return Err(Error::config(
                        "the covariance of the parameters is not the model's known one",
                    )
                    .hint("leave it out, or choose `tied`"));
                }
                self.known_triangle()
            }
            Covariance::Tied => {
                check(size, "a tied covariance needs")?;
                pack_symmetric(covariance, d)
                    .map_err(|e| Error::config(format!("tied covariance: {e}")))?
            }
            Covariance::Diagonal | Covariance::Spherical => {
                check(self.components() * d, "the variances of all components need")?;
                covariance.to_vec()
            }
            Covariance::Full => {
                check(self.components() * size, "full covariances of all components need")?;
                let mut packed = Vec::with_capacity(self.components() * packed_len(d));
                for (k, matrix) in covariance.chunks_exact(size).enumerate() {
                    packed.extend(pack_symmetric(matrix, d).map_err(|e| {
                        Error::config(format!("covariance of component {}: {e}", k + 1))
                    })?);
                }
                packed
            }
        };
        self.assemble(weights.to_vec(), means.to_vec(), packed).map_err(Error::config)
    }

    pub(super) fn covariance_len(&self) -> usize {
        match self.settings().covariance {
            Covariance::Known(_) | Covariance::Tied => self.triangle(),
            _ => self.components() * self.second_len(),
        }
    }

    /// Checks the parts (shapes, finite values, weights, positive definiteness) and factors the
    /// covariances; the error is a message.
    pub(super) fn assemble(
        &self,
        mut weights: Vec<f64>,
        means: Vec<f64>,
        mut covariance: Vec<f64>,
    ) -> Result<GmmParameters, String> {
        let (components, d) = (self.components(), self.columns());
        if weights.len() != components {
            return Err(format!("{} weights given for {components} components", weights.len()));
        }
        if means.len() != components * d {
            return Err(format!(
                "{} numbers given as means of {components} components in {d} columns",
                means.len()
            ));
        }
        check_weights(&mut weights)?;
        if let Some(at) = means.iter().position(|m| !m.is_finite()) {
            return Err(format!(
                "the mean of component {} is {} in column {}; it must be finite",
                at / d + 1,
                means[at],
                at % d + 1
            ));
        }
        if covariance.len() != self.covariance_len() {
            return Err(format!(
                "{} numbers given where the covariances have {}",
                covariance.len(),
                self.covariance_len()
            ));
        }
        if self.settings().covariance == Covariance::Spherical {
            covariance.chunks_exact_mut(d).for_each(equalise);
        }
        let inverse = match &self.known {
            _ if self.settings().covariance.is_diagonal() => {
                check_variances(&covariance, d).map(|()| Vec::new())?
            }
            Some(known) => vec![known.inverse.clone()],
            None => inverse_factors(&covariance, d)?,
        };
        Ok(self.with_factors(weights, means, covariance, inverse))
    }

    /// Parameters from inverse factors, which are positive definite by construction, or from variances if
    /// there are none. A `covariance` that is empty is computed on demand.
    pub(super) fn with_factors(
        &self,
        weights: Vec<f64>,
        means: Vec<f64>,
        covariance: Vec<f64>,
        inverse: Vec<InverseFactor>,
    ) -> GmmParameters {
        let d = self.columns();
        let base = -0.5 * d as f64 * LN_TWO_PI;
        let mut constants = weights.clone();
        math::ln_slice(&mut constants);
        constants.iter_mut().for_each(|c| *c += base);
        let factors = match &inverse[..] {
            [] => diagonal_factors(&covariance, d, &mut constants),
            [one] if self.settings().covariance != Covariance::Full => {
                shared_factors(&weights, &means, one, d, &mut constants)
            }
            each => full_factors(&weights, &means, each, d, &mut constants),
        };
        GmmParameters { columns: d, weights, means, covariance, inverse, factors, constants }
    }
}

/// Replaces the variances of a component by their mean.
pub(super) fn equalise(variances: &mut [f64]) {
    if variances.iter().any(|v| *v != variances[0]) {
        let mean = variances.iter().sum::<f64>() / variances.len() as f64;
        variances.fill(mean);
    }
}

fn inverse_factors(covariance: &[f64], d: usize) -> Result<Vec<InverseFactor>, String> {
    let triangles = covariance.chunks_exact(packed_len(d));
    let many = triangles.len() > 1;
    let name = |k: usize, e: String| if many { format!("component {}: {e}", k + 1) } else { e };
    triangles.enumerate().map(|(k, p)| inverse_factor(p, d).map_err(|e| name(k, e))).collect()
}

/// Checks that weights are positive and sum to 1. Rounding errors, for example of a narrower format, are
/// normalised away; exact sums keep their bits.
fn check_weights(weights: &mut [f64]) -> Result<(), String> {
    if let Some(k) = weights.iter().position(|w| !(*w > 0.0 && w.is_finite())) {
        return Err(format!(
            "the weight of component {} is {}; it must be positive",
            k + 1,
            weights[k]
        ));
    }
    let sum: f64 = weights.iter().sum();
    if (sum - 1.0).abs() > 1e-3 {
        return Err(format!("the weights sum to {sum}, not to 1"));
    }
    if (sum - 1.0).abs() > 1e-12 {
        weights.iter_mut().for_each(|w| *w /= sum);
    }
    Ok(())
}

fn shared_factors(
    weights: &[f64],
    means: &[f64],
    inverse: &InverseFactor,
    d: usize,
    constants: &mut [f64],
) -> Factors {
    constants.iter_mut().for_each(|c| *c -= inverse.half_log_det);
    let centre = mixture_mean(weights, means, d);
    let whitened = whiten_all(&inverse.lower, means, &centre);
    let mut panels = Vec::with_capacity(panels_len(d));
    pack_panels(&inverse.lower, d, &mut panels);
    Factors::Shared { centre, panels, whitened }
}

fn check_variances(variances: &[f64], d: usize) -> Result<(), String> {
    match variances.iter().position(|v| !(*v > 0.0 && v.is_finite())) {
        None => Ok(()),
        Some(at) => Err(format!(
            "the variance of component {} is {} in column {}; it must be positive",
            at / d + 1,
            variances[at],
            at % d + 1
        )),
    }
}

fn diagonal_factors(variances: &[f64], d: usize, constants: &mut [f64]) -> Factors {
    let mut logs = variances.to_vec();
    math::ln_slice(&mut logs);
    for (c, logs) in constants.iter_mut().zip(logs.chunks_exact(d)) {
        *c -= 0.5 * logs.iter().sum::<f64>();
    }
    Factors::Diagonal { scales: variances.iter().map(|v| 1.0 / v.sqrt()).collect() }
}

fn full_factors(
    weights: &[f64],
    means: &[f64],
    inverse: &[InverseFactor],
    d: usize,
    constants: &mut [f64],
) -> Factors {
    let centre = mixture_mean(weights, means, d);
    let mut panels = Vec::with_capacity(weights.len() * panels_len(d));
    let mut offsets = Vec::with_capacity(weights.len() * d.next_multiple_of(GROUP));
    for (k, InverseFactor { lower, half_log_det }) in inverse.iter().enumerate() {
        constants[k] -= half_log_det;
        pack_panels(lower, d, &mut panels);
        whiten(lower, &means[k * d..][..d], &centre, &mut offsets);
        offsets.resize(offsets.len().next_multiple_of(GROUP), 0.0);
    }
    Factors::Full { centre, panels, offsets }
}

/// `sum_k pi_k mu_k`.
fn mixture_mean(weights: &[f64], means: &[f64], d: usize) -> Vec<f64> {
    let mut centre = vec![0.0; d];
    for (w, mean) in weights.iter().zip(means.chunks_exact(d)) {
        for (c, m) in centre.iter_mut().zip(mean) {
            *c += w * m;
        }
    }
    centre
}

/// `W (mean - centre)` for a lower triangle `W` and each of the means.
fn whiten_all(lower: &[f64], means: &[f64], centre: &[f64]) -> Vec<f64> {
    let d = centre.len();
    let (mut differences, mut products) = (vec![[0.0; LANES]; d], vec![[0.0; LANES]; d]);
    let mut whitened = vec![0.0; means.len()];
    let eight = LANES * d;
    for (means, whitened) in means.chunks(eight).zip(whitened.chunks_mut(eight)) {
        for (k, mean) in means.chunks_exact(d).enumerate() {
            for ((x, m), c) in differences.iter_mut().zip(mean).zip(centre) {
                x[k] = m - c;
            }
        }
        kernels::triangular_products_of_eight(lower, &differences, &mut products);
        for (k, whitened) in whitened.chunks_exact_mut(d).enumerate() {
            for (w, x) in whitened.iter_mut().zip(&products) {
                *w = x[k];
            }
        }
    }
    whitened
}

/// Appends `W (mean - centre)` for a lower triangle `W`.
fn whiten(lower: &[f64], mean: &[f64], centre: &[f64], out: &mut Vec<f64>) {
    let mut rest = lower;
    for i in 0..mean.len() {
        let (row, next) = rest.split_at(i + 1);
        rest = next;
        let terms = row.iter().zip(mean).zip(centre);
        out.push(terms.map(|((w, m), c)| w * (m - c)).sum());
    }
}

/// The lower triangle of a square matrix, which must be finite and symmetric to rounding.
pub(super) fn pack_symmetric(matrix: &[f64], d: usize) -> Result<Vec<f64>, String> {
    if matrix.len() != d * d {
        return Err(format!(
            "{} numbers given where a {d} x {d} matrix has {}",
            matrix.len(),
            d * d
        ));
    }
    let mut packed = vec![0.0; packed_len(d)];
    for i in 0..d {
        for j in 0..=i {
            let (below, above) = (matrix[i * d + j], matrix[j * d + i]);
            if !(below.is_finite() && above.is_finite()) {
                return Err(format!("entry ({}, {}) is not a finite number", i + 1, j + 1));
            }
            let scale = (matrix[i * d + i] * matrix[j * d + j]).abs().sqrt();
            if (below - above).abs() > 1e-8 * scale {
                return Err(format!(
                    "not symmetric: entry ({}, {}) is {below}, its mirror image {above}",
                    i + 1,
                    j + 1
                ));
            }
            packed[packed_index(i, j)] = 0.5 * (below + above);
        }
    }
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_whitened_together_as_they_are_alone() {
        for (components, d) in [(1, 1), (3, 2), (8, 5), (10, 20), (17, 9)] {
            let number = |i: usize| ((i * 37 + 11) % 101) as f64 / 7.0 - 6.0;
            let lower: Vec<f64> = (0..packed_len(d)).map(number).collect();
            let means: Vec<f64> = (0..components * d).map(|i| number(i + 5)).collect();
            let centre: Vec<f64> = (0..d).map(|i| number(3 * i)).collect();
            let mut alone = Vec::new();
            for mean in means.chunks_exact(d) {
                whiten(&lower, mean, &centre, &mut alone);
            }
            assert_eq!(whiten_all(&lower, &means, &centre), alone);
        }
    }
}
