//! Linear, logistic and softmax regression: a loss of the scores `W x + b`.
//!
//! Parameters: one weight vector per score, then the intercepts, if any. Real inputs are read in place;
//! bytes are converted to `x / 255` batch by batch.

mod loss;

use std::marker::PhantomData;
use whimbrel_core::{Error, Inputs, Key, Result, Samples, vector};

use crate::rows::{Maps, Rows, add_weighted_rows, scores};
use crate::{Batch, Learner, Role, Room, Tensor};
pub(crate) use loss::check_classes;
pub use loss::{CrossEntropy, LogOdds, Loss, SquaredError, exp_all};

/// Linear regression: half the squared error of a number.
pub type Linear = Affine<SquaredError>;
/// Logistic regression of two classes: one weight vector, whose score is the log-odds of class 1.
pub type Logistic = Affine<LogOdds>;
/// Softmax regression of any number of classes: one weight vector each.
pub type Softmax = Affine<CrossEntropy>;

/// Number of samples whose scores are computed at a time.
const CHUNK: usize = 256;
/// Iterations for the largest curvature, which they approach from below.
const POWER_ITERATIONS: usize = 20;

/// A loss of the scores of an affine map.
pub struct Affine<L> {
    features: usize,
    outputs: usize,
    intercept: bool,
    tensors: Vec<Tensor>,
    loss: PhantomData<fn() -> L>,
}

impl Linear {
    pub fn new(features: usize, intercept: bool) -> Self {
        Self::with(features, 1, intercept)
    }
}

impl Logistic {
    pub fn new(features: usize, intercept: bool) -> Self {
        Self::with(features, 2, intercept)
    }
}

impl Softmax {
    pub fn new(features: usize, classes: usize, intercept: bool) -> Self {
        Self::with(features, classes, intercept)
    }
}

impl<L: Loss> Affine<L> {
    fn with(features: usize, outputs: usize, intercept: bool) -> Self {
        let scores = L::scores(outputs);
        let mut tensors = vec![Tensor::new("weight", &[scores, features], Role::Head)];
        if intercept {
            tensors.push(Tensor::new("intercept", &[scores], Role::Head));
        }
        Self { features, outputs, intercept, tensors, loss: PhantomData }
    }

    /// Number of scores per sample.
    fn scores(&self) -> usize {
        L::scores(self.outputs)
    }

    /// Calls `each` with the index of the first of at most [`CHUNK`] samples, the rows, their scores under
    /// every map, and a buffer of one number per sample.
    fn each_chunk(
        &self,
        all: &[&[f32]],
        batch: Batch<'_>,
        room: &mut Room,
        mut each: impl FnMut(usize, Rows<'_>, &mut [f32], &mut [f32]),
    ) {
        let (n, width) = (batch.len(), self.features);
        let longest = n.min(CHUNK);
        let copied =
            if matches!(batch.samples.inputs, Inputs::Real(_)) { 0 } else { longest * width };
        let [copies, found, more] =
            room.buffers([copied, all.len() * longest * self.scores(), longest]);
        let maps = Maps { all, outputs: self.scores(), intercept: self.intercept };
        for from in (0..n).step_by(CHUNK) {
            let count = (n - from).min(CHUNK);
            let rows = match &batch.samples.inputs {
                Inputs::Real(values) => {
                    let places = batch.places.map(|places| &places[from..from + count]);
                    Rows { values, width, places, first: from, count }
                }
                _ => {
                    copy_rows(batch, from, count, copies);
                    Rows { values: copies, width, places: None, first: 0, count }
                }
            };
            let found = &mut found[..all.len() * count * self.scores()];
            scores(rows, maps, found);
            each(from, rows, found, &mut more[..count]);
        }
    }
}

impl<L: Loss> Affine<L> {
    /// Adds the contribution of some rows of a batch of `n` to every map's gradient, from the derivatives
    /// of the rows' losses, which are scaled in place.
    fn add_gradients(
        &self,
        n: usize,
        from: usize,
        rows: Rows<'_>,
        weights: Option<&[f32]>,
        derivatives: &mut [f32],
        gradients: &mut [f32],
    ) {
        let (outputs, len) = (self.scores(), self.parameters());
        let share = 1.0 / n.max(1) as f32;
        let of_weights = outputs * self.features;
        let maps = derivatives.chunks_exact_mut(rows.count * outputs);
        for (m, (of_map, gradient)) in maps.zip(gradients.chunks_exact_mut(len)).enumerate() {
            let intercepts = &mut gradient[of_weights..];
            for (j, derivatives) in of_map.chunks_exact_mut(outputs).enumerate() {
                let factor = share * weights.map_or(1.0, |weights| weights[m * n + from + j]);
                derivatives.iter_mut().for_each(|x| *x *= factor);
                intercepts.iter_mut().zip(derivatives).for_each(|(sum, x)| *sum += *x);
            }
        }
        add_weighted_rows(rows, derivatives, outputs, len, gradients);
    }
}

impl<L: Loss> Learner for Affine<L> {
    fn name(&self) -> &'static str {
        L::NAME
    }

    fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    fn outputs(&self) -> usize {
        self.outputs
    }

