//! Dropout.

use crate::layer::{Backward, Forward, Layer, Pass, Shape};
use whimbrel_core::kernel;

/// In training mode, zeroes each number with a probability and scales the others to keep the mean.
pub(crate) struct Dropout {
    pub shape: Shape,
    /// Below 1; rounded to a multiple of 2^-16.
    pub probability: f32,
}

/// Random words drawn at a time, each for four numbers.
const WORDS: usize = 256;

impl Layer for Dropout {
    fn output(&self) -> Shape {
        self.shape
    }

    fn kept(&self, padded: usize) -> usize {
        self.shape.len() * padded
    }

    fn forward(&self, pass: Pass, Forward { x, y, kept, .. }: Forward<'_>) {
        if !pass.dropout {
            return y.copy_from_slice(x);
        }
        let mut stream = pass.key.stream();
        let mut words = [0; WORDS];
        let from = (self.probability * 65536.0).round() as u16;
        let scale = 65536.0 / (65536.0 - f32::from(from));
        for (factors, (x, y)) in
            kept.chunks_mut(4 * WORDS).zip(x.chunks(4 * WORDS).zip(y.chunks_mut(4 * WORDS)))
        {
            let words = &mut words[..factors.len() / 4];
            stream.fill(words);
            draw(words, from, scale, factors);
            multiply(x, factors, y);
        }
    }

    fn backward(&self, pass: Pass, Backward { kept, dy, dx, .. }: Backward<'_>) {
        match dx {
            Some(dx) if pass.dropout => multiply(dy, kept, dx),
            Some(dx) => dx.copy_from_slice(dy),
            None => {}
        }
    }

    #[cfg(test)]
    fn reference(&self, pass: Pass, _w: &[f64], x: &[f64]) -> Vec<f64> {
        super::reference::dropout(pass, self, x)
    }
}

kernel! {
    fn draw(words: &[u64], from: u16, scale: f32, factors: &mut [f32]) {
        for (word, factors) in words.iter().zip(factors.chunks_exact_mut(4)) {
            for (l, factor) in factors.iter_mut().enumerate() {
                *factor = if (word >> (16 * l)) as u16 >= from { scale } else { 0.0 };
            }
        }
    }
}

kernel! {
    fn multiply(x: &[f32], factors: &[f32], y: &mut [f32]) {
        for ((x, factor), y) in x.iter().zip(factors).zip(y) {
            *y = x * factor;
        }
    }
}
