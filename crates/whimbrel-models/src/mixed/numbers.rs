//! The numbers of a row given its component: log-density of the observed ones, and conditional moments of
//! the missing ones. Full covariances need one factorisation per pattern of missing numbers and component;
//! diagonal ones are independent of the pattern.

use super::{Mixed, MixedParameters, Numeric};
use crate::mixture::LN_TWO_PI;
use whimbrel_core::linalg::{cholesky, log_det_from_cholesky, solve_lower, solve_lower_transposed};
use whimbrel_core::{Error, Result, Stream, math};

/// The numbers of one component.
pub(super) struct Conditional {
    mean: Vec<f64>,
    form: Form,
}

enum Form {
    Diagonal {
        variances: Vec<f64>,
        /// `-(1/2) ln (2 pi sigma^2)` of each number.
        constants: Vec<f64>,
    },
    Full(Block),
}

/// A full covariance under one pattern.
struct Block {
    /// `-(1/2) (o ln 2 pi + ln det Sigma_OO)`.
    constant: f64,
    /// Indices of observed and of missing numbers.
    observed: Vec<usize>,
    missing: Vec<usize>,
    /// `L` with `Sigma_OO = L L'`.
    root: Vec<f64>,
    /// `Sigma_MO Sigma_OO^-1`, row-major.
    regression: Vec<f64>,
    /// `Sigma_MM - Sigma_MO Sigma_OO^-1 Sigma_OM`, row-major.
    covariance: Vec<f64>,
}

impl Mixed {
    /// Every component's numbers under a pattern; empty without numeric columns.
    pub(super) fn conditionals(
        &self,
        theta: &MixedParameters,
        pattern: &[bool],
    ) -> Result<Vec<Conditional>> {
        let Some(gaussian) = &theta.gaussian else { return Ok(Vec::new()) };
        let d = pattern.len();
        let side = |seen: bool| (0..d).filter(|j| pattern[*j] == seen).collect::<Vec<usize>>();
        let (observed, missing) = (side(true), side(false));
        let build = |k: usize| {
            let mean = gaussian.mean(k).to_vec();
            let form = match self.settings.numeric {
                Numeric::Diagonal => {
                    let variances = gaussian.variances()[k * d..][..d].to_vec();
                    let constant = |v: &f64| -0.5 * (LN_TWO_PI + math::ln(*v));
                    let constants = variances.iter().map(constant).collect();
                    Form::Diagonal { variances, constants }
                }
                Numeric::Full => {
                    let (observed, missing) = (observed.clone(), missing.clone());
                    Form::Full(Block::new(&gaussian.covariance(k), d, observed, missing)?)
                }
            };
            Ok(Conditional { mean, form })
        };
        (0..self.components()).map(build).collect()
    }
}

impl Block {
    fn new(sigma: &[f64], d: usize, observed: Vec<usize>, missing: Vec<usize>) -> Result<Self> {
        let (o, m) = (observed.len(), missing.len());
        let mut root: Vec<f64> =
            observed.iter().flat_map(|i| observed.iter().map(move |j| sigma[i * d + j])).collect();
        cholesky(&mut root, o)
            .map_err(|_| Error::numerical("a covariance is not positive definite"))?;
        let mut regression = Vec::with_capacity(m * o);
        for i in &missing {
            let mut row: Vec<f64> = observed.iter().map(|j| sigma[i * d + j]).collect();
            solve_lower(&root, o, &mut row);
            regression.extend(row);
        }
        let mut covariance = vec![0.0; m * m];
        for (i, a) in missing.iter().enumerate() {
            for (j, b) in missing.iter().enumerate() {
                let (x, y) = (&regression[i * o..][..o], &regression[j * o..][..o]);
                let explained: f64 = x.iter().zip(y).map(|(x, y)| x * y).sum();
                covariance[i * m + j] = sigma[a * d + b] - explained;
            }
        }
        for row in regression.chunks_exact_mut(o.max(1)) {
            solve_lower_transposed(&root, o, row);
        }
        let log_det = if o == 0 { 0.0 } else { log_det_from_cholesky(&root, o) };
        let constant = -0.5 * (o as f64 * LN_TWO_PI + log_det);
        Ok(Self { constant, observed, missing, root, regression, covariance })
    }
}

