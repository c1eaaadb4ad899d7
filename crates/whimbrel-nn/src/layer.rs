//! What a layer is: a map of activations that can be taken back.
//!
//! Activations lie as `[channel][row][column][sample]`, the samples padded to a multiple of 16, so that
//! loops over samples are unit-stride and a product's columns are pixels and samples. What a padded
//! sample holds is finite and its derivative zero, so that it adds nothing to any sum.

use whimbrel_core::Key;

use crate::Tensor;

/// The lengths of one sample's activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub channels: usize,
    pub rows: usize,
    pub columns: usize,
}

impl Shape {
    /// So many numbers.
    pub fn flat(channels: usize) -> Self {
        Self { channels, rows: 1, columns: 1 }
    }

    /// Pixels of a channel.
    pub fn pixels(self) -> usize {
        self.rows * self.columns
    }

    /// Numbers of a sample.
    pub fn len(self) -> usize {
        self.channels * self.pixels()
    }
}

/// What all layers of one pass share.
#[derive(Clone, Copy)]
pub(crate) struct Pass {
    /// Samples.
    pub samples: usize,
    /// Samples with padding.
    pub padded: usize,
    /// Whether dropout is drawn and statistics are those of the batch.
    pub training: bool,
    /// What the layer draws from.
    pub key: Key,
}

impl Pass {
    /// The same for a part of the layer.
    pub fn child(self, part: usize) -> Self {
        Self { key: self.key.child(part as u64), ..self }
    }
}

/// What the forward pass left for the backward pass.
#[derive(Clone, Copy)]
pub(crate) struct Tape<'a> {
    /// The layer's inputs.
    pub x: &'a [f32],
    /// Its outputs.
    pub y: &'a [f32],
    /// What it kept beside them.
    pub kept: &'a [f32],
}

/// A layer. The lengths of what it is given are those it stated; `work` is working memory.
pub(crate) trait Layer: Send + Sync {
    /// One sample's outputs.
    fn output(&self) -> Shape;

    /// Its tensors, in the order of its part of the flat vector.
    fn tensors(&self) -> Vec<Tensor> {
        Vec::new()
    }

    /// Draws its parameters.
    fn start(&self, _key: Key, _w: &mut [f32]) {}

    /// Numbers kept for the backward pass.
    fn kept(&self, _padded: usize) -> usize {
        0
    }

    /// Numbers of working memory.
    fn work(&self, _padded: usize) -> usize {
        0
    }

    /// Whether a sample's outputs depend on the other samples.
    fn mixes_samples(&self) -> bool {
        false
    }

    /// Sets `y`.
    fn forward(
        &self,
        pass: Pass,
        w: &[f32],
        x: &[f32],
        y: &mut [f32],
        kept: &mut [f32],
        work: &mut [f32],
    );

    /// With the derivative of the outputs in `dy`, which may be used up: adds that of the parameters to
    /// `dw` and sets that of the inputs, where it is wanted.
    #[allow(clippy::too_many_arguments)]
    fn backward(
        &self,
        pass: Pass,
        w: &[f32],
        tape: Tape<'_>,
        dy: &mut [f32],
        dx: Option<&mut [f32]>,
        dw: &mut [f32],
        work: &mut [f32],
    );

    /// The outputs by their definition.
    #[cfg(test)]
    fn reference(&self, pass: Pass, w: &[f64], x: &[f64]) -> Vec<f64>;
}

/// Uniform numbers in `(-bound, bound)`.
pub(crate) fn fill_uniform(key: Key, bound: f64, w: &mut [f32]) {
    let mut stream = key.stream();
    w.iter_mut().for_each(|w| *w = ((2.0 * stream.uniform_open() - 1.0) * bound) as f32);
}

/// Normal numbers with mean 0.
pub(crate) fn fill_normal(key: Key, deviation: f64, w: &mut [f32]) {
    let mut stream = key.stream();
    let normal = |uniform: f64| whimbrel_core::math::normal_quantile(uniform);
    w.iter_mut().for_each(|w| *w = (normal(stream.uniform_open()) * deviation) as f32);
}
