//! Networks: a chain of layers under the cross-entropy of a softmax.

use whimbrel_core::{Error, Inputs, Key, Result, Samples, Targets, kernel, math};

use crate::affine::check_classes;
use crate::elementary::exp;
use crate::layer::{Backward, Forward, Layer, Pass, Shape};
use crate::layers::{Chain, Dense};
use crate::{Batch, Learner, Role, Room, Tensor};

/// Samples that are evaluated at a time, and whose gradient is computed at a time where samples do not
/// depend on each other.
const CHUNK: usize = 128;

/// A network that classifies.
pub struct Network {
    name: &'static str,
    input: Input,
    chain: Chain,
    classes: usize,
    tensors: Vec<Tensor>,
    mixes_samples: bool,
    dropout: bool,
}

/// The inputs of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// Vectors of this length, whatever their shape.
    Numbers(usize),
    /// Images of this shape.
    Image(Shape),
    /// Sequences of `steps` symbols, each less than `below`.
    Symbols { steps: usize, below: usize },
}

impl Input {
    fn len(self) -> usize {
        match self {
            Self::Numbers(count) => count,
            Self::Image(shape) => shape.len(),
            Self::Symbols { steps, .. } => steps,
        }
    }

    fn check(self, name: &str, samples: &Samples) -> Result<()> {
        let refuse = |what: String| Err(Error::data(format!("`{name}` {what}")));
        let (shape, symbols) = (&samples.shape[..], matches!(samples.inputs, Inputs::Symbols(_)));
        match self {
            Self::Symbols { steps, below } => {
                let Inputs::Symbols(symbols) = &samples.inputs else {
                    return refuse("takes sequences of symbols".to_owned());
                };
                if shape != [steps] {
                    return refuse(format!("takes sequences of {steps}, the data have {shape:?}"));
                }
                if let Some(at) = symbols.iter().position(|x| usize::from(*x) >= below) {
                    let (sample, symbol) = (at / steps + 1, symbols[at]);
                    return refuse(format!("knows {below} symbols; sample {sample} has {symbol}"));
                }
            }
            _ if symbols => return refuse("takes numbers, not symbols".to_owned()),
            Self::Numbers(count) if samples.width() != count => {
                return refuse(format!("takes {count} features, the data have {shape:?}"));
            }
            Self::Image(Shape { channels, rows, columns })
                if shape != [channels, rows, columns] =>
            {
                return refuse(format!(
                    "takes images of {channels} x {rows} x {columns}, the data have {shape:?}"
                ));
            }
            _ => {}
        }
        Ok(())
    }
}

impl Network {
    pub(crate) fn new(name: &'static str, input: Input, layers: Vec<Box<dyn Layer>>) -> Self {
        let chain = Chain::new(layers);
        let (tensors, classes) = (chain.tensors(), chain.output().len());
        let mixes_samples = chain.mixes_samples();
        Self { name, input, chain, classes, tensors, mixes_samples, dropout: true }
    }

    /// Turns dropout in gradients on or off.
    pub fn with_dropout(self, dropout: bool) -> Self {
        Self { dropout, ..self }
    }

    /// Runs some samples forward and calls `each` with their scores, class by class. With a `gradient`,
    /// `each` replaces the scores by their derivative, and that of the parameters is added.
    fn run(
        &self,
        w: &[f32],
        chunk: Chunk<'_>,
        pass: Pass,
        room: &mut Room,
        gradient: Option<&mut [f32]>,
        each: impl FnOnce(&mut [f32], &mut [f32]),
    ) {
        let n = pass.padded;
        let [x, scores, columns, kept, work, copy] = room.buffers([
            self.input.len() * n,
            self.classes * n,
            3 * n,
            self.chain.kept(n),
            self.chain.work(n),
            if gradient.is_some() { self.classes * n } else { 0 },
        ]);
        chunk.read(x, n);
        let forward = Forward { w, x, y: &mut *scores, kept: &mut *kept, work: &mut *work };
        self.chain.forward(pass, forward);
        copy.copy_from_slice(&scores[..copy.len()]);
        each(scores, columns);
        if let Some(gradient) = gradient {
            let (dy, dw) = (scores, gradient);
            let backward = Backward { w, x, y: copy, kept, dy, dx: None, dw, work };
            self.chain.backward(pass, backward);
        }
    }

