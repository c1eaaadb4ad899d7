//! Embeddings of symbols.

use crate::layer::{Layer, Pass, Shape, Tape, fill_normal};
use crate::{Role, Tensor};
use whimbrel_core::Key;

/// A vector for each symbol of a sequence; the inputs hold the symbols as numbers.
pub(crate) struct Embedding {
    pub name: &'static str,
    pub symbols: usize,
    pub width: usize,
    pub steps: usize,
}

impl Layer for Embedding {
    fn output(&self) -> Shape {
        Shape { channels: self.width, rows: self.steps, columns: 1 }
    }

    fn tensors(&self) -> Vec<Tensor> {
        let name = format!("{}.weight", self.name);
        vec![Tensor::new(name, &[self.symbols, self.width], Role::Weight)]
    }

    fn start(&self, key: Key, w: &mut [f32]) {
        fill_normal(key, 1.0, w);
    }

    fn forward(
        &self,
        _pass: Pass,
        w: &[f32],
        x: &[f32],
        y: &mut [f32],
        _kept: &mut [f32],
        _work: &mut [f32],
    ) {
        for (channel, y) in y.chunks_exact_mut(x.len()).enumerate() {
            for (y, x) in y.iter_mut().zip(x) {
                *y = w[*x as usize * self.width + channel];
            }
        }
    }

    fn backward(
        &self,
        _pass: Pass,
        _w: &[f32],
        tape: Tape<'_>,
        dy: &mut [f32],
        _dx: Option<&mut [f32]>,
        dw: &mut [f32],
        _work: &mut [f32],
    ) {
        for (channel, dy) in dy.chunks_exact(tape.x.len()).enumerate() {
            for (dy, x) in dy.iter().zip(tape.x) {
                dw[*x as usize * self.width + channel] += dy;
            }
        }
    }

    #[cfg(test)]
    fn reference(&self, pass: Pass, w: &[f64], x: &[f64]) -> Vec<f64> {
        super::reference::embedding(pass, self, w, x)
    }
}
