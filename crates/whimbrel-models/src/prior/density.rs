//! A prior with fixed parameters, ready to evaluate.

use super::{Prior, Shape};
use crate::mixture::log_sum_exp;
use whimbrel_core::linalg::{self, packed_len};
use whimbrel_core::{Stream, math};

/// `p(z | beta)` for one `beta`.
///
/// Gradients are *added* to the caller's vector, so that they accumulate with those of a likelihood or over
/// a chain. Evaluations do not allocate.
#[derive(Clone, Debug)]
pub struct Density {
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    Full(Full),
    /// A diagonal Gaussian is a mixture of one component without a weight parameter.
    Mixture(GaussianMixture),
}

#[derive(Clone, Debug)]
struct Full {
    mean: Vec<f64>,
    /// The lower Cholesky factor of the covariance.
    factor: Vec<f64>,
    /// `-ln p` at the mean.
    constant: f64,
    /// `L^-1 (z - mean)` and `L^-T` of that.
    whitened: Vec<f64>,
    pulled: Vec<f64>,
}

#[derive(Clone, Debug)]
struct GaussianMixture {
    parts: Vec<Component>,
    /// Number of logits among the parameters: 0 for a single Gaussian.
    logits: usize,
    /// `ln(weight N(z))`, then the probability of each component given `z`.
    shares: Vec<f64>,
}

#[derive(Clone, Debug)]
struct Component {
    weight: f64,
    mean: Vec<f64>,
    precision: Vec<f64>,
    /// `-ln(weight N(mean))`
    constant: f64,
}

/// A Gaussian component in two coordinates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Marginal {
    pub weight: f64,
    pub mean: [f64; 2],
    pub covariance: [[f64; 2]; 2],
}

/// `ln(2 pi) / 2`
const HALF_LN_TAU: f64 = 0.918_938_533_204_672_7;
/// Power iterations for the largest eigenvalue of a covariance.
const POWER_ITERATIONS: usize = 30;

impl Density {
    pub(super) fn new(prior: &Prior, beta: &[f64]) -> Self {
        let d = prior.len;
        let form = match prior.shape {
            Shape::Diagonal => Form::Mixture(GaussianMixture::new(d, 0, beta)),
            Shape::Mixture { components } => {
                Form::Mixture(GaussianMixture::new(d, components, beta))
            }
            Shape::Full => Form::Full(Full::new(prior, beta)),
        };
        Self { form }
    }

    /// Adds the gradient of `-ln p(z | beta)` in `z` and returns the value, constants included.
    pub fn potential_and_gradient(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
        match &mut self.form {
            Form::Full(full) => {
                let value = full.whiten(z);
                gradient.iter_mut().zip(&full.pulled).for_each(|(g, q)| *g += q);
                value
            }
            Form::Mixture(mixture) => {
                let value = mixture.share(z);
                for (part, share) in mixture.parts.iter().zip(&mixture.shares) {
                    let terms = z.iter().zip(&part.mean).zip(&part.precision);
                    for (g, ((z, m), p)) in gradient.iter_mut().zip(terms) {
                        *g += share * (p * (z - m));
                    }
                }
                value
            }
        }
    }

    /// Adds `weight` times the gradient of `-ln p(z | beta)` in `beta`.
    pub fn add_parameter_gradient(&mut self, z: &[f64], weight: f64, gradient: &mut [f64]) {
        match &mut self.form {
            Form::Full(full) => full.add_parameter_gradient(z, weight, gradient),
            Form::Mixture(mixture) => mixture.add_parameter_gradient(z, weight, gradient),
        }
    }

    pub fn draw(&self, stream: &mut Stream, z: &mut [f64]) {
        match &self.form {
            Form::Full(full) => stream.multivariate_normal(&full.mean, &full.factor, z),
            Form::Mixture(mixture) => {
                let part = mixture.pick(stream);
                stream.fill_normal(z);
                for (z, (m, p)) in z.iter_mut().zip(part.mean.iter().zip(&part.precision)) {
                    *z = m + *z / p.sqrt();
                }
            }
        }
    }

    pub fn mean(&self) -> Vec<f64> {
        match &self.form {
            Form::Full(full) => full.mean.clone(),
            Form::Mixture(mixture) => mixture.average(|part, j| part.mean[j]),
        }
    }

    /// The variance of each coordinate, used as a preconditioner.
    pub fn variances(&self) -> Vec<f64> {
        match &self.form {
            Form::Full(full) => {
                let d = full.mean.len();
                let row = |i: usize| &full.factor[i * d..][..i + 1];
                (0..d).map(|i| row(i).iter().map(|l| l * l).sum()).collect()
            }
            Form::Mixture(mixture) => {
                let mean = mixture.average(|part, j| part.mean[j]);
                mixture
                    .average(|part, j| 1.0 / part.precision[j] + (part.mean[j] - mean[j]).powi(2))
            }
        }
    }

