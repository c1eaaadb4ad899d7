//! Embeddings of symbols.

use crate::layer::{Backward, Forward, Layer, Pass, Shape, fill_normal};
use crate::{Role, Tensor};
use whimbrel_core::Key;

/// One vector per symbol of a sequence; inputs are symbols as numbers.
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

    fn forward(&self, _pass: Pass, Forward { w, x, y, .. }: Forward<'_>) {
        for (channel, y) in y.chunks_exact_mut(x.len()).enumerate() {
            for (y, x) in y.iter_mut().zip(x) {
                *y = w[*x as usize * self.width + channel];
            }
        }
    }

    fn backward(&self, _pass: Pass, Backward { x, dy, dw, .. }: Backward<'_>) {
        for (channel, dy) in dy.chunks_exact(x.len()).enumerate() {
            for (dy, x) in dy.iter().zip(x) {
                dw[*x as usize * self.width + channel] += dy;
            }
        }
    }

    #[cfg(test)]
    fn reference(&self, pass: Pass, w: &[f64], x: &[f64]) -> Vec<f64> {
        super::reference::embedding(pass, self, w, x)
    }
}
