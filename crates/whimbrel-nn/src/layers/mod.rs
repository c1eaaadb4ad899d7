//! Layers with hand-derived backward passes.

mod chain;
mod conv;
mod dense;
mod depthwise;
mod dropout;
mod embedding;
mod lstm;
mod norm;
mod pointwise;
mod pool;
mod residual;

pub(crate) use chain::Chain;
pub(crate) use conv::Conv;
pub(crate) use dense::Dense;
pub(crate) use depthwise::Depthwise;
pub(crate) use dropout::Dropout;
pub(crate) use embedding::Embedding;
pub(crate) use lstm::{LastStep, Lstm};
pub(crate) use norm::{Activation, BatchNorm};
pub(crate) use pool::{AveragePool, MaxPool};
pub(crate) use residual::Residual;

#[cfg(test)]
mod reference {
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
    fn at(
        shape: Shape,
        pass: Pass,
        c: usize,
        row: isize,
        column: isize,
        s: usize,
    ) -> Option<usize> {
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
        let (size, stride, padding) =
            (window.size, window.stride as isize, window.padding as isize);
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
}

#[cfg(test)]
mod tests {
    //! Every layer against its definition: outputs directly, derivatives by central differences of the
    //! definition in `f64`.

    use super::*;
    use crate::layer::{Backward, Forward, Layer, Pass, Shape};
    use crate::product::Window;
    use crate::{Role, Tensor};
    use whimbrel_core::Key;

    /// The step of central differences. With third derivatives of order 1 they err by 1e-9, and rounding by
    /// 1e-15 / 1e-5 = 1e-10: both far below the errors of `f32`.
    const STEP: f64 = 1e-5;

    fn draw(key: u64, n: usize) -> Vec<f32> {
        let mut stream = Key::root(key).stream();
        (0..n).map(|_| (2.0 * stream.uniform() - 1.0) as f32).collect()
    }

    fn wide(x: &[f32]) -> Vec<f64> {
        x.iter().map(|x| f64::from(*x)).collect()
    }

    /// Checks outputs and all derivatives of `sum r y`, with random r, for these many samples.
    fn check(layer: &dyn Layer, inputs: usize, samples: usize, x: Option<Vec<f32>>) {
        let padded = samples.next_multiple_of(16);
        let pass = Pass { samples, padded, training: true, dropout: true, key: Key::root(9) };
        let parameters: usize = layer.tensors().iter().map(Tensor::len).sum();
        let w = draw(1, parameters);
        let mut x = x.unwrap_or_else(|| draw(2, inputs * padded));
        let mut r = draw(3, layer.output().len() * padded);
        for values in [&mut x, &mut r] {
            values.chunks_exact_mut(padded).for_each(|run| run[samples..].fill(0.0));
        }
        let mut y = vec![f32::NAN; layer.output().len() * padded];
        let (mut kept, mut work) =
            (vec![f32::NAN; layer.kept(padded)], vec![f32::NAN; layer.work(padded)]);
        let forward = Forward { w: &w, x: &x, y: &mut y, kept: &mut kept, work: &mut work };
        layer.forward(pass, forward);

        let right = layer.reference(pass, &wide(&w), &wide(&x));
        // Sums of at most 200 products below 1 in `f32`: 200 times 2^-24 times their mean size, doubled for
        // what follows the sum.
        let tolerance = 3e-5;
        assert_eq!(y.len(), right.len());
        for (i, (y, right)) in y.iter().zip(&right).enumerate() {
            if i % padded < samples {
                assert!(
                    (f64::from(*y) - right).abs() < tolerance * (1.0 + right.abs()),
                    "{i}: {y} {right}"
                );
            }
        }

        let (mut dw, mut dx) = (vec![0.0; parameters], vec![f32::NAN; x.len()]);
        let mut dy = r.clone();
        let backward = Backward {
            w: &w,
            x: &x,
            y: &y,
            kept: &kept,
            dy: &mut dy,
            dx: Some(&mut dx),
            dw: &mut dw,
            work: &mut work,
        };
        layer.backward(pass, backward);
        let objective = |w: &[f64], x: &[f64]| -> f64 {
            layer.reference(pass, w, x).iter().zip(&r).map(|(y, r)| y * f64::from(*r)).sum()
        };
        let compare = |what: &str, i: usize, found: f32, right: f64, size: f64| {
            // The sums are over samples and pixels, at most a few hundred numbers below `size`.
            let tolerance = 1e-4 * (1.0 + size);
            assert!((f64::from(found) - right).abs() < tolerance, "{what} {i}: {found} {right}");
        };
        let (w64, x64) = (wide(&w), wide(&x));
        let statistics = statistics(layer);
        for i in (0..parameters).filter(|i| !statistics[*i]) {
            let moved = |by: f64| {
                let mut w = w64.clone();
                w[i] += by;
                objective(&w, &x64)
            };
            let right = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            compare("dw", i, dw[i], right, right.abs());
        }
        if layer.tensors().first().is_some_and(|tensor| tensor.name.contains("embedding")) {
            return;
        }
        let padding = |i: &usize| i % padded >= samples;
        assert!((0..x.len()).filter(padding).all(|i| dx[i] == 0.0), "the derivative of padding");
        // At most about 300 inputs, at a stride that meets every sample.
        let stride = (x.len() / 300).max(1) | 1;
        for i in (0..x.len()).step_by(stride).filter(|i| !padding(i)) {
            let moved = |by: f64| {
                let mut x = x64.clone();
                x[i] += by;
                objective(&w64, &x)
            };
            let right = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            compare("dx", i, dx[i], right, right.abs());
        }
    }