    fn evaluate(
        &self,
        w: &[f32],
        batch: Batch<'_>,
        room: &mut Room,
        mut each: impl FnMut(Chunk<'_>, &mut [f32], &mut [f32]),
    ) {
        for from in (0..batch.len()).step_by(CHUNK) {
            let chunk = Chunk { batch, from, count: (batch.len() - from).min(CHUNK) };
            let pass = chunk.pass(false, Key::root(0));
            self.run(w, chunk, pass, room, None, |scores, columns| each(chunk, scores, columns));
        }
    }
}

impl Learner for Network {
    fn name(&self) -> &'static str {
        self.name
    }

    fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    fn outputs(&self) -> usize {
        self.classes
    }

    fn classifies(&self) -> bool {
        true
    }

    fn check(&self, samples: &Samples) -> Result<()> {
        self.input.check(self.name, samples)?;
        check_classes(self.name, &samples.targets, self.classes)
    }

    fn start(&self, key: Key) -> Vec<f32> {
        let mut w = vec![0.0; self.parameters()];
        self.chain.start(key, &mut w);
        w
    }

    fn head_on(&self, w: &[f32], samples: &Samples) -> Option<(Box<dyn Learner>, Samples)> {
        if self.mixes_samples {
            return None;
        }
        let heads = self.tensors.iter().filter(|tensor| tensor.role == Role::Head);
        let [weight, _bias] = heads.collect::<Vec<_>>()[..] else { return None };
        let [_, width] = weight.shape[..] else { return None };
        let (mut room, mut features) = (Room::default(), vec![0.0; samples.len() * width]);
        for from in (0..samples.len()).step_by(CHUNK) {
            let batch = Batch::all(samples);
            let chunk = Chunk { batch, from, count: (samples.len() - from).min(CHUNK) };
            let pass = chunk.pass(false, Key::root(0));
            let n = pass.padded;
            let [x, scores, kept, work] = room.buffers([
                self.input.len() * n,
                self.classes * n,
                self.chain.kept(n),
                self.chain.work(n),
            ]);
            chunk.read(x, n);
            let forward = Forward { w, x, y: scores, kept: &mut *kept, work };
            self.chain.forward(pass, forward);
            let inputs = self.chain.inputs_of_last(n, kept)?;
            for (j, row) in
                features[from * width..].chunks_exact_mut(width).take(chunk.count).enumerate()
            {
                row.iter_mut().enumerate().for_each(|(i, feature)| *feature = inputs[i * n + j]);
            }
        }
        let head: Vec<Box<dyn Layer>> = vec![Box::new(Dense::head("head", width, self.classes))];
        let head = Self::new("head", Input::Numbers(width), head);
        let inputs = Inputs::Real(features);
        let samples = Samples::new(vec![width], inputs, samples.targets.clone()).ok()?;
        Some((Box::new(head), samples))
    }

    fn losses(&self, w: &[f32], batch: Batch<'_>, room: &mut Room, losses: &mut [f32]) {
        self.evaluate(w, batch, room, |chunk, scores, columns| {
            let losses = &mut losses[chunk.from..][..chunk.count];
            cross_entropy(chunk, scores, columns, losses);
        });
    }

