//! Layers one after the other.

use crate::Tensor;
use crate::layer::{Layer, Pass, Shape, Tape};
use whimbrel_core::Key;

/// The outputs of each layer are the inputs of the next; all are kept for the backward pass, after
/// what the layer itself keeps.
pub(crate) struct Chain {
    layers: Vec<Box<dyn Layer>>,
    /// Parameters of each layer.
    parameters: Vec<usize>,
    output: Shape,
}

impl Chain {
    /// Of at least one layer.
    pub fn new(layers: Vec<Box<dyn Layer>>) -> Self {
        let tensors = layers.iter().map(|layer| layer.tensors());
        let parameters = tensors.map(|tensors| tensors.iter().map(Tensor::len).sum()).collect();
        let output = layers.last().map_or(Shape::flat(0), |layer| layer.output());
        Self { layers, parameters, output }
    }

    /// Numbers that the outputs of a layer take in what is kept: none for the last.
    fn outputs(&self, i: usize, padded: usize) -> usize {
        if i + 1 < self.layers.len() { self.layers[i].output().len() * padded } else { 0 }
    }

    /// The inputs of the last layer, in what a forward pass kept; none where it is the only one.
    pub fn inputs_of_last<'a>(&self, padded: usize, kept: &'a [f32]) -> Option<&'a [f32]> {
        let (last, below) = self.layers.split_last()?;
        let end = kept.len() - last.kept(padded);
        let inputs = self.outputs(below.len().checked_sub(1)?, padded);
        Some(&kept[end - inputs..end])
    }

    /// Numbers of the longest derivative between two layers.
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

    fn forward(
        &self,
        pass: Pass,
        mut w: &[f32],
        x: &[f32],
        y: &mut [f32],
        mut kept: &mut [f32],
        work: &mut [f32],
    ) {
        let (n, mut x) = (pass.padded, x);
        for (i, layer) in self.layers.iter().enumerate() {
            let (w_here, w_rest) = w.split_at(self.parameters[i]);
            let (mine, rest) = kept.split_at_mut(layer.kept(n));
            let (outputs, rest) = rest.split_at_mut(self.outputs(i, n));
            let pass = pass.child(i);
            if i + 1 < self.layers.len() {
                layer.forward(pass, w_here, x, outputs, mine, work);
            } else {
                layer.forward(pass, w_here, x, y, mine, work);
            }
            (w, x, kept) = (w_rest, outputs, rest);
        }
    }

    fn backward(
        &self,
        pass: Pass,
        mut w: &[f32],
        tape: Tape<'_>,
        dy: &mut [f32],
        mut dx: Option<&mut [f32]>,
        mut dw: &mut [f32],
        work: &mut [f32],
    ) {
        let n = pass.padded;
        let (first, work) = work.split_at_mut(self.longest(n));
        let (second, work) = work.split_at_mut(self.longest(n));
        let (mut above, mut below) = (first, second);
        let (mut kept, mut y) = (tape.kept, tape.y);
        for (i, layer) in self.layers.iter().enumerate().rev() {
            let (w_rest, w_here) = w.split_at(w.len() - self.parameters[i]);
            let (dw_rest, dw_here) = dw.split_at_mut(dw.len() - self.parameters[i]);
            // What is kept ends with this layer's own, before it the outputs of the layer below.
            let (rest, mine) = kept.split_at(kept.len() - layer.kept(n));
            let inputs = if i == 0 { 0 } else { self.outputs(i - 1, n) };
            let (rest, x) = rest.split_at(rest.len() - inputs);
            let x = if i == 0 { tape.x } else { x };
            let here = Tape { x, y, kept: mine };
            let outputs = self.outputs(i, n);
            let dx = if i == 0 { dx.take() } else { Some(&mut below[..inputs]) };
            if i + 1 < self.layers.len() {
                layer.backward(
                    pass.child(i),
                    w_here,
                    here,
                    &mut above[..outputs],
                    dx,
                    dw_here,
                    work,
                );
            } else {
                layer.backward(pass.child(i), w_here, here, dy, dx, dw_here, work);
            }
            (w, dw, kept, y) = (w_rest, dw_rest, rest, x);
            std::mem::swap(&mut above, &mut below);
        }
    }

    #[cfg(test)]
    fn reference(&self, pass: Pass, w: &[f64], x: &[f64]) -> Vec<f64> {
        super::reference::chain(pass, &self.layers, &self.parameters, w, x)
    }
}