    fn statistics(layer: &dyn Layer) -> Vec<bool> {
        let of = |tensor: &Tensor| vec![tensor.role == Role::Statistic; tensor.len()];
        layer.tensors().iter().flat_map(of).collect()
    }

    fn map(channels: usize, rows: usize, columns: usize) -> Shape {
        Shape { channels, rows, columns }
    }

    #[test]
    fn dense_layers() {
        for (inputs, outputs, samples) in [(3, 5, 1), (17, 9, 7), (8, 33, 20)] {
            check(&Dense::head("a", inputs, outputs), inputs, samples, None);
            check(&Dense::inner("a", inputs, outputs), inputs, samples, None);
        }
    }

    #[test]
    fn convolutions() {
        for (size, stride, padding) in
            [(3, 1, 0), (3, 1, 1), (3, 2, 1), (1, 1, 0), (1, 2, 0), (5, 1, 2)]
        {
            for samples in [3, 16] {
                let input = map(3, 4, 5);
                let conv = Conv::new("a".to_owned(), input, 4, Window { size, stride, padding });
                if samples == 3 {
                    check(&conv, input.len(), samples, None);
                }
                let conv = Conv { bias: true, relu: true, ..conv };
                check(&conv, input.len(), samples, None);
            }
        }
    }

    #[test]
    fn depthwise_convolutions() {
        for stride in [1, 2] {
            for (rows, columns) in [(4, 5), (1, 1), (2, 3)] {
                let input = map(3, rows, columns);
                check(&Depthwise::new("a".to_owned(), input, stride), input.len(), 5, None);
            }
        }
        let input = map(2, 3, 3);
        check(&Depthwise::new("a".to_owned(), input, 1), input.len(), 70, None);
    }

    #[test]
    fn pooling() {
        for relu in [false, true] {
            for input in [map(2, 4, 6), map(3, 5, 3)] {
                check(&MaxPool { input, relu }, input.len(), 3, None);
            }
        }
        check(&AveragePool { input: map(3, 2, 2) }, 12, 3, None);
    }

    #[test]
    fn batch_norms() {
        for activation in [Activation::None, Activation::Relu, Activation::Relu6] {
            for samples in [5usize, 16] {
                let shape = map(3, 2, 3);
                let layer = BatchNorm { name: "a".to_owned(), shape, activation };
                // Inputs of unit size, so that one over the standard deviation is of order 1.
                let padded = samples.next_multiple_of(16);
                let x = draw(4, shape.len() * padded).iter().map(|x| 4.0 * x + 1.0).collect();
                check(&layer, shape.len(), samples, Some(x));
            }
        }
    }