    fn gradient(
        &self,
        w: &[f32],
        batch: Batch<'_>,
        weights: Option<&[f32]>,
        key: Key,
        room: &mut Room,
        gradient: &mut [f32],
        losses: &mut [f32],
    ) {
        gradient.fill(0.0);
        if batch.is_empty() {
            return keep_statistics(&self.tensors, w, gradient);
        }
        let share = 1.0 / batch.len() as f32;
        let at_once = if self.mixes_samples { batch.len() } else { CHUNK };
        for (i, from) in (0..batch.len()).step_by(at_once).enumerate() {
            let chunk = Chunk { batch, from, count: (batch.len() - from).min(at_once) };
            let pass = chunk.pass(true, key.child(i as u64));
            let pass = Pass { dropout: self.dropout, ..pass };
            let losses = &mut losses[from..][..chunk.count];
            let gradient = Some(&mut *gradient);
            self.run(w, chunk, pass, room, gradient, |scores, columns| {
                cross_entropy(chunk, scores, columns, losses);
                let n = scores.len() / self.classes;
                let factors = &mut columns[..n];
                factors.fill(0.0);
                for (j, factor) in factors.iter_mut().enumerate().take(chunk.count) {
                    *factor = share * weights.map_or(1.0, |weights| weights[from + j]);
                }
                scores.chunks_exact_mut(n).for_each(|scores| scale(scores, factors));
            });
        }
    }

    fn predict(&self, w: &[f32], batch: Batch<'_>, room: &mut Room, predictions: &mut [f32]) {
        self.evaluate(w, batch, room, |chunk, scores, columns| {
            let n = scores.len() / self.classes;
            softmax(scores, columns, n);
            for j in 0..chunk.count {
                let prediction =
                    &mut predictions[(chunk.from + j) * self.classes..][..self.classes];
                for (c, p) in prediction.iter_mut().enumerate() {
                    *p = scores[c * n + j];
                }
            }
        });
    }
}

fn keep_statistics(tensors: &[Tensor], w: &[f32], gradient: &mut [f32]) {
    let mut from = 0;
    for tensor in tensors {
        let to = from + tensor.len();
        if tensor.role == Role::Statistic {
            gradient[from..to].copy_from_slice(&w[from..to]);
        }
        from = to;
    }
}

/// Some samples of a batch.
#[derive(Clone, Copy)]
struct Chunk<'a> {
    batch: Batch<'a>,
    from: usize,
    count: usize,
}

impl Chunk<'_> {
    fn pass(&self, training: bool, key: Key) -> Pass {
        let padded = self.count.next_multiple_of(16);
        Pass { samples: self.count, padded, training, dropout: training, key }
    }

    /// Copies the inputs, samples innermost; padding is zero.
    fn read(&self, x: &mut [f32], padded: usize) {
        let width = x.len() / padded;
        match &self.batch.samples.inputs {
            Inputs::Real(values) => self.transpose(values, width, x, padded, |x| x),
            Inputs::Bytes(bytes) => {
                self.transpose(bytes, width, x, padded, |byte| f32::from(byte) / 255.0);
            }
            Inputs::Symbols(symbols) => self.transpose(symbols, width, x, padded, f32::from),
        }
    }

    fn transpose<T: Copy>(
        &self,
        values: &[T],
        width: usize,
        x: &mut [f32],
        padded: usize,
        number: impl Fn(T) -> f32,
    ) {
        for first in (0..padded).step_by(16) {
            let count = self.count.saturating_sub(first).min(16);
            let rows: [&[T]; 16] = std::array::from_fn(|j| {
                let place = self.batch.place(self.from + first + j.min(count - 1));
                &values[place * width..][..width]
            });
            for (i, x) in x.chunks_exact_mut(padded).enumerate() {
                let x = &mut x[first..first + 16];
                for (x, row) in x.iter_mut().zip(&rows) {
                    *x = number(row[i]);
                }
                x[count..].fill(0.0);
            }
        }
    }

    fn class(&self, of: &[u16], j: usize) -> usize {
        usize::from(of[self.batch.place(self.from + j)])
    }
}

/// Each sample's loss `ln sum_c e^{z_c} - z_y`; the scores become its derivative.
fn cross_entropy(chunk: Chunk<'_>, scores: &mut [f32], columns: &mut [f32], losses: &mut [f32]) {
    let Targets::Classes { of, .. } = &chunk.batch.samples.targets else { return };
    let n = columns.len() / 3;
    for (j, loss) in losses.iter_mut().enumerate() {
        *loss = -scores[chunk.class(of, j) * n + j];
    }
    softmax(scores, columns, n);
    let (largest, sums) = columns.split_at(n);
    for (j, loss) in losses.iter_mut().enumerate() {
        *loss += (f64::from(largest[j]) + math::ln(f64::from(sums[j]))) as f32;
        scores[chunk.class(of, j) * n + j] -= 1.0;
    }
}

