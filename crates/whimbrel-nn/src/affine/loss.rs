//! Losses of scores, and their derivatives.

use whimbrel_core::{Error, Result, Targets, kernel, math};

use crate::Batch;
use crate::elementary::exp;

/// A loss of the scores of a sample.
pub trait Loss: Send + Sync + 'static {
    /// The learner's name.
    const NAME: &'static str;
    /// Number of scores for this number of outputs of the learner.
    fn scores(outputs: usize) -> usize;
    /// Whether classes are predicted.
    const CLASSIFIES: bool;
    /// Upper bound on the eigenvalues of the Hessian in the scores.
    const CURVATURE: f64;
    /// Refuses targets that these outputs cannot predict.
    fn check(targets: &Targets, outputs: usize) -> Result<()>;
    /// Sets each sample's loss, and replaces `scores` by the losses' derivatives; samples are those of the
    /// batch from `from` on.
    fn derive(scores: &mut [f32], batch: Batch<'_>, from: usize, losses: &mut [f32]);
    /// Replaces `scores` by the derivatives, without the losses.
    fn derive_alone(scores: &mut [f32], batch: Batch<'_>, from: usize, room: &mut [f32]) {
        Self::derive(scores, batch, from, room);
    }
    /// Sets each sample's loss; `scores` are overwritten.
    fn losses(scores: &mut [f32], batch: Batch<'_>, from: usize, losses: &mut [f32]) {
        Self::derive(scores, batch, from, losses);
    }
    /// Each sample's prediction.
    fn predict(scores: &[f32], predictions: &mut [f32]);
}

/// Half the squared error of one score.
pub struct SquaredError;
/// The cross-entropy of two classes; the score is the log-odds of class 1.
pub struct LogOdds;
/// The cross-entropy of the softmax of one score per class.
pub struct CrossEntropy;

impl Loss for SquaredError {
    const NAME: &'static str = "linear";
    const CLASSIFIES: bool = false;
    const CURVATURE: f64 = 1.0;

    fn scores(_outputs: usize) -> usize {
        1
    }

    fn check(targets: &Targets, _outputs: usize) -> Result<()> {
        match targets {
            Targets::Values(_) => Ok(()),
            Targets::Classes { .. } => Err(Error::data("`linear` predicts numbers, not classes")),
        }
    }

    fn derive(scores: &mut [f32], batch: Batch<'_>, from: usize, losses: &mut [f32]) {
        let Targets::Values(values) = &batch.samples.targets else { return };
        for (j, (score, loss)) in scores.iter_mut().zip(losses).enumerate() {
            *score -= values[batch.place(from + j)];
            *loss = 0.5 * *score * *score;
        }
    }

    fn predict(scores: &[f32], predictions: &mut [f32]) {
        predictions.copy_from_slice(scores);
    }
}

impl Loss for LogOdds {
    const NAME: &'static str = "logistic";
    const CLASSIFIES: bool = true;
    const CURVATURE: f64 = 0.25;

    fn scores(_outputs: usize) -> usize {
        1
    }

    fn check(targets: &Targets, _outputs: usize) -> Result<()> {
        check_classes(Self::NAME, targets, 2)
    }

    fn derive(scores: &mut [f32], batch: Batch<'_>, from: usize, losses: &mut [f32]) {
        classes(batch, from, losses);
        log_odds(scores, losses);
    }

    fn derive_alone(scores: &mut [f32], batch: Batch<'_>, from: usize, room: &mut [f32]) {
        classes(batch, from, room);
        log_odds_derivatives(scores, room);
    }

    fn losses(scores: &mut [f32], batch: Batch<'_>, from: usize, losses: &mut [f32]) {
        classes(batch, from, losses);
        log_odds_losses(scores, losses);
    }

    fn predict(scores: &[f32], predictions: &mut [f32]) {
        for (score, both) in scores.iter().zip(predictions.chunks_exact_mut(2)) {
            let small = exp(-score.abs());
            let likely = 1.0 / (1.0 + small);
            let rare = small / (1.0 + small);
            both.copy_from_slice(&if *score < 0.0 { [likely, rare] } else { [rare, likely] });
        }
    }
}

/// Writes the classes of samples as numbers.
fn classes(batch: Batch<'_>, from: usize, classes: &mut [f32]) {
    let Targets::Classes { of, .. } = &batch.samples.targets else { return };
    for (j, class) in classes.iter_mut().enumerate() {
        *class = f32::from(of[batch.place(from + j)]);
    }
}

