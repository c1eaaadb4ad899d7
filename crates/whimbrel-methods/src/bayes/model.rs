//! A learner with a personal part.

use super::Soul;
use crate::personal::Shape;
use std::ops::Range;
use std::sync::Arc;
use whimbrel_core::{Error, Key, Result, math};
use whimbrel_nn::{Learner, Role};

/// The personal parameters of a learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The last layer.
    Head,
    All,
}

/// The standard deviation of targets that are numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Noise {
    /// Targets are classes.
    None,
    /// A known value.
    Known(f64),
    /// A shared parameter with this start; its logarithm is the last number of `phi`.
    Learned(f64),
}

/// A learner, its personal part, and the noise.
pub struct Personalised {
    pub learner: Arc<dyn Learner>,
    pub part: Part,
    /// The noise of its targets.
    pub noise: Noise,
    body: Vec<Range<usize>>,
    own: Vec<Range<usize>>,
}

impl Personalised {
    /// Refuses learners with running statistics, which have no posterior and no gradient.
    pub fn new(learner: Arc<dyn Learner>, part: Part, noise: Noise) -> Result<Self> {
        if learner.tensors().iter().any(|tensor| tensor.role == Role::Statistic) {
            let what = format!("{} keeps running statistics of its inputs", learner.name());
            return Err(Error::config(format!("{what}, which fedsoul does not support"))
                .hint("take mlp, cnn or lenet"));
        }
        let shape = Shape::new(&*learner);
        let (body, own) = match part {
            Part::Head => shape.body_and_head(),
            Part::All => (Vec::new(), std::iter::once(0..shape.len).collect()),
        };
        Ok(Self { learner, part, noise, body, own })
    }

    /// Numbers in `z`.
    pub fn personal(&self) -> usize {
        self.own.iter().map(Range::len).sum()
    }

    /// Numbers in `phi`.
    pub fn shared(&self) -> usize {
        self.body_len() + usize::from(self.learns_noise())
    }

    fn body_len(&self) -> usize {
        self.body.iter().map(Range::len).sum()
    }

    /// The lengths of the tensors in `phi`, the noise with the last of them.
    pub fn blocks(&self) -> Vec<usize> {
        let mut blocks: Vec<usize> = match self.part {
            Part::Head => {
                let tensors = self.learner.tensors().iter();
                tensors.filter(|t| t.role != Role::Head).map(whimbrel_nn::Tensor::len).collect()
            }
            Part::All => Vec::new(),
        };
        let noise = usize::from(self.learns_noise());
        match blocks.last_mut() {
            Some(last) => *last += noise,
            None if noise > 0 => blocks.push(noise),
            None => {}
        }
        blocks
    }

    /// Whether the noise is one of the parameters.
    pub fn learns_noise(&self) -> bool {
        matches!(self.noise, Noise::Learned(_))
    }

    /// The noise, or its start.
    pub(super) fn noise_value(&self) -> f64 {
        match self.noise {
            Noise::None => 1.0,
            Noise::Known(noise) | Noise::Learned(noise) => noise,
        }
    }

    /// `phi_0`.
    pub(super) fn start(&self, sums: &[f64], key: Key) -> Result<Vec<f32>> {
        let w = self.learner.start_from(sums, key)?;
        let mut phi: Vec<f32> = self.body.iter().flat_map(|r| &w[r.clone()]).copied().collect();
        if let Noise::Learned(noise) = self.noise {
            phi.push(math::ln(noise) as f32);
        }
        Ok(phi)
    }

    /// The first mean of the prior: `None` for a head on linear features, whose sign is arbitrary, else
    /// the learner's start.
    pub fn prior_mean(&self, key: Key) -> Option<Vec<f32>> {
        let symmetric = self.learner.start_sums_len() > 0;
        let w = self.learner.start(key);
        (!symmetric).then(|| self.own.iter().flat_map(|r| &w[r.clone()]).copied().collect())
    }

    /// Puts `phi` into a learner's parameters.
    pub(super) fn put_shared(&self, w: &mut [f32], phi: &[f32]) {
        let mut at = 0;
        for range in &self.body {
            w[range.clone()].copy_from_slice(&phi[at..at + range.len()]);
            at += range.len();
        }
    }

    /// Puts `z` into them.
    pub(super) fn put_personal(&self, w: &mut [f32], mut z: impl Iterator<Item = f32>) {
        for range in &self.own {
            w[range.clone()].iter_mut().zip(&mut z).for_each(|(w, z)| *w = z);
        }
    }

    /// Adds `weight` times the gradient in `phi`.
    pub(super) fn add_shared(&self, gradient: &[f32], weight: f64, d_phi: &mut [f64]) {
        let places = self.body.iter().flat_map(|range| &gradient[range.clone()]);
        d_phi.iter_mut().zip(places).for_each(|(sum, g)| *sum += weight * f64::from(*g));
    }

    /// Copies the gradient in `z`, times `scale`.
    pub(super) fn copy_personal(&self, gradient: &[f32], scale: f64, out: &mut [f64]) {
        let places = self.own.iter().flat_map(|range| &gradient[range.clone()]);
        out.iter_mut().zip(places).for_each(|(out, g)| *out = scale * f64::from(*g));
    }

    /// The noise in `phi`, if it is learned.
    pub fn learned_noise(&self, phi: &[f32]) -> Option<f64> {
        let log = phi.get(self.body_len()).filter(|_| self.learns_noise())?;
        Some(math::exp(f64::from(*log)))
    }
}

impl Soul {
    /// The noise at `theta` in round `k`.
    pub(super) fn noise_of(&self, theta: &[f32], k: u32) -> f64 {
        let learned = self.model.learned_noise(&theta[..self.model.shared()]);
        learned.unwrap_or_else(|| self.noise_at(k))
    }
}