kernel! {
    /// The softmax of each of `n` columns; their largest scores and sums of exponentials are left in
    /// `columns`.
    fn softmax(scores: &mut [f32], columns: &mut [f32], n: usize) {
        let (largest, rest) = columns.split_at_mut(n);
        let (sums, factors) = rest.split_at_mut(n);
        largest.fill(f32::NEG_INFINITY);
        for scores in scores.chunks_exact(n) {
            for (largest, score) in largest.iter_mut().zip(scores) {
                *largest = if *score > *largest { *score } else { *largest };
            }
        }
        sums.fill(0.0);
        for scores in scores.chunks_exact_mut(n) {
            for ((score, largest), sum) in scores.iter_mut().zip(&*largest).zip(&mut *sums) {
                *score = exp(*score - largest);
                *sum += *score;
            }
        }
        for (factor, sum) in factors.iter_mut().zip(sums) {
            *factor = 1.0 / *sum;
        }
        for scores in scores.chunks_exact_mut(n) {
            for (score, factor) in scores.iter_mut().zip(&*factors) {
                *score *= factor;
            }
        }
    }
}

kernel! {
    fn scale(x: &mut [f32], factors: &[f32]) {
        for (x, factor) in x.iter_mut().zip(factors) {
            *x *= factor;
        }
    }
}

#[cfg(test)]
mod tests {
    //! Networks against their definitions in `f64`.

    use super::*;
    use crate::Architecture;

    /// Samples that suit an architecture: pixels, or symbols for sequences.
    fn samples(architecture: &Architecture, n: usize) -> Samples {
        let mut stream = Key::root(11).stream();
        let width: usize = architecture.shape.iter().product();
        let inputs = if architecture.kind == "lstm" {
            let symbols = architecture.symbols.unwrap_or(architecture.classes) as u64;
            Inputs::Symbols((0..n * width).map(|_| stream.below(symbols) as u16).collect())
        } else {
            Inputs::Bytes((0..n * width).map(|_| stream.below(256) as u8).collect())
        };
        let count = architecture.classes;
        let of = (0..n).map(|_| stream.below(count as u64) as u16).collect();
        Samples::new(architecture.shape.clone(), inputs, Targets::Classes { of, count }).unwrap()
    }

    /// Every network, small enough for its definition.
    fn small() -> Vec<Architecture> {
        let lstm = Architecture { hidden: vec![12], ..Architecture::new("lstm", &[7], 9) };
        let mlp = Architecture { hidden: vec![20, 11], ..Architecture::new("mlp", &[9], 4) };
        vec![
            mlp,
            Architecture::new("cnn", &[1, 8, 9], 5),
            Architecture::new("lenet", &[1, 28, 28], 4),
            Architecture::new("mobilenet-v2", &[3, 32, 32], 4),
            Architecture::new("resnet-18", &[3, 8, 8], 4),
            lstm,
        ]
    }

    fn network(architecture: &Architecture) -> Network {
        let Architecture { shape, classes, hidden, .. } = architecture;
        let image = || [shape[0], shape[1], shape[2]];
        match architecture.kind.as_str() {
            "mlp" => Network::mlp(shape[0], hidden, *classes),
            "cnn" => Network::cnn(image(), *classes),
            "lenet" => Network::lenet(image(), *classes),
            "mobilenet-v2" => Network::mobilenet_v2(image(), *classes),
            "resnet-18" => Network::resnet_18(image(), *classes),
            _ => Network::lstm(shape[0], *classes, architecture.embedding, hidden[0], *classes),
        }
    }

