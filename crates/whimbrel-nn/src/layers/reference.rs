//! The layers by their definitions, in `f64` and without a thought for speed. Padded samples stay zero.

use super::*;
use crate::Tensor;
use crate::layer::{Forward, Layer, Pass, Shape};

fn relu(x: f64) -> f64 {
    x.max(0.0)
}

fn zeros(shape: Shape, pass: Pass) -> Vec<f64> {
    vec![0.0; shape.len() * pass.padded]
}

/// The place of a number; none outside of the map.
fn at(shape: Shape, pass: Pass, c: usize, row: isize, column: isize, s: usize) -> Option<usize> {
    let (rows, columns) = (shape.rows as isize, shape.columns as isize);
    let inside = (0..rows).contains(&row) && (0..columns).contains(&column);
    let pixel = || (c * shape.rows + row as usize) * shape.columns + column as usize;
    inside.then(|| pixel() * pass.padded + s)
}

/// Calls `set` with the channel, row, column, sample and place of every number of a map.
fn each(shape: Shape, pass: Pass, mut set: impl FnMut(usize, isize, isize, usize, usize)) {
    for c in 0..shape.channels {
        for row in 0..shape.rows as isize {
            for column in 0..shape.columns as isize {
                for s in 0..pass.samples {
                    set(c, row, column, s, at(shape, pass, c, row, column, s).unwrap());
                }
            }
        }
    }
}

pub(super) fn dense(
    pass: Pass,
    w: &[f64],
    x: &[f64],
    [inputs, outputs]: [usize; 2],
    rectify: bool,
) -> Vec<f64> {
    let mut y = zeros(Shape::flat(outputs), pass);
    each(Shape::flat(outputs), pass, |o, _, _, s, place| {
        let products = (0..inputs).map(|i| w[o * inputs + i] * x[i * pass.padded + s]);
        let score = products.sum::<f64>() + w[outputs * inputs + o];
        y[place] = if rectify { relu(score) } else { score };
    });
    y
}

pub(super) fn conv(pass: Pass, layer: &Conv, w: &[f64], x: &[f64]) -> Vec<f64> {
    let (from, to, window) = (layer.input, layer.output, layer.window);
    let (size, stride, padding) = (window.size, window.stride as isize, window.padding as isize);
    let weights = to.channels * from.channels * size * size;
    let mut y = zeros(to, pass);
    each(to, pass, |o, row, column, s, place| {
        let mut sum = if layer.bias { w[weights + o] } else { 0.0 };
        for c in 0..from.channels {
            for tap in 0..size * size {
                let row = row * stride + (tap / size) as isize - padding;
                let column = column * stride + (tap % size) as isize - padding;
                if let Some(i) = at(from, pass, c, row, column, s) {
                    sum += w[(o * from.channels + c) * size * size + tap] * x[i];
                }
            }
        }
        y[place] = if layer.relu { relu(sum) } else { sum };
    });
    y
}

pub(super) fn depthwise(pass: Pass, layer: &Depthwise, w: &[f64], x: &[f64]) -> Vec<f64> {
    let mut y = zeros(layer.output(), pass);
    let stride = layer.window.stride as isize;
    each(layer.output(), pass, |c, row, column, s, place| {
        for tap in 0..9 {
            let (down, right) = ((tap / 3) as isize - 1, (tap % 3) as isize - 1);
            let (row, column) = (row * stride + down, column * stride + right);
            if let Some(i) = at(layer.input, pass, c, row, column, s) {
                y[place] += w[c * 9 + tap] * x[i];
            }
        }
    });
    y
}

/// With the factors that the layer itself draws.
pub(super) fn dropout(pass: Pass, layer: &Dropout, x: &[f64]) -> Vec<f64> {
    let n = layer.shape.len() * pass.padded;
    let (mut factors, mut kept) = (vec![0.0; n], vec![0.0; n]);
    let (ones, y, kept) = (vec![1.0; n], &mut factors[..], &mut kept[..]);
    layer.forward(pass, Forward { w: &[], x: &ones, y, kept, work: &mut [] });
    x.iter().zip(factors).map(|(x, factor)| x * f64::from(factor)).collect()
}

pub(super) fn embedding(pass: Pass, layer: &Embedding, w: &[f64], x: &[f64]) -> Vec<f64> {
    let mut y = zeros(layer.output(), pass);
    each(layer.output(), pass, |c, step, _, s, place| {
        let symbol = x[step as usize * pass.padded + s] as usize;
        y[place] = w[symbol * layer.width + c];
    });
    y
}