    #[test]
    fn running_statistics_move_a_tenth_to_the_batch() {
        let shape = map(1, 1, 2);
        let layer = BatchNorm { name: "a".to_owned(), shape, activation: Activation::None };
        let pass =
            Pass { samples: 2, padded: 16, training: true, dropout: true, key: Key::root(1) };
        let mut x = vec![0.0; 32];
        (x[0], x[1], x[16], x[17]) = (1.0, 2.0, 3.0, 6.0);
        let w = [1.0, 0.0, 10.0, 20.0];
        let (mut y, mut kept, mut dw) = (vec![0.0; 32], vec![0.0; 16], vec![0.0; 4]);
        let forward = Forward { w: &w, x: &x, y: &mut y, kept: &mut kept, work: &mut [] };
        layer.forward(pass, forward);
        let (dy, work) = (&mut [0.0; 32][..], &mut [][..]);
        let backward =
            Backward { w: &w, x: &x, y: &y, kept: &kept, dy, dx: None, dw: &mut dw, work };
        layer.backward(pass, backward);
        // Mean 3; variance (4 + 1 + 0 + 9) / 3.
        assert!((dw[2] - (9.0 + 0.3)).abs() < 1e-5);
        assert!((dw[3] - (18.0 + 14.0 / 30.0)).abs() < 1e-4);
        let evaluated = Pass { training: false, ..pass };
        let forward = Forward { w: &w, x: &x, y: &mut y, kept: &mut kept, work: &mut [] };
        layer.forward(evaluated, forward);
        assert!((y[0] + 9.0 / 20f32.sqrt()).abs() < 1e-5);
    }

    #[test]
    fn dropout_keeps_the_mean_and_draws_by_key() {
        let layer = Dropout { shape: map(4, 5, 5), probability: 0.25 };
        check(&layer, 100, 5, None);
        let big = Dropout { shape: Shape::flat(1000), probability: 0.25 };
        let factors = |key: u64, training: bool| {
            let key = Key::root(key);
            let pass = Pass { samples: 16, padded: 16, training, dropout: training, key };
            let (mut y, mut kept) = (vec![0.0; 16_000], vec![0.0; 16_000]);
            let (x, kept) = (&vec![1.0; 16_000][..], &mut kept[..]);
            big.forward(pass, Forward { w: &[], x, y: &mut y, kept, work: &mut [] });
            y
        };
        let dropped = factors(1, true).iter().filter(|y| **y == 0.0).count() as f64;
        // Binomial with standard deviation 54.8: five of them are exceeded with probability 6e-7.
        assert!((dropped - 4000.0).abs() < 274.0, "{dropped}");
        assert!(factors(1, true).iter().all(|y| *y == 0.0 || (*y - 4.0 / 3.0).abs() < 1e-6));
        assert!(factors(1, true) == factors(1, true) && factors(1, true) != factors(2, true));
        assert!(factors(1, false).iter().all(|y| *y == 1.0));
    }

    #[test]
    fn embeddings_and_lstms() {
        let layer = Embedding { name: "embedding", symbols: 7, width: 3, steps: 4 };
        let symbols = (0..4 * 16).map(|i| (i * 5 % 7) as f32).collect();
        check(&layer, 4, 6, Some(symbols));
        check(&Lstm { name: "a", inputs: 3, hidden: 5, steps: 4 }, 12, 3, None);
        check(&Lstm { name: "a", inputs: 2, hidden: 3, steps: 1 }, 2, 17, None);
        check(&LastStep { channels: 3, steps: 4 }, 12, 3, None);
    }

    #[test]
    fn chains_and_residuals() {
        let input = map(4, 3, 3);
        let norm = |shape, activation| BatchNorm { name: "a".to_owned(), shape, activation };
        let body = |channels, stride| {
            let three = |stride| Window { size: 3, stride, padding: 1 };
            let first = Conv::new("a".to_owned(), input, channels, three(stride));
            let second = Conv::new("b".to_owned(), first.output, channels, three(1));
            let shape = first.output;
            Chain::new(vec![
                Box::new(first),
                Box::new(norm(shape, Activation::Relu)),
                Box::new(second),
                Box::new(norm(shape, Activation::None)),
            ])
        };
        let plain = Residual { body: body(4, 1), shortcut: None, inputs: 36, relu: false };
        check(&plain, 36, 5, None);
        let window = Window { size: 1, stride: 2, padding: 0 };
        let point = Conv::new("c".to_owned(), input, 6, window);
        let shape = point.output;
        let shortcut = Chain::new(vec![Box::new(point), Box::new(norm(shape, Activation::None))]);
        let strided =
            Residual { body: body(6, 2), shortcut: Some(shortcut), inputs: 36, relu: true };
        check(&strided, 36, 5, None);
        let two = Chain::new(vec![Box::new(plain), Box::new(AveragePool { input })]);
        check(&two, 36, 4, None);
    }
}
