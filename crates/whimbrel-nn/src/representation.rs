//! A shared linear representation under a linear head: the prediction is `z^T (V x)`.
//!
//! Parameters: `V`, one row of input weights per latent feature, then the head `z`. `(V, z)` and
//! `(A V, A^-T z)` are the same model. Sums are in `f64`, since data sets are small and residuals may be
//! tiny.

use crate::{Batch, Learner, Role, Room, Tensor};
use whimbrel_core::linalg::{largest_eigenvalue, symmetric_eigen};
use whimbrel_core::{Error, Inputs, Key, Result, Samples, Targets, vector};

/// Regression with a linear head on linear features.
pub struct LinearRepresentation {
    raw: usize,
    latent: usize,
    tensors: Vec<Tensor>,
}

impl LinearRepresentation {
    /// A model of `raw` inputs and `latent` features.
    pub fn new(raw: usize, latent: usize) -> Self {
        let tensors = vec![
            Tensor::new("representation", &[latent, raw], Role::Weight),
            Tensor::new("head", &[latent], Role::Head),
        ];
        Self { raw, latent, tensors }
    }

    /// The latent features `V x` of one input.
    fn features_of(&self, w: &[f32], x: &[f32], features: &mut [f64]) {
        for (feature, v) in features.iter_mut().zip(w.chunks_exact(self.raw)) {
            *feature = v.iter().zip(x).map(|(v, x)| f64::from(*v) * f64::from(*x)).sum();
        }
    }

    /// Calls `each` with the position in the batch, the input and its features; `features` is a buffer.
    fn each(
        &self,
        w: &[f32],
        batch: Batch<'_>,
        features: &mut [f64],
        mut each: impl FnMut(usize, &[f32], &[f64]),
    ) {
        let Inputs::Real(inputs) = &batch.samples.inputs else { return };
        for i in 0..batch.len() {
            let x = &inputs[batch.place(i) * self.raw..][..self.raw];
            self.features_of(w, x, features);
            each(i, x, features);
        }
    }

    /// Unpacks a lower triangle into a square matrix.
    fn square(&self, packed: &[f64]) -> Vec<f64> {
        let mut square = vec![0.0; self.raw * self.raw];
        let mut at = packed.iter();
        for i in 0..self.raw {
            for j in 0..=i {
                square[i * self.raw + j] = at.next().copied().unwrap_or(0.0);
            }
        }
        square
    }

    fn head<'a>(&self, w: &'a [f32]) -> &'a [f32] {
        &w[self.raw * self.latent..]
    }
}

fn predicted(z: &[f32], features: &[f64]) -> f64 {
    z.iter().zip(features).map(|(z, h)| f64::from(*z) * h).sum()
}

fn target(batch: Batch<'_>, i: usize) -> f64 {
    match &batch.samples.targets {
        Targets::Values(values) => f64::from(values[batch.place(i)]),
        Targets::Classes { .. } => f64::NAN,
    }
}

