//! Priors `p(z | beta)` of a personal part `z`, with parameters `beta` in unconstrained coordinates.
//!
//! | [`Prior`] | `beta`, in this order |
//! |---|---|
//! | diagonal | mean (`d`), log-scales (`d`) |
//! | full | mean (`d`), the lower Cholesky factor `L` of the covariance row by row (`d (d + 1) / 2`), its diagonal as logarithms |
//! | mixture of `K` | logits of the weights (`K`), then mean (`d`) and log-scales (`d`) of each component |
//!
//! [`Prior::at`] precomputes everything that depends on `beta` alone; a chain evaluates the resulting
//! [`Density`] at every step.

mod density;
mod natural;

pub use density::{Density, Marginal};

use whimbrel_core::{Error, Key, Result, linalg::packed_len, math, vector};

/// A family of distributions of `z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prior {
    len: usize,
    shape: Shape,
}

/// The shape of the distributions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// A Gaussian with independent coordinates.
    #[default]
    Diagonal,
    /// A Gaussian with any covariance.
    Full,
    /// A mixture of Gaussians with independent coordinates.
    Mixture { components: usize },
}

impl Prior {
    /// The names of all shapes in jobs.
    pub const NAMES: [&str; 3] = ["diagonal", "full", "mixture"];

    /// Distributions of `len` coordinates; refuses zero coordinates or zero components.
    pub fn new(len: usize, shape: Shape) -> Result<Self> {
        if len == 0 {
            return Err(Error::config("a prior needs at least one coordinate"));
        }
        if shape == (Shape::Mixture { components: 0 }) {
            return Err(Error::config("a mixture needs at least one component"));
        }
        Ok(Self { len, shape })
    }

    /// The shape's name in jobs.
    pub fn name(&self) -> &'static str {
        match self.shape {
            Shape::Diagonal => "diagonal",
            Shape::Full => "full",
            Shape::Mixture { .. } => "mixture",
        }
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The dimension of `z`.
    pub fn dimension(&self) -> usize {
        self.len
    }

    /// Length of `beta`.
    pub fn parameters(&self) -> usize {
        let d = self.len;
        match self.shape {
            Shape::Diagonal => 2 * d,
            Shape::Full => d + packed_len(d),
            Shape::Mixture { components } => components * (1 + 2 * d),
        }
    }

    /// Initial parameters: mean zero and this scale in every coordinate. The means of several mixture
    /// components are drawn with that scale, since equal components would stay equal.
    pub fn start(&self, scale: f64, key: Key) -> Result<Vec<f64>> {
        if !(scale > 0.0 && scale.is_finite()) {
            return Err(Error::config(format!("improper prior: {scale} is not a positive scale")));
        }
        let (d, log) = (self.len, math::ln(scale));
        let mut beta = vec![0.0; self.parameters()];
        match self.shape {
            Shape::Diagonal => beta[d..].fill(log),
            Shape::Full => (0..d).for_each(|i| beta[d + packed_len(i) + i] = log),
            Shape::Mixture { components } => {
                let mut stream = key.stream();
                for part in beta[components..].chunks_exact_mut(2 * d) {
                    if components > 1 {
                        stream.fill_normal(&mut part[..d]);
                        part[..d].iter_mut().for_each(|m| *m *= scale);
                    }
                    part[d..].fill(log);
                }
            }
        }
        Ok(beta)
    }

    /// Refuses parameters that are not finite, and scales that are zero or infinite, for which the prior is
    /// improper.
    pub fn validate(&self, beta: &[f64]) -> Result<()> {
        assert_eq!(beta.len(), self.parameters(), "lengths differ");
        if let Some(at) = beta.iter().position(|b| !b.is_finite()) {
            let what = format!("improper prior: parameter {} is {}", at + 1, beta[at]);
            return Err(Error::numerical(what));
        }
        let d = self.len;
        let check = |coordinate: usize, log: f64| {
            // Gradients contain precisions in single precision, which bounds the squares of scales.
            if (-40.0..=40.0).contains(&log) {
                return Ok(());
            }
            let scale = if log < 0.0 { "zero" } else { "infinite" };
            Err(Error::numerical(format!(
                "improper prior: the scale of coordinate {} is {scale} (its logarithm is {log}); a smaller \
                 step of the prior's parameters may do",
                coordinate + 1
            )))
        };
        let mut scales = self.log_scales().into_iter().enumerate();
        scales.try_for_each(|(j, at)| check(j % d, beta[at]))
    }

    /// Projects `beta` onto a ball around zero. Entries of `L` are measured relative to the diagonal of
    /// their row, so that the unit of `z` enters through its logarithm alone.
    pub fn project(&self, beta: &mut [f64], radius: f64) {
        let rows = if self.shape == Shape::Full { self.len } else { 0 };
        let scale = |beta: &mut [f64], sign: f64| {
            for i in 1..rows {
                let (entries, log) = beta[self.len + packed_len(i)..][..i + 1].split_at_mut(i);
                entries.iter_mut().for_each(|l| *l *= math::exp(sign * log[0]));
            }
        };
        let mut free = beta.to_vec();
        scale(&mut free, -1.0);
        let norm = vector::norm2_squared(&free).sqrt();
        if norm > radius {
            free.iter_mut().for_each(|b| *b *= radius / norm);
            scale(&mut free, 1.0);
            beta.copy_from_slice(&free);
        }
    }

    /// Indices of the log-scales in `beta`: all coordinates, component after component.
    pub fn log_scales(&self) -> Vec<usize> {
        let d = self.len;
        match self.shape {
            Shape::Diagonal => (d..2 * d).collect(),
            Shape::Full => (0..d).map(|j| d + packed_len(j) + j).collect(),
            Shape::Mixture { components } => {
                let of = |part: usize| components + (2 * part + 1) * d;
                (0..components).flat_map(|part| of(part)..of(part) + d).collect()
            }
        }
    }

    /// The distribution with these parameters, [validated](Self::validate) and ready to evaluate.
    pub fn at(&self, beta: &[f64]) -> Result<Density> {
        self.validate(beta)?;
        Ok(Density::new(self, beta))
    }
}