    /// The distribution of two coordinates, component by component.
    pub fn marginals(&self, i: usize, j: usize) -> Vec<Marginal> {
        match &self.form {
            Form::Full(full) => {
                let d = full.mean.len();
                let row = |i: usize| &full.factor[i * d..][..d];
                let entry = |i: usize, j: usize| whimbrel_core::vector::dot(row(i), row(j));
                let covariance = [[entry(i, i), entry(i, j)], [entry(j, i), entry(j, j)]];
                vec![Marginal { weight: 1.0, mean: [full.mean[i], full.mean[j]], covariance }]
            }
            Form::Mixture(mixture) => {
                let one = |part: &Component| Marginal {
                    weight: part.weight,
                    mean: [part.mean[i], part.mean[j]],
                    covariance: [[1.0 / part.precision[i], 0.0], [0.0, 1.0 / part.precision[j]]],
                };
                mixture.parts.iter().map(one).collect()
            }
        }
    }

    /// A bound on the largest eigenvalue of `D^(1/2) H D^(1/2)`, `H` the Hessian of `-ln p` and `D` a diagonal
    /// matrix, by default the identity: the largest preconditioned precision.
    pub fn curvature_through(&self, diagonal: Option<&[f64]>) -> f64 {
        match &self.form {
            Form::Full(full) => {
                let precision = full.precision_through(diagonal);
                linalg::largest_eigenvalue(&precision, full.mean.len()).unwrap_or(f64::INFINITY)
            }
            Form::Mixture(mixture) => {
                let entry = |j: usize| diagonal.map_or(1.0, |diagonal| diagonal[j]);
                let of = |part: &'_ Component| -> f64 {
                    let each = part.precision.iter().enumerate().map(|(j, p)| p * entry(j));
                    each.fold(0.0, f64::max)
                };
                mixture.parts.iter().map(of).fold(0.0, f64::max)
            }
        }
    }

    /// The bound without a preconditioner.
    pub fn curvature(&self) -> f64 {
        self.curvature_through(None)
    }

    /// The largest eigenvalue of `D^(-1/2) C D^(-1/2)`, `C` the covariance and `D` a diagonal matrix, by
    /// default the identity; for a mixture the largest diagonal entry.
    pub fn widest_through(&self, diagonal: Option<&[f64]>) -> f64 {
        match &self.form {
            Form::Full(full) => full.widest_through(diagonal),
            Form::Mixture(_) => {
                let entry = |j: usize| diagonal.map_or(1.0, |diagonal| diagonal[j]);
                let each = self.variances().into_iter().enumerate().map(|(j, v)| v / entry(j));
                each.fold(0.0, f64::max)
            }
        }
    }
}

impl Full {
    fn new(prior: &Prior, beta: &[f64]) -> Self {
        let d = prior.len;
        let logs: f64 = prior.log_scales().into_iter().map(|at| beta[at]).sum();
        Self {
            mean: beta[..d].to_vec(),
            factor: prior.factor(beta),
            constant: d as f64 * HALF_LN_TAU + logs,
            whitened: vec![0.0; d],
            pulled: vec![0.0; d],
        }
    }

    /// `D^(1/2) P D^(1/2)`, `P` the precision.
    fn precision_through(&self, diagonal: Option<&[f64]>) -> Vec<f64> {
        let d = self.mean.len();
        let mut inverse = self.factor.clone();
        linalg::invert_lower(&mut inverse, d);
        if let Some(diagonal) = diagonal {
            let roots: Vec<f64> = diagonal.iter().map(|d| d.sqrt()).collect();
            for row in inverse.chunks_exact_mut(d) {
                row.iter_mut().zip(&roots).for_each(|(l, root)| *l *= root);
            }
        }
        let mut transposed = vec![0.0; d * d];
        (0..d * d).for_each(|at| transposed[at % d * d + at / d] = inverse[at]);
        let mut precision = vec![0.0; d * d];
        linalg::matmul(&mut precision, &transposed, &inverse, d, d, d);
        precision
    }

    /// The largest eigenvalue by power iteration, which converges from below.
    fn widest_through(&self, diagonal: Option<&[f64]>) -> f64 {
        let d = self.mean.len();
        let entry = |j: usize| diagonal.map_or(1.0, |diagonal| diagonal[j]);
        let row = |i: usize| &self.factor[i * d..][..i + 1];
        let variance = |i: usize| row(i).iter().map(|l| l * l).sum::<f64>() / entry(i);
        let first = (0..d).fold(0, |most, i| if variance(i) > variance(most) { i } else { most });
        // The largest squared singular value of D^(-1/2) L, from its longest row.
        let (mut found, mut v) = (0.0, self.factor[first * d..][..d].to_vec());
        for _ in 0..POWER_ITERATIONS {
            let norm = whimbrel_core::vector::norm2_squared(&v).sqrt();
            v.iter_mut().for_each(|v| *v /= norm);
            let mut next = vec![0.0; d];
            for i in 0..d {
                let along = whimbrel_core::vector::dot(row(i), &v[..i + 1]) / entry(i);
                whimbrel_core::vector::axpy(&mut next[..i + 1], along, row(i));
            }
            found = whimbrel_core::vector::dot(&next, &v);
            v = next;
        }
        found
    }

