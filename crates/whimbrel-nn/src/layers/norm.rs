//! Batch normalisation (Ioffe and Szegedy, 2015) with the activation that follows it.

use super::pointwise::{halves, sum};
use crate::layer::{Backward, Forward, Layer, Pass, Shape};
use crate::{Role, Tensor};
use whimbrel_core::{Key, kernel};

/// Added to a variance.
const EPSILON: f32 = 1e-5;
/// Weight of a batch in the running statistics.
const NEW: f32 = 0.1;

/// The activation after the normalisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Activation {
    None,
    Relu,
    Relu6,
}

impl Activation {
    fn limits(self) -> [f32; 2] {
        match self {
            Self::None => [f32::NEG_INFINITY, f32::INFINITY],
            Self::Relu => [0.0, f32::INFINITY],
            Self::Relu6 => [0.0, 6.0],
        }
    }
}

/// Normalises each channel over samples and pixels; in evaluation mode with running statistics.
pub(crate) struct BatchNorm {
    pub name: String,
    pub shape: Shape,
    pub activation: Activation,
}

impl Layer for BatchNorm {
    fn output(&self) -> Shape {
        self.shape
    }

    fn tensors(&self) -> Vec<Tensor> {
        let tensor = |part: &str, role| {
            Tensor::new(format!("{}.{part}", self.name), &[self.shape.channels], role)
        };
        vec![
            tensor("weight", Role::Weight),
            tensor("bias", Role::Weight),
            tensor("running_mean", Role::Statistic),
            tensor("running_var", Role::Statistic),
        ]
    }

    fn start(&self, _key: Key, w: &mut [f32]) {
        for (part, value) in w.chunks_exact_mut(self.shape.channels).zip([1.0, 0.0, 0.0, 1.0]) {
            part.fill(value);
        }
    }

    /// The mean and one over the standard deviation of every channel, in whole cache lines.
    fn kept(&self, _padded: usize) -> usize {
        (2 * self.shape.channels).next_multiple_of(16)
    }

    fn mixes_samples(&self) -> bool {
        true
    }

    fn forward(&self, pass: Pass, Forward { w, x, y, kept, .. }: Forward<'_>) {
        let (channels, length) = (self.shape.channels, self.shape.pixels() * pass.padded);
        let [low, high] = self.activation.limits();
        for c in 0..channels {
            let x = &x[c * length..][..length];
            let [mean, variance] = if pass.training {
                moments(x, pass)
            } else {
                [w[2 * channels + c], w[3 * channels + c]]
            };
            let inverse = 1.0 / (variance + EPSILON).sqrt();
            (kept[c], kept[channels + c]) = (mean, inverse);
            let scale = w[c] * inverse;
            let shift = w[channels + c] - mean * scale;
            normalise(x, scale, shift, low, high, &mut y[c * length..][..length]);
        }
    }

    fn backward(&self, pass: Pass, Backward { w, x, y, kept, dy, mut dx, dw, .. }: Backward<'_>) {
        let (channels, length) = (self.shape.channels, self.shape.pixels() * pass.padded);
        let count = (self.shape.pixels() * pass.samples) as f32;
        let [low, high] = self.activation.limits();
        for c in 0..channels {
            let (x, y) = (&x[c * length..][..length], &y[c * length..][..length]);
            let dy = &mut dy[c * length..][..length];
            let (mean, inverse) = (kept[c], kept[channels + c]);
            if self.activation != Activation::None {
                mask_within(dy, y, low, high);
            }
            // With z = (x - mean) inverse: dw = sum dy z, db = sum dy and
            // dx = w inverse (dy - db / N - z dw / N).
            let [of_shift, of_scale] = sums_with(dy, x, mean);
            let of_scale = of_scale * inverse;
            dw[c] += of_scale;
            dw[channels + c] += of_shift;
            let running = [mean, variance_of(inverse) * count / (count - 1.0).max(1.0)];
            for (at, new) in [2 * channels + c, 3 * channels + c].into_iter().zip(running) {
                dw[at] = (1.0 - NEW) * w[at] + NEW * new;
            }
            let Some(dx) = &mut dx else { continue };
            let factor = w[c] * inverse;
            let of_x = -factor * inverse * of_scale / count;
            let constant = -factor * of_shift / count - of_x * mean;
            let dx = &mut dx[c * length..][..length];
            combine(dy, x, factor, of_x, constant, dx);
            if pass.samples < pass.padded {
                dx.chunks_exact_mut(pass.padded).for_each(|dx| dx[pass.samples..].fill(0.0));
            }
        }
    }

