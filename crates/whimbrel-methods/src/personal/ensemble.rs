//! A client's predictor: a weighted mixture of models.

use super::Work;
use whimbrel_core::{Key, Result, Samples, Targets, math, wire};
use whimbrel_nn::{Batch, Learner, Room};

/// Models with weights that sum to one; often a single model.
#[derive(Clone, Debug, PartialEq)]
pub struct Ensemble {
    /// `pi`.
    pub weights: Vec<f64>,
    pub models: Vec<Vec<f32>>,
}

wire!(Ensemble { weights, models });

impl Ensemble {
    pub fn single(model: Vec<f32>) -> Self {
        Self { weights: vec![1.0], models: vec![model] }
    }

    /// Probabilities of the classes, or a number, for each sample.
    pub fn predict(&self, learner: &dyn Learner, samples: &Samples) -> Vec<f32> {
        let (mut room, mut mean) = (Room::default(), Vec::new());
        let mut one = vec![0.0; samples.len() * learner.outputs()];
        for (weight, model) in self.weights.iter().zip(&self.models) {
            if *weight == 0.0 {
                continue;
            }
            learner.predict(model, Batch::all(samples), &mut room, &mut one);
            if mean.is_empty() {
                mean = one.iter().map(|p| *weight as f32 * p).collect();
            } else {
                mean.iter_mut().zip(&one).for_each(|(sum, p)| *sum += *weight as f32 * p);
            }
        }
        mean
    }

    /// The mean loss of the predictions, and the accuracy where targets are classes; empty without
    /// samples.
    pub fn score(&self, learner: &dyn Learner, samples: &Samples) -> Vec<f64> {
        if samples.is_empty() {
            return Vec::new();
        }
        let predicted = self.predict(learner, samples);
        let n = samples.len() as f64;
        match &samples.targets {
            Targets::Classes { of, .. } => {
                let (mut loss, mut right) = (0.0, 0u32);
                for (p, class) in predicted.chunks_exact(learner.outputs()).zip(of) {
                    let class = usize::from(*class);
                    // A probability that rounds to zero still has a finite loss.
                    loss -= math::ln(f64::from(p[class].max(f32::MIN_POSITIVE)));
                    right += u32::from(largest(p) == class);
                }
                vec![loss / n, f64::from(right) / n]
            }
            Targets::Values(values) => {
                let half = |(p, y): (&f32, &f32)| 0.5 * f64::from(p - y) * f64::from(p - y);
                vec![predicted.iter().zip(values).map(half).sum::<f64>() / n]
            }
        }
    }
}

/// The index of the largest number; the first of equals.
pub(super) fn largest(p: &[f32]) -> usize {
    let mut best = 0;
    for (at, value) in p.iter().enumerate() {
        if *value > p[best] {
            best = at;
        }
    }
    best
}

/// The largest eigenvalue of the Hessian of the client's mean loss at `w`, by power iterations on
/// differences of gradients.
pub(super) fn smoothness(work: &mut Work<'_>, w: &[f32], key: Key) -> Result<f64> {
    const ITERATIONS: usize = 12;
    let norm = |x: &[f32]| x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    let mut stream = key.stream();
    let mut direction: Vec<f32> = w.iter().map(|_| stream.normal() as f32).collect();
    let (mut at_w, mut beside) = (vec![0.0; w.len()], vec![0.0; w.len()]);
    work.full_gradient(w, &mut at_w);
    let epsilon = 1e-2 * (1.0 + norm(w)) as f32;
    let mut largest = 0.0;
    for _ in 0..ITERATIONS {
        let scale = epsilon / norm(&direction).max(1e-30) as f32;
        let moved: Vec<f32> = w.iter().zip(&direction).map(|(w, d)| w + scale * d).collect();
        work.full_gradient(&moved, &mut beside);
        direction.clear();
        direction.extend(beside.iter().zip(&at_w).map(|(b, a)| b - a));
        largest = norm(&direction) / f64::from(epsilon);
        if largest == 0.0 {
            break;
        }
    }
    Ok(largest)
}
