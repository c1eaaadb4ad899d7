//! Predictions of a client: means over samples of its personal part.

use super::{Part, Personalised};
use whimbrel_core::{Samples, Targets, math, wire};
use whimbrel_models::calibration::entropy;
use whimbrel_nn::{Batch, Room};

/// A shared part and samples of a personal part.
#[derive(Clone, Debug, PartialEq)]
pub struct Predictive {
    pub phi: Vec<f32>,
    /// Samples of `z`.
    pub samples: Vec<Vec<f32>>,
    /// The noise of numerical targets.
    pub noise: f64,
}

wire!(Predictive { phi, samples, noise });

/// Predictions with their uncertainty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread {
    /// For each row: the mean of a number, or the probabilities of the classes.
    pub mean: Vec<f32>,
    /// For numbers the variance of the means over samples; for classes the predictive entropy.
    pub total: Vec<f64>,
    /// For classes the mutual information of class and personal part; empty for numbers.
    pub information: Vec<f64>,
}

/// The 95 % quantile of the normal law.
const NINETY: f64 = 1.644_853_626_951_472_2;

impl Predictive {
    /// Means over the samples, for each row.
    pub fn spread(&self, model: &Personalised, rows: &Samples) -> Spread {
        let (learner, n) = (&*model.learner, rows.len());
        let outputs = learner.outputs();
        let mut w = vec![0.0; learner.parameters()];
        model.put_shared(&mut w, &self.phi);
        // The features below a head are computed once.
        let head = (model.part == Part::Head).then(|| learner.head_on(&w, rows)).flatten();
        let (mut room, mut one) = (Room::default(), vec![0.0; n * outputs]);
        let mut mean = vec![0.0; n * outputs];
        // Squares of numbers, or entropies of single samples.
        let (mut second, mut wide) = (vec![0.0; n], Vec::new());
        for z in &self.samples {
            match &head {
                Some((head, inputs)) => head.predict(z, Batch::all(inputs), &mut room, &mut one),
                None => {
                    model.put_personal(&mut w, z.iter().copied());
                    learner.predict(&w, Batch::all(rows), &mut room, &mut one);
                }
            }
            for (row, p) in one.chunks_exact(outputs).enumerate() {
                second[row] += if learner.classifies() {
                    wide.clear();
                    wide.extend(p.iter().map(|p| f64::from(*p)));
                    entropy(&wide)
                } else {
                    f64::from(p[0]) * f64::from(p[0])
                };
            }
            mean.iter_mut().zip(&one).for_each(|(sum, p)| *sum += f64::from(*p));
        }
        let count = self.samples.len().max(1) as f64;
        mean.iter_mut().for_each(|sum| *sum /= count);
        second.iter_mut().for_each(|sum| *sum /= count);
        let (total, information) = if learner.classifies() {
            let total: Vec<f64> = mean.chunks_exact(outputs).map(entropy).collect();
            let information = total.iter().zip(&second).map(|(t, s)| (t - s).max(0.0)).collect();
            (total, information)
        } else {
            let variance = |(m, s): (&f64, &f64)| (s - m * m).max(0.0);
            (mean.iter().zip(&second).map(variance).collect(), Vec::new())
        };
        Spread { mean: mean.iter().map(|p| *p as f32).collect(), total, information }
    }

    /// Half the widths of the 90 % intervals of a new target and of its noise-free value, by a normal law
    /// with the predictive variance.
    pub fn half_widths(&self, variance: f64) -> [f64; 2] {
        let target = variance + self.noise * self.noise;
        [NINETY * target.sqrt(), NINETY * variance.sqrt()]
    }

    /// Means over rows: negative log-likelihood and accuracy, or half the squared error and the coverage of
    /// 90 % intervals.
    pub fn score(&self, model: &Personalised, rows: &Samples) -> Vec<f64> {
        let spread = self.spread(model, rows);
        let n = rows.len() as f64;
        match &rows.targets {
            Targets::Classes { of, .. } => {
                let (mut loss, mut right) = (0.0, 0u32);
                let outputs = model.learner.outputs();
                for (p, class) in spread.mean.chunks_exact(outputs).zip(of) {
                    let class = usize::from(*class);
                    loss -= math::ln(f64::from(p[class].max(f32::MIN_POSITIVE)));
                    right += u32::from(
                        (0..p.len()).fold(0, |b, c| if p[c] > p[b] { c } else { b }) == class,
                    );
                }
                vec![loss / n, f64::from(right) / n]
            }
            Targets::Values(values) => {
                let (mut loss, mut inside) = (0.0, 0u32);
                for ((m, v), y) in spread.mean.iter().zip(&spread.total).zip(values) {
                    let error = f64::from(*y) - f64::from(*m);
                    loss += 0.5 * error * error;
                    inside += u32::from(error.abs() <= self.half_widths(*v)[0]);
                }
                vec![loss / n, f64::from(inside) / n]
            }
        }
    }
}
