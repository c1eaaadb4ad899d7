//! Dropout.

use crate::layer::{Layer, Pass, Shape, Tape};
use whimbrel_core::kernel;

/// In training, zeroes each number with a probability and scales the others so that their mean stays.
pub(crate) struct Dropout {
    pub shape: Shape,
    /// Below 1; rounded to a multiple of 2^-16.
    pub probability: f32,
}

/// Random words drawn at a time; each decides over four numbers.
const WORDS: usize = 256;

impl Layer for Dropout {
    fn output(&self) -> Shape {
        self.shape
    }

    fn kept(&self, padded: usize) -> usize {
        self.shape.len() * padded
    }

    fn forward(
        &self,
        pass: Pass,
        _w: &[f32],
        x: &[f32],
        y: &mut [f32],
        kept: &mut [f32],
        _work: &mut [f32],
    ) {
        if !pass.training {
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

    fn backward(
        &self,
        pass: Pass,
        _w: &[f32],
        tape: Tape<'_>,
        dy: &mut [f32],
        dx: Option<&mut [f32]>,
        _dw: &mut [f32],
        _work: &mut [f32],
    ) {
        match dx {
            Some(dx) if pass.training => multiply(dy, tape.kept, dx),
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