impl Learner for LinearRepresentation {
    fn name(&self) -> &'static str {
        "linear-representation"
    }

    fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    fn outputs(&self) -> usize {
        1
    }

    fn classifies(&self) -> bool {
        false
    }

    fn check(&self, samples: &Samples) -> Result<()> {
        if samples.width() != self.raw || !matches!(samples.inputs, Inputs::Real(_)) {
            let what = format!("`linear-representation` takes {} numbers", self.raw);
            return Err(Error::data(format!("{what}, the data have {:?}", samples.shape)));
        }
        match samples.targets {
            Targets::Values(_) => Ok(()),
            Targets::Classes { .. } => {
                Err(Error::data("`linear-representation` predicts numbers, not classes"))
            }
        }
    }

    /// Nearly orthogonal rows of unit norm in expectation, and a head of ones over `sqrt(latent)`.
    fn start(&self, key: Key) -> Vec<f32> {
        let (mut stream, scale) = (key.stream(), 1.0 / (self.raw as f64).sqrt());
        let mut w: Vec<f32> =
            (0..self.raw * self.latent).map(|_| (scale * stream.normal()) as f32).collect();
        w.resize(w.len() + self.latent, 1.0 / (self.latent as f32).sqrt());
        w
    }

    /// `sum y^2 x x^T` and `sum x x^T`, each as a packed lower triangle.
    fn start_sums(&self, samples: &Samples) -> Vec<f64> {
        let mut sums = vec![0.0; self.start_sums_len()];
        let (Inputs::Real(inputs), Targets::Values(y)) = (&samples.inputs, &samples.targets) else {
            return sums;
        };
        let (with_y, alone) = sums.split_at_mut(self.start_sums_len() / 2);
        for (x, y) in inputs.chunks_exact(self.raw).zip(y) {
            let y2 = f64::from(*y) * f64::from(*y);
            let mut at = with_y.iter_mut().zip(&mut *alone);
            for (i, a) in x.iter().enumerate() {
                for (b, (with_y, alone)) in x[..=i].iter().zip(&mut at) {
                    let product = f64::from(*a) * f64::from(*b);
                    *with_y += y2 * product;
                    *alone += product;
                }
            }
        }
        sums
    }

    fn start_sums_len(&self) -> usize {
        self.raw * (self.raw + 1)
    }

    fn start_sums_told(&self) -> &'static str {
        "the number of samples, sums of products of its inputs, and the same times squared targets; \
         from no more samples than inputs both together tell every sample but for its sign, and how \
         large its target is"
    }

    /// `lambda_max(sum x x^T)`.
    fn start_curvature(&self, sums: &[f64]) -> Result<Option<f64>> {
        let half = sums.get(sums.len() / 2..).unwrap_or_default();
        largest_eigenvalue(&self.square(half), self.raw).map(Some)
    }

    /// The method of moments: the top eigenvectors of `sum y^2 x x^T` span the representation where
    /// inputs are isotropic.
    fn start_from(&self, sums: &[f64], key: Key) -> Result<Vec<f32>> {
        let square = self.square(sums.get(..sums.len() / 2).unwrap_or_default());
        if vector::norm_inf(&square) == 0.0 {
            return Ok(self.start(key));
        }
        let eigen = symmetric_eigen(&square, self.raw)?;
        let mut w = self.start(key);
        let top = eigen.vectors.chunks_exact(self.raw).rev().take(self.latent).flatten();
        w.iter_mut().zip(top).for_each(|(w, v)| *w = *v as f32);
        Ok(w)
    }

    fn linear_features(&self, w: &[f32], samples: &Samples) -> Option<Vec<f64>> {
        let mut all = Vec::with_capacity(samples.len() * self.latent);
        let mut each = vec![0.0; self.latent];
        self.each(w, Batch::all(samples), &mut each, |_, _, h| all.extend_from_slice(h));
        Some(all)
    }

    fn losses(&self, w: &[f32], batch: Batch<'_>, room: &mut Room, losses: &mut [f32]) {
        self.each(w, batch, room.zeros(self.latent), |i, _, features| {
            let error = predicted(self.head(w), features) - target(batch, i);
            losses[i] = (0.5 * error * error) as f32;
        });
    }

    fn gradient(
        &self,
        w: &[f32],
        batch: Batch<'_>,
        weights: Option<&[f32]>,
        _: Key,
        room: &mut Room,
        gradient: &mut [f32],
        losses: &mut [f32],
    ) {
        let (raw, z) = (self.raw, self.head(w));
        // sum_j q_j e_j x_j, whose multiple by z_l is the gradient of row l of V, and sum_j q_j e_j h_j.
        let (of_inputs, rest) = room.zeros(raw + 2 * self.latent).split_at_mut(raw);
        let (of_head, features) = rest.split_at_mut(self.latent);
        self.each(w, batch, features, |i, x, features| {
            let error = predicted(z, features) - target(batch, i);
            losses[i] = (0.5 * error * error) as f32;
            let factor = error * weights.map_or(1.0, |weights| f64::from(weights[i]));
            of_inputs.iter_mut().zip(x).for_each(|(sum, x)| *sum += factor * f64::from(*x));
            of_head.iter_mut().zip(features).for_each(|(sum, h)| *sum += factor * h);
        });
        let share = 1.0 / batch.len().max(1) as f64;
        let (of_rows, head) = gradient.split_at_mut(raw * self.latent);
        for (row, z) in of_rows.chunks_exact_mut(raw).zip(z) {
            let factor = share * f64::from(*z);
            row.iter_mut().zip(&*of_inputs).for_each(|(out, sum)| *out = (factor * sum) as f32);
        }
        head.iter_mut().zip(&*of_head).for_each(|(out, sum)| *out = (share * sum) as f32);
    }

    fn predict(&self, w: &[f32], batch: Batch<'_>, room: &mut Room, predictions: &mut [f32]) {
        self.each(w, batch, room.zeros(self.latent), |i, _, features| {
            predictions[i] = predicted(self.head(w), features) as f32;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(n: usize, raw: usize, latent: usize) -> (LinearRepresentation, Samples, Vec<f32>) {
        let learner = LinearRepresentation::new(raw, latent);
        let truth = learner.start(Key::root(1));
        let mut stream = Key::root(2).stream();
        let x: Vec<f32> = (0..n * raw).map(|_| stream.normal() as f32).collect();
        let zeros = Targets::Values(vec![0.0; n]);
        let mut samples = Samples::new(vec![raw], Inputs::Real(x), zeros).unwrap();
        let mut y = vec![0.0; n];
        learner.predict(&truth, Batch::all(&samples), &mut Room::default(), &mut y);
        samples.targets = Targets::Values(y);
        (learner, samples, truth)
    }

    /// As [`Learner::start_sums_told`] states: with as many samples as inputs, the sums determine all samples.
    #[test]
    fn samples_are_read_from_the_sums_of_a_tiny_client() {
        let inputs = Inputs::Real(vec![1.5, -0.5, 0.25, 2.0]);
        let samples = Samples::new(vec![2], inputs, Targets::Values(vec![3.0, -0.5])).unwrap();
        let sums = LinearRepresentation::new(2, 1).start_sums(&samples);
        let [b11, b21, b22, a11, a21, a22] = sums[..] else { panic!("{sums:?}") };
        // det(B - l A) = 0
        let (p, q, r) =
            (a11 * a22 - a21 * a21, a11 * b22 + a22 * b11 - 2.0 * a21 * b21, b11 * b22 - b21 * b21);
        let root = (q * q - 4.0 * p * r).sqrt();
        let (large, small) = ((q + root) / (2.0 * p), (q - root) / (2.0 * p));
        // B - l A has lost the sample whose squared target is l.
        let other = |l: f64, lost: f64| {
            let x1 = ((b11 - lost * a11) / (l - lost)).sqrt();
            (l.sqrt(), x1, (b21 - lost * a21) / (l - lost) / x1)
        };
        let close = |found: (f64, f64, f64), wanted: (f64, f64, f64)| {
            let gaps = [found.0 - wanted.0, found.1 - wanted.1, found.2 - wanted.2];
            assert!(gaps.iter().all(|gap| gap.abs() < 1e-9), "{found:?} is not {wanted:?}");
        };
        close(other(large, small), (3.0, 1.5, -0.5));
        close(other(small, large), (0.5, 0.25, 2.0));
    }

    #[test]
    fn gradients_are_differences_of_losses() {
        let (learner, samples, _) = samples(7, 5, 2);
        let w = learner.start(Key::root(9));
        let (mut gradient, mut losses) = (vec![0.0; w.len()], vec![0.0; 7]);
        let q: Vec<f32> = (1..=7).map(|i| i as f32 / 4.0).collect();
        let (batch, mut room) = (Batch::all(&samples), Room::default());
        let (key, weights) = (Key::root(0), Some(&q[..]));
        learner.gradient(&w, batch, weights, key, &mut room, &mut gradient, &mut losses);
        let value = |w: &[f32]| {
            let mut losses = vec![0.0; 7];
            learner.losses(w, batch, &mut Room::default(), &mut losses);
            losses.iter().zip(&q).map(|(l, q)| f64::from(*l) * f64::from(*q)).sum::<f64>() / 7.0
        };
        for i in 0..w.len() {
            // A step at which f32 losses have 4 digits of the difference left.
            let h = 2f32.powi(-8);
            let (mut above, mut below) = (w.clone(), w.clone());
            above[i] += h;
            below[i] -= h;
            let difference = (value(&above) - value(&below)) / (2.0 * f64::from(h));
            let scale = 1.0 + difference.abs();
            assert!((f64::from(gradient[i]) - difference).abs() < 1e-3 * scale, "{i}");
        }
    }

    #[test]
    fn moments_find_the_span() {
        // sum y^2 x x^T = n (|u|^2 I + 2 u u^T) in the mean: each client adds its own direction.
        let (raw, learner) = (6, LinearRepresentation::new(6, 2));
        let mut sums = vec![0.0; learner.start_sums_len()];
        for client in 0..40 {
            let (_, mut part, truth) = samples(200, raw, 2);
            // One truth for all, with a head of the client's own.
            let mut stream = Key::root(100 + client).stream();
            let mut own = truth.clone();
            own[12..].iter_mut().for_each(|z| *z = stream.normal() as f32);
            let Inputs::Real(x) = &mut part.inputs else { unreachable!() };
            x.iter_mut().for_each(|x| *x = stream.normal() as f32);
            let mut y = vec![0.0; 200];
            learner.predict(&own, Batch::all(&part), &mut Room::default(), &mut y);
            part.targets = Targets::Values(y);
            sums.iter_mut().zip(learner.start_sums(&part)).for_each(|(sum, x)| *sum += x);
        }
        let w = learner.start_from(&sums, Key::root(0)).unwrap();
        let truth = learner.start(Key::root(1));
        // The part of each true row outside the span of the estimate (orthonormal rows).
        for row in truth[..12].chunks_exact(6) {
            let mut rest: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
            let length: f64 = rest.iter().map(|x| x * x).sum();
            for v in w[..12].chunks_exact(6) {
                let along: f64 =
                    v.iter().zip(row).map(|(v, x)| f64::from(*v) * f64::from(*x)).sum();
                rest.iter_mut().zip(v).for_each(|(r, v)| *r -= along * f64::from(*v));
            }
            let outside: f64 = rest.iter().map(|x| x * x).sum();
            assert!(outside < 0.02 * length, "{outside} of {length}");
        }
    }
}