    fn whiten(&mut self, z: &[f64]) -> f64 {
        let d = self.mean.len();
        for (w, (z, m)) in self.whitened.iter_mut().zip(z.iter().zip(&self.mean)) {
            *w = z - m;
        }
        linalg::solve_lower(&self.factor, d, &mut self.whitened);
        self.pulled.copy_from_slice(&self.whitened);
        linalg::solve_lower_transposed(&self.factor, d, &mut self.pulled);
        0.5 * whimbrel_core::vector::norm2_squared(&self.whitened) + self.constant
    }

    /// With `w = L^-1 (z - m)` and `q = L^-T w`: `-q` for the mean, `-q_i w_j` for `L_ij`, and
    /// `1 - q_i w_i L_ii` for the logarithm of `L_ii`.
    fn add_parameter_gradient(&mut self, z: &[f64], weight: f64, gradient: &mut [f64]) {
        let d = self.mean.len();
        self.whiten(z);
        let (mean, rows) = gradient.split_at_mut(d);
        mean.iter_mut().zip(&self.pulled).for_each(|(g, q)| *g -= weight * q);
        for (i, q) in self.pulled.iter().enumerate() {
            let row = &mut rows[packed_len(i)..][..i + 1];
            row.iter_mut().zip(&self.whitened[..i]).for_each(|(g, w)| *g -= weight * q * w);
            row[i] += weight * (1.0 - q * self.whitened[i] * self.factor[i * d + i]);
        }
    }
}

impl GaussianMixture {
    fn new(d: usize, logits: usize, beta: &[f64]) -> Self {
        let (logit, rest) = beta.split_at(logits);
        let largest = logit.iter().fold(f64::NEG_INFINITY, |m, l| l.max(m));
        let total: f64 = logit.iter().map(|l| math::exp(l - largest)).sum();
        let parts = rest.chunks_exact(2 * d).enumerate().map(|(k, part)| {
            let (mean, logs) = part.split_at(d);
            let log_weight = logit.get(k).map_or(0.0, |l| l - largest - math::ln(total));
            Component {
                weight: math::exp(log_weight),
                mean: mean.to_vec(),
                precision: logs.iter().map(|log| math::exp(-2.0 * log)).collect(),
                constant: d as f64 * HALF_LN_TAU + logs.iter().sum::<f64>() - log_weight,
            }
        });
        let parts: Vec<Component> = parts.collect();
        Self { shares: vec![0.0; parts.len()], logits, parts }
    }

    /// Sets the shares and returns `-ln p(z)`.
    fn share(&mut self, z: &[f64]) -> f64 {
        let mut largest = f64::NEG_INFINITY;
        for (part, share) in self.parts.iter().zip(&mut self.shares) {
            let terms = z.iter().zip(&part.mean).zip(&part.precision);
            let square: f64 = terms.map(|((z, m), p)| p * ((z - m) * (z - m))).sum();
            *share = -0.5 * square - part.constant;
            largest = share.max(largest);
        }
        if self.shares.len() == 1 {
            self.shares[0] = 1.0;
            return -largest;
        }
        -log_sum_exp(&mut self.shares)
    }

    fn add_parameter_gradient(&mut self, z: &[f64], weight: f64, gradient: &mut [f64]) {
        self.share(z);
        let (logits, rest) = gradient.split_at_mut(self.logits);
        for (logit, (part, share)) in logits.iter_mut().zip(self.parts.iter().zip(&self.shares)) {
            *logit += weight * (part.weight - share);
        }
        let each = rest.chunks_exact_mut(2 * z.len()).zip(self.parts.iter().zip(&self.shares));
        for (gradient, (part, share)) in each {
            let (means, logs) = gradient.split_at_mut(z.len());
            let share = weight * share;
            for (j, z) in z.iter().enumerate() {
                let pull = part.precision[j] * (z - part.mean[j]);
                means[j] -= share * pull;
                logs[j] += share * (1.0 - pull * (z - part.mean[j]));
            }
        }
    }

    fn pick(&self, stream: &mut Stream) -> &Component {
        let mut rest = if self.parts.len() > 1 { stream.uniform() } else { 0.0 };
        let found = self.parts.iter().find(|part| {
            rest -= part.weight;
            rest < 0.0
        });
        found.unwrap_or(&self.parts[self.parts.len() - 1])
    }

    fn average(&self, of: impl Fn(&Component, usize) -> f64) -> Vec<f64> {
        let each = |j| self.parts.iter().map(|part| part.weight * of(part, j)).sum();
        (0..self.parts[0].mean.len()).map(each).collect()
    }
}