kernel! {
    /// The losses of [`log_odds`] alone.
    fn log_odds_losses(scores: &[f32], losses: &mut [f32]) {
        for (score, loss) in scores.iter().zip(losses) {
            let (z, y) = (f64::from(*score), f64::from(*loss));
            let small = math::exp(-z.abs());
            let positive = if z > 0.0 { z } else { 0.0 };
            *loss = (positive - y * z + math::ln(1.0 + small)) as f32;
        }
    }
}

kernel! {
    /// The derivatives of [`log_odds`] alone.
    fn log_odds_derivatives(scores: &mut [f32], classes: &[f32]) {
        for (score, class) in scores.iter_mut().zip(classes) {
            let (z, y) = (f64::from(*score), f64::from(*class));
            let small = math::exp(-z.abs());
            let numerator = if z < 0.0 { small } else { 1.0 };
            *score = (numerator / (1.0 + small) - y) as f32;
        }
    }
}

kernel! {
    /// With `z` the score and `y` in `losses` the class: loss `ln(1 + e^z) - y z`, derivative
    /// `1 / (1 + e^-z) - y`.
    fn log_odds(scores: &mut [f32], losses: &mut [f32]) {
        for (score, loss) in scores.iter_mut().zip(losses) {
            let (z, y) = (f64::from(*score), f64::from(*loss));
            let small = math::exp(-z.abs());
            let positive = if z > 0.0 { z } else { 0.0 };
            let numerator = if z < 0.0 { small } else { 1.0 };
            *loss = (positive - y * z + math::ln(1.0 + small)) as f32;
            *score = (numerator / (1.0 + small) - y) as f32;
        }
    }
}

impl Loss for CrossEntropy {
    const NAME: &'static str = "softmax";
    const CLASSIFIES: bool = true;
    /// Boehning (1992).
    const CURVATURE: f64 = 0.5;

    fn scores(outputs: usize) -> usize {
        outputs
    }

    fn check(targets: &Targets, outputs: usize) -> Result<()> {
        check_classes(Self::NAME, targets, outputs)
    }

    fn derive(scores: &mut [f32], batch: Batch<'_>, from: usize, losses: &mut [f32]) {
        let Targets::Classes { of, .. } = &batch.samples.targets else { return };
        let classes = scores.len() / losses.len().max(1);
        // loss = ln sum e^(z - max) - (z_y - max), derivative = softmax - [class is y]
        for (j, loss) in losses.iter_mut().enumerate() {
            let scores = &mut scores[j * classes..][..classes];
            below_the_largest(scores);
            *loss = -scores[usize::from(of[batch.place(from + j)])];
        }
        exp_all(scores);
        for (j, loss) in losses.iter_mut().enumerate() {
            let scores = &mut scores[j * classes..][..classes];
            *loss += math::ln(f64::from(normalise(scores))) as f32;
            scores[usize::from(of[batch.place(from + j)])] -= 1.0;
        }
    }

    fn predict(scores: &[f32], predictions: &mut [f32]) {
        predictions.copy_from_slice(scores);
        softmax(predictions, scores.len());
    }
}

/// The softmax of each run of `classes` scores.
pub(super) fn softmax(scores: &mut [f32], classes: usize) {
    for scores in scores.chunks_exact_mut(classes) {
        below_the_largest(scores);
        exp_all(scores);
        normalise(scores);
    }
}

fn below_the_largest(scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score -= largest);
}

/// Divides by the sum and returns it.
fn normalise(x: &mut [f32]) -> f32 {
    let sum: f32 = x.iter().sum();
    let factor = 1.0 / sum;
    x.iter_mut().for_each(|x| *x *= factor);
    sum
}

kernel! {
    /// `e^x` of each.
    pub fn exp_all(x: &mut [f32]) {
        for x in x {
            *x = exp(*x);
        }
    }
}

/// Refuses targets that are not classes below `count`.
pub(crate) fn check_classes(name: &str, targets: &Targets, count: usize) -> Result<()> {
    match targets {
        Targets::Classes { count: found, .. } if *found <= count => Ok(()),
        Targets::Classes { count: found, .. } => {
            Err(Error::data(format!("`{name}` predicts {count} classes, the data have {found}")))
        }
        Targets::Values(_) => Err(Error::data(format!("`{name}` predicts classes, not numbers"))),
    }
}