    /// The losses of all samples in `f64`, as in training.
    fn reference(network: &Network, w: &[f64], samples: &Samples, key: Key) -> Vec<f64> {
        let Targets::Classes { of, .. } = &samples.targets else { unreachable!() };
        let chunk = Chunk { batch: Batch::all(samples), from: 0, count: samples.len() };
        let pass = chunk.pass(true, key.child(0));
        let n = pass.padded;
        let mut x = vec![0.0; network.input.len() * n];
        chunk.read(&mut x, n);
        let x: Vec<f64> = x.into_iter().map(f64::from).collect();
        let scores = network.chain.reference(pass, w, &x);
        let score = |class: usize, j: usize| scores[class * n + j];
        let loss = |j: usize| {
            let sum: f64 = (0..network.classes).map(|c| score(c, j).exp()).sum();
            sum.ln() - score(usize::from(of[j]), j)
        };
        (0..samples.len()).map(loss).collect()
    }

    /// Gradient and losses of some samples from a given start.
    fn gradient(
        network: &Network,
        w: &[f32],
        batch: Batch<'_>,
        weights: Option<&[f32]>,
        room: &mut Room,
    ) -> (Vec<f32>, Vec<f32>) {
        let (mut gradient, mut losses) = (vec![f32::NAN; w.len()], vec![f32::NAN; batch.len()]);
        network.gradient(w, batch, weights, Key::root(7), room, &mut gradient, &mut losses);
        (gradient, losses)
    }

    /// The norm of a step of central differences.
    const STEP: f64 = 1e-6;

    /// Losses, and derivatives along random directions that move one tensor each, against the definition.
    #[test]
    fn losses_and_gradients_are_those_of_the_definition() {
        for architecture in small() {
            let network = network(&architecture);
            let data = samples(&architecture, 5);
            network.check(&data).unwrap();
            let statistics = network.tensors.iter().any(|tensor| tensor.role == Role::Statistic);
            assert_eq!(statistics, network.mixes_samples);
            let w = network.start(Key::root(1));
            let q = [0.9, 0.1, 0.5, 1.0, 0.3];
            let (found, losses) =
                gradient(&network, &w, Batch::all(&data), Some(&q), &mut Room::default());
            let wide: Vec<f64> = w.iter().map(|w| f64::from(*w)).collect();
            let key = Key::root(7);
            let right = reference(&network, &wide, &data, key);
            // Twenty to fifty layers of `f32`, each adding about 1e-6 of its numbers' size.
            assert_eq!(losses.len(), right.len());
            for (loss, right) in losses.iter().zip(&right) {
                let error = (f64::from(*loss) - right).abs();
                assert!(error < 1e-4 * (1.0 + right), "{}: {loss} {right}", network.name);
            }
            let mean = |w: &[f64]| -> f64 {
                let losses = reference(&network, w, &data, key);
                losses.iter().zip(&q).map(|(l, q)| l * f64::from(*q)).sum::<f64>() / 5.0
            };
            // At most a dozen tensors: the definition is slow.
            let every = network.tensors.len().div_ceil(12);
            let (mut from, mut stream) = (0, Key::root(3).stream());
            for (t, tensor) in network.tensors.iter().enumerate() {
                let to = from + tensor.len();
                let place = from..to;
                from = to;
                if tensor.role == Role::Statistic || t % every != every / 2 {
                    continue;
                }
                // A short step, since batch norms of few samples bend the loss sharply and rectified
                // numbers have kinks; rounding errs by about 1e-14 / 1e-6.
                let step = STEP / (tensor.len() as f64).sqrt();
                let direction: Vec<f64> = place
                    .clone()
                    .map(|_| if stream.uniform() < 0.5 { step } else { -step })
                    .collect();
                let moved = |sign: f64| {
                    let mut w = wide.clone();
                    w[place.clone()].iter_mut().zip(&direction).for_each(|(w, d)| *w += sign * d);
                    mean(&w)
                };
                let right = (moved(1.0) - moved(-1.0)) / (2.0 * STEP);
                let part = &found[place.clone()];
                let along: f64 = part.iter().zip(&direction).map(|(g, d)| f64::from(*g) * d).sum();
                let norm = part.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
                let error = (along / STEP - right).abs();
                assert!(
                    error < 2e-3 * norm + 1e-6,
                    "{} {}: {} {right}, norm {norm}",
                    network.name,
                    tensor.name,
                    along / STEP
                );
            }
        }
    }
}