    fn classifies(&self) -> bool {
        L::CLASSIFIES
    }

    fn check(&self, samples: &Samples) -> Result<()> {
        if samples.width() != self.features {
            let (found, wanted) = (samples.width(), self.features);
            let what = format!("`{}` takes {wanted} features, the data have {found}", L::NAME);
            return Err(Error::data(what));
        }
        if matches!(samples.inputs, Inputs::Symbols(_)) {
            return Err(Error::data(format!("`{}` takes numbers, not symbols", L::NAME)));
        }
        L::check(&samples.targets, self.outputs)
    }

    /// Uniform within `1/sqrt(features)` of zero, so that the components of a mixture differ.
    fn start(&self, key: Key) -> Vec<f32> {
        let (bound, mut stream) = (1.0 / (self.features as f64).sqrt(), key.stream());
        (0..self.parameters()).map(|_| (bound * (2.0 * stream.uniform() - 1.0)) as f32).collect()
    }

    /// `L::CURVATURE` times the largest eigenvalue of `X^T X`, `X` with a column of ones for intercepts, by
    /// power iteration.
    fn largest_curvature(&self, samples: &Samples) -> Option<f64> {
        let width = self.features;
        let mut row = vec![1.0; width + 1];
        let mut v = vec![1.0; width + usize::from(self.intercept)];
        let mut found = 0.0;
        for _ in 0..POWER_ITERATIONS {
            let norm = vector::norm2_squared(&v).sqrt();
            if norm == 0.0 {
                break;
            }
            let from = v.iter().map(|v| v / norm).collect::<Vec<f64>>();
            v.fill(0.0);
            for j in 0..samples.len() {
                let x = &mut row[..width];
                match &samples.inputs {
                    Inputs::Real(all) => {
                        let values = &all[j * width..][..width];
                        x.iter_mut().zip(values).for_each(|(x, value)| *x = f64::from(*value));
                    }
                    Inputs::Bytes(all) => {
                        let bytes = &all[j * width..][..width];
                        x.iter_mut().zip(bytes).for_each(|(x, byte)| *x = f64::from(*byte) / 255.0);
                    }
                    Inputs::Symbols(_) => return None,
                }
                let row = &row[..v.len()];
                vector::axpy(&mut v, vector::dot(row, &from), row);
            }
            found = vector::norm2_squared(&v).sqrt();
        }
        Some(L::CURVATURE * found)
    }

    fn losses(&self, w: &[f32], batch: Batch<'_>, room: &mut Room, losses: &mut [f32]) {
        self.losses_of_all(&[w], batch, room, losses);
    }

    fn losses_of_all(&self, all: &[&[f32]], batch: Batch<'_>, room: &mut Room, losses: &mut [f32]) {
        let n = batch.len();
        self.each_chunk(all, batch, room, |from, rows, found, _| {
            for (m, found) in found.chunks_exact_mut(rows.count * self.scores()).enumerate() {
                L::losses(found, batch, from, &mut losses[m * n + from..][..rows.count]);
            }
        });
    }

    fn gradient(
        &self,
        w: &[f32],
        batch: Batch<'_>,
        weights: Option<&[f32]>,
        _key: Key,
        room: &mut Room,
        gradient: &mut [f32],
        losses: &mut [f32],
    ) {
        gradient.fill(0.0);
        self.each_chunk(&[w], batch, room, |from, rows, found, _| {
            L::derive(found, batch, from, &mut losses[from..][..rows.count]);
            self.add_gradients(batch.len(), from, rows, weights, found, gradient);
        });
    }

    fn gradient_of_all(
        &self,
        all: &[&[f32]],
        batch: Batch<'_>,
        weights: Option<&[f32]>,
        _key: Key,
        room: &mut Room,
        gradients: &mut [f32],
    ) {
        gradients.fill(0.0);
        self.each_chunk(all, batch, room, |from, rows, found, more| {
            for found in found.chunks_exact_mut(rows.count * self.scores()) {
                L::derive_alone(found, batch, from, more);
            }
            self.add_gradients(batch.len(), from, rows, weights, found, gradients);
        });
    }

    fn predict(&self, w: &[f32], batch: Batch<'_>, room: &mut Room, predictions: &mut [f32]) {
        self.each_chunk(&[w], batch, room, |from, rows, found, _| {
            let predictions = &mut predictions[from * self.outputs..][..rows.count * self.outputs];
            for (scores, predictions) in
                found.chunks_exact(self.scores()).zip(predictions.chunks_exact_mut(self.outputs))
            {
                L::predict(scores, predictions);
            }
        });
    }
}

/// Converts the byte inputs of `count` samples of a batch to rows.
fn copy_rows(batch: Batch<'_>, from: usize, count: usize, rows: &mut [f32]) {
    let Inputs::Bytes(bytes) = &batch.samples.inputs else { return };
    let width = batch.samples.width();
    for (j, row) in rows.chunks_exact_mut(width).take(count).enumerate() {
        let bytes = &bytes[batch.place(from + j) * width..][..width];
        row.iter_mut().zip(bytes).for_each(|(x, byte)| *x = f32::from(*byte) / 255.0);
    }
}
