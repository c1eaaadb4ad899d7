//! Layers one after the other.

use crate::Tensor;
use crate::layer::{Backward, Forward, Layer, Pass, Shape};
use whimbrel_core::Key;

/// The outputs of each layer are the inputs of the next; all are kept for the backward pass, each
/// after the numbers that its layer keeps.
pub(crate) struct Chain {
    layers: Vec<Box<dyn Layer>>,
    /// Parameters of each layer.
    parameters: Vec<usize>,
    output: Shape,
}

impl Chain {
    /// A chain of at least one layer.
    pub fn new(layers: Vec<Box<dyn Layer>>) -> Self {
        let tensors = layers.iter().map(|layer| layer.tensors());
        let parameters = tensors.map(|tensors| tensors.iter().map(Tensor::len).sum()).collect();
        let output = layers.last().map_or(Shape::flat(0), |layer| layer.output());
        Self { layers, parameters, output }
    }

    /// Kept numbers of a layer's outputs: none for the last layer.
    fn outputs(&self, i: usize, padded: usize) -> usize {
        if i + 1 < self.layers.len() { self.layers[i].output().len() * padded } else { 0 }
    }

    /// The inputs of the last layer among the kept numbers; `None` for a chain of one layer.
    pub fn inputs_of_last<'a>(&self, padded: usize, kept: &'a [f32]) -> Option<&'a [f32]> {
        let (last, below) = self.layers.split_last()?;
        let end = kept.len() - last.kept(padded);
        let inputs = self.outputs(below.len().checked_sub(1)?, padded);
        Some(&kept[end - inputs..end])
    }

    /// Length of the longest derivative between two layers.
    fn longest(&self, padded: usize) -> usize {
        (0..self.layers.len()).map(|i| self.outputs(i, padded)).max().unwrap_or(0)
    }
}

impl Layer for Chain {
    fn output(&self) -> Shape {
        self.output
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.layers.iter().flat_map(|layer| layer.tensors()).collect()
    }

    fn start(&self, key: Key, mut w: &mut [f32]) {
        for (i, (layer, count)) in self.layers.iter().zip(&self.parameters).enumerate() {
            let (mine, rest) = w.split_at_mut(*count);
            layer.start(key.child(i as u64), mine);
            w = rest;
        }
    }

    fn kept(&self, padded: usize) -> usize {
        let layers = self.layers.iter().enumerate();
        layers.map(|(i, layer)| layer.kept(padded) + self.outputs(i, padded)).sum()
    }

    fn work(&self, padded: usize) -> usize {
        let most = self.layers.iter().map(|layer| layer.work(padded)).max().unwrap_or(0);
        2 * self.longest(padded) + most
    }

    fn mixes_samples(&self) -> bool {
        self.layers.iter().any(|layer| layer.mixes_samples())
    }

    fn forward(&self, pass: Pass, given: Forward<'_>) {
        let Forward { mut w, mut x, y, mut kept, work } = given;
        let n = pass.padded;
        for (i, layer) in self.layers.iter().enumerate() {
            let (own, w_rest) = w.split_at(self.parameters[i]);
            let (mine, rest) = kept.split_at_mut(layer.kept(n));
            let (outputs, rest) = rest.split_at_mut(self.outputs(i, n));
            let is_last = i + 1 == self.layers.len();
            let y = if is_last { &mut *y } else { &mut *outputs };
            let here = Forward { w: own, x, y, kept: mine, work: &mut *work };
            layer.forward(pass.child(i), here);
            (w, x, kept) = (w_rest, outputs, rest);
        }
    }

    fn backward(&self, pass: Pass, given: Backward<'_>) {
        let Backward { mut w, x: first_x, mut y, mut kept, dy, mut dx, mut dw, work } = given;
        let n = pass.padded;
        let (mut above, work) = work.split_at_mut(self.longest(n));
        let (mut below, work) = work.split_at_mut(self.longest(n));
        for (i, layer) in self.layers.iter().enumerate().rev() {
            let (w_rest, own) = w.split_at(w.len() - self.parameters[i]);
            let (dw_rest, d_own) = dw.split_at_mut(dw.len() - self.parameters[i]);
            // `kept` ends with this layer's own numbers, before them the outputs of the layer below.
            let (rest, mine) = kept.split_at(kept.len() - layer.kept(n));
            let inputs = if i == 0 { 0 } else { self.outputs(i - 1, n) };
            let (rest, x) = rest.split_at(rest.len() - inputs);
            let x = if i == 0 { first_x } else { x };
            let is_last = i + 1 == self.layers.len();
            let here = Backward {
                w: own,
                x,
                y,
                kept: mine,
                dy: if is_last { &mut *dy } else { &mut above[..self.outputs(i, n)] },
                dx: if i == 0 { dx.take() } else { Some(&mut below[..inputs]) },
                dw: d_own,
                work: &mut *work,
            };
            layer.backward(pass.child(i), here);
            (w, dw, kept, y) = (w_rest, dw_rest, rest, x);
            std::mem::swap(&mut above, &mut below);
        }
    }

    #[cfg(test)]
    fn reference(&self, pass: Pass, w: &[f64], x: &[f64]) -> Vec<f64> {
        super::reference::chain(pass, &self.layers, &self.parameters, w, x)
    }
}