impl Conditional {
    /// Returns the log-density of a row's observed numbers, and replaces missing ones (NaN) by their
    /// conditional means. `room` is a buffer of twice the length.
    pub(super) fn complete(&self, numbers: &mut [f64], room: &mut [f64]) -> f64 {
        match &self.form {
            Form::Diagonal { variances, constants } => {
                let mut density = 0.0;
                for (j, x) in numbers.iter_mut().enumerate() {
                    if x.is_nan() {
                        *x = self.mean[j];
                        continue;
                    }
                    let shift = *x - self.mean[j];
                    density += constants[j] - 0.5 * shift * shift / variances[j];
                }
                density
            }
            Form::Full(block) => {
                let o = block.observed.len();
                let (shift, rest) = room.split_at_mut(o);
                for (s, j) in shift.iter_mut().zip(&block.observed) {
                    *s = numbers[*j] - self.mean[*j];
                }
                for (i, j) in block.missing.iter().enumerate() {
                    let row = &block.regression[i * o..][..o];
                    let moved: f64 = row.iter().zip(&*shift).map(|(b, s)| b * s).sum();
                    numbers[*j] = self.mean[*j] + moved;
                }
                let z = &mut rest[..o];
                z.copy_from_slice(shift);
                solve_lower(&block.root, o, z);
                block.constant - 0.5 * z.iter().map(|z| z * z).sum::<f64>()
            }
        }
    }

    /// Replaces the missing numbers of a completed row, which are at their conditional means, by a draw.
    pub(super) fn draw(
        &self,
        numbers: &mut [f64],
        seen: &[bool],
        stream: &mut Stream,
    ) -> Result<()> {
        match &self.form {
            Form::Diagonal { variances, .. } => {
                for ((x, _), variance) in
                    numbers.iter_mut().zip(seen).zip(variances).filter(|((_, seen), _)| !**seen)
                {
                    *x += variance.sqrt() * stream.normal();
                }
            }
            Form::Full(Block { missing, covariance, .. }) => {
                let (m, mut root) = (missing.len(), covariance.clone());
                cholesky(&mut root, m)
                    .map_err(|_| Error::numerical("a covariance is not positive definite"))?;
                let mean: Vec<f64> = missing.iter().map(|j| numbers[*j]).collect();
                let mut drawn = vec![0.0; m];
                stream.multivariate_normal(&mean, &root, &mut drawn);
                missing.iter().zip(drawn).for_each(|(j, x)| numbers[*j] = x);
            }
        }
        Ok(())
    }

    /// Adds `r` times the second moments of a completed row, in the layout of the statistic; for full
    /// covariances without that of the missing numbers, which [`add_covariance`](Self::add_covariance)
    /// adds.
    pub(super) fn add_second(&self, r: f64, numbers: &[f64], seen: &[bool], second: &mut [f64]) {
        match &self.form {
            Form::Diagonal { variances, .. } => {
                let each = second.iter_mut().zip(numbers).zip(seen).zip(variances);
                for (((sum, x), seen), variance) in each {
                    *sum += r * (x * x + if *seen { 0.0 } else { *variance });
                }
            }
            Form::Full(_) => {
                let mut rest = second;
                for (i, x) in numbers.iter().enumerate() {
                    let (row, after) = rest.split_at_mut(i + 1);
                    rest = after;
                    let x = r * x;
                    row.iter_mut().zip(numbers).for_each(|(s, y)| *s += x * y);
                }
            }
        }
    }

    /// Adds the conditional covariance of the missing numbers for rows of this summed weight.
    pub(super) fn add_covariance(&self, weight: f64, second: &mut [f64]) {
        let Form::Full(block) = &self.form else { return };
        let m = block.missing.len();
        for (i, a) in block.missing.iter().enumerate() {
            for (j, b) in block.missing.iter().enumerate().take(i + 1) {
                second[a * (a + 1) / 2 + b] += weight * block.covariance[i * m + j];
            }
        }
    }

    /// Whether it depends on the pattern.
    pub(super) fn has_pattern(&self) -> bool {
        matches!(self.form, Form::Full(_))
    }

    /// The conditional variance of a missing number.
    pub(super) fn variance(&self, number: usize) -> f64 {
        match &self.form {
            Form::Diagonal { variances, .. } => variances[number],
            Form::Full(block) => {
                let at = block.missing.iter().position(|j| *j == number);
                at.map_or(0.0, |at| block.covariance[at * (block.missing.len() + 1)])
            }
        }
    }
}
