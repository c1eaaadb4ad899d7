//! Layers: maps of activations with a forward and a backward pass.
//!
//! Activations lie as `[channel][row][column][sample]`, the samples padded to a multiple of 16, so that
//! loops over samples are unit-stride and a product's columns are pixels and samples. Padded samples
//! hold finite numbers and have zero derivatives, so they add nothing to any sum.

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
    /// A vector without rows and columns.
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

/// Facts of one pass that all layers share.
#[derive(Clone, Copy)]
pub(crate) struct Pass {
    pub samples: usize,
    /// Samples with padding.
    pub padded: usize,
    /// Whether statistics are those of the batch.
    pub training: bool,
    /// Whether dropout is drawn.
    pub dropout: bool,
    /// The key of the layer's random numbers.
    pub key: Key,
}

impl Pass {
    /// The same for a part of the layer.
    pub fn child(self, part: usize) -> Self {
        Self { key: self.key.child(part as u64), ..self }
    }
}

/// The arguments of a forward pass.
pub(crate) struct Forward<'a> {
    pub w: &'a [f32],
    pub x: &'a [f32],
    pub y: &'a mut [f32],
    /// [`Layer::kept`] numbers for the backward pass.
    pub kept: &'a mut [f32],
    pub work: &'a mut [f32],
}

/// The arguments of a backward pass: those of the forward pass with its results, and the derivatives.
pub(crate) struct Backward<'a> {
    pub w: &'a [f32],
    pub x: &'a [f32],
    pub y: &'a [f32],
    pub kept: &'a [f32],
    /// The derivative of the outputs; its contents may be overwritten.
    pub dy: &'a mut [f32],
    /// The derivative of the inputs, where it is needed.
    pub dx: Option<&'a mut [f32]>,
    /// The derivative of the parameters.
    pub dw: &'a mut [f32],
    pub work: &'a mut [f32],
}

/// A layer. The caller provides slices of the lengths that the layer states.
pub(crate) trait Layer: Send + Sync {
    /// One sample's outputs.
    fn output(&self) -> Shape;

    /// The layer's tensors, in the order of its part of the flat vector.
    fn tensors(&self) -> Vec<Tensor> {
        Vec::new()
    }

    /// Draws the initial parameters.
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

    /// Sets `y` and `kept`.
    fn forward(&self, pass: Pass, given: Forward<'_>);

    /// Adds the derivative of the parameters to `dw` and sets `dx`.
    fn backward(&self, pass: Pass, given: Backward<'_>);

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