pub(super) fn norm(pass: Pass, layer: &BatchNorm, w: &[f64], x: &[f64]) -> Vec<f64> {
    let channels = layer.shape.channels;
    let mut values = vec![Vec::new(); channels];
    each(layer.shape, pass, |c, _, _, _, place| values[c].push(x[place]));
    let moments: Vec<[f64; 2]> = values
        .iter()
        .enumerate()
        .map(|(c, values)| {
            if !pass.training {
                return [w[2 * channels + c], w[3 * channels + c]];
            }
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
            [mean, squares / values.len() as f64]
        })
        .collect();
    let mut y = zeros(layer.shape, pass);
    each(layer.shape, pass, |c, _, _, _, place| {
        let [mean, variance] = moments[c];
        let z = (x[place] - mean) / (variance + 1e-5).sqrt() * w[c] + w[channels + c];
        y[place] = match layer.activation {
            Activation::None => z,
            Activation::Relu => relu(z),
            Activation::Relu6 => relu(z).min(6.0),
        };
    });
    y
}

pub(super) fn max_pool(pass: Pass, layer: &MaxPool, x: &[f64]) -> Vec<f64> {
    let mut y = zeros(layer.output(), pass);
    each(layer.output(), pass, |c, row, column, s, place| {
        let four = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(down, right)| {
            x[at(layer.input, pass, c, 2 * row + down, 2 * column + right, s).unwrap()]
        });
        let largest = four.into_iter().fold(f64::NEG_INFINITY, f64::max);
        y[place] = if layer.relu { relu(largest) } else { largest };
    });
    y
}

pub(super) fn average_pool(pass: Pass, layer: &AveragePool, x: &[f64]) -> Vec<f64> {
    let mut y = zeros(layer.output(), pass);
    each(layer.input, pass, |c, _, _, s, place| {
        y[c * pass.padded + s] += x[place] / layer.input.pixels() as f64;
    });
    y
}

pub(super) fn lstm(pass: Pass, layer: &Lstm, w: &[f64], x: &[f64]) -> Vec<f64> {
    let (inputs, hidden, n) = (layer.inputs, layer.hidden, pass.padded);
    let (recurrent, intercepts) = (4 * hidden * inputs, 4 * hidden * (inputs + hidden));
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let mut y = zeros(layer.output(), pass);
    for s in 0..pass.samples {
        let (mut h, mut cell) = (vec![0.0; hidden], vec![0.0; hidden]);
        for t in 0..layer.steps {
            let gate = |g: usize| -> f64 {
                let input =
                    (0..inputs).map(|i| w[g * inputs + i] * x[(i * layer.steps + t) * n + s]);
                let before = (0..hidden).map(|k| w[recurrent + g * hidden + k] * h[k]);
                input.sum::<f64>() + before.sum::<f64>() + w[intercepts + g]
            };
            let gates: Vec<f64> = (0..4 * hidden).map(gate).collect();
            for k in 0..hidden {
                let [i, f, g, o] = [0, 1, 2, 3].map(|quarter| gates[quarter * hidden + k]);
                cell[k] = sigmoid(f) * cell[k] + sigmoid(i) * g.tanh();
                h[k] = sigmoid(o) * cell[k].tanh();
                y[(k * layer.steps + t) * n + s] = h[k];
            }
        }
    }
    y
}

pub(super) fn last_step(pass: Pass, layer: &LastStep, x: &[f64]) -> Vec<f64> {
    let row = layer.steps * pass.padded;
    x.chunks_exact(row).flat_map(|x| x[row - pass.padded..].to_vec()).collect()
}

pub(super) fn residual(pass: Pass, layer: &Residual, w: &[f64], x: &[f64]) -> Vec<f64> {
    let of_body: usize = layer.body.tensors().iter().map(Tensor::len).sum();
    let body = layer.body.reference(pass.child(0), &w[..of_body], x);
    let shortcut = match &layer.shortcut {
        Some(chain) => chain.reference(pass.child(1), &w[of_body..], x),
        None => x.to_vec(),
    };
    let sums = body.iter().zip(shortcut).map(|(a, b)| a + b);
    sums.map(|sum| if layer.relu { relu(sum) } else { sum }).collect()
}

pub(super) fn chain(
    pass: Pass,
    layers: &[Box<dyn Layer>],
    parameters: &[usize],
    w: &[f64],
    x: &[f64],
) -> Vec<f64> {
    let (mut from, mut x) = (0, x.to_vec());
    for (i, (layer, count)) in layers.iter().zip(parameters).enumerate() {
        x = layer.reference(pass.child(i), &w[from..from + count], &x);
        from += count;
    }
    x
}