    #[cfg(test)]
    fn reference(&self, pass: Pass, w: &[f64], x: &[f64]) -> Vec<f64> {
        super::reference::norm(pass, self, w, x)
    }
}

fn variance_of(inverse: f32) -> f32 {
    1.0 / (inverse * inverse) - EPSILON
}

/// Mean and variance of the samples that are not padding.
fn moments(x: &[f32], pass: Pass) -> [f32; 2] {
    let count = (x.len() / pass.padded * pass.samples) as f32;
    if pass.samples == pass.padded {
        let mean = sum(x) / count;
        return [mean, squares(x, mean) / count];
    }
    let runs = || x.chunks_exact(pass.padded).map(|run| &run[..pass.samples]);
    let mean = runs().map(sum).sum::<f32>() / count;
    [mean, runs().map(|run| squares(run, mean)).sum::<f32>() / count]
}

kernel! {
    /// The sum of squared distances from the mean.
    fn squares(x: &[f32], mean: f32) -> f32 {
        let (chunks, rest) = x.as_chunks::<32>();
        let mut sums = [0.0; 32];
        for chunk in chunks {
            for l in 0..32 {
                let distance = chunk[l] - mean;
                sums[l] += distance * distance;
            }
        }
        for (sum, x) in sums.iter_mut().zip(rest) {
            *sum += (x - mean) * (x - mean);
        }
        halves(sums)
    }
}

kernel! {
    fn normalise(x: &[f32], scale: f32, shift: f32, low: f32, high: f32, y: &mut [f32]) {
        for (x, y) in x.iter().zip(y) {
            let z = x * scale + shift;
            let z = if z < low { low } else { z };
            *y = if z > high { high } else { z };
        }
    }
}

kernel! {
    /// Zeroes the derivative outside of the limits.
    fn mask_within(dy: &mut [f32], y: &[f32], low: f32, high: f32) {
        for (dy, y) in dy.iter_mut().zip(y) {
            *dy = if *y > low && *y < high { *dy } else { 0.0 };
        }
    }
}

kernel! {
    /// `sum dy` and `sum dy (x - mean)`.
    fn sums_with(dy: &[f32], x: &[f32], mean: f32) -> [f32; 2] {
        let ((dy, dy_rest), (x, x_rest)) = (dy.as_chunks::<32>(), x.as_chunks::<32>());
        let (mut plain, mut with) = ([0.0; 32], [0.0; 32]);
        for (dy, x) in dy.iter().zip(x) {
            for l in 0..32 {
                plain[l] += dy[l];
                with[l] += dy[l] * (x[l] - mean);
            }
        }
        for (l, (dy, x)) in dy_rest.iter().zip(x_rest).enumerate() {
            plain[l] += dy;
            with[l] += dy * (x - mean);
        }
        [halves(plain), halves(with)]
    }
}

kernel! {
    /// `dx = factor dy + of_x x + constant`.
    fn combine(dy: &[f32], x: &[f32], factor: f32, of_x: f32, constant: f32, dx: &mut [f32]) {
        for ((dy, x), dx) in dy.iter().zip(x).zip(dx) {
            *dx = factor * dy + (of_x * x + constant);
        }
    }
}
