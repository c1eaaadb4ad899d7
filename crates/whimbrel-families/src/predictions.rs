//! Evaluation of clients' predictions: on test rows, on unrelated images, and against the true model
//! of generated data.

use crate::failure::Result;
use crate::load::Loaded;
use crate::uncertainty;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;
use whimbrel_core::declare::{Better, Exhibit, Unit};
use whimbrel_core::{ClientData, Error, Inputs, Measure, Samples, Targets, math};
use whimbrel_data::{Images, LogisticTruth, RepresentationTruth, read_idx_images};
use whimbrel_engine::metrics::number;
use whimbrel_job::form::PATH;
use whimbrel_job::key::JobKey;
use whimbrel_models::calibration::{Reliability, auroc, entropy};

pub(crate) static OUTSIDE: JobKey = PATH.unset(
    "outside",
    "none",
    "images in the layout of MNIST that are unlike the data: the report sets their predictive entropies \
     beside those of test rows",
);

/// Nominal levels of intervals.
pub(crate) const LEVELS: [f64; 6] = [0.5, 0.6, 0.7, 0.8, 0.9, 0.95];
/// Most unrelated images that are evaluated.
const OUTSIDE_MAX: usize = 1000;

/// Held-out rows and true models, kept until a run's predictions can be evaluated.
pub(crate) struct TestRows {
    /// The shape of an input.
    pub shape: Vec<usize>,
    /// Names of the clients by id.
    pub names: Vec<String>,
    pub classes: usize,
    /// The true representation of generated data.
    pub truth: Option<RepresentationTruth>,
    tests: Vec<Option<Samples>>,
    /// Whether each client trained.
    trained: Vec<bool>,
    /// Rows of generated clients that did not train, by name.
    pub unseen: BTreeMap<String, Samples>,
    /// Accuracy of the Bayes rule on test rows: of clients that train, and of others.
    pub bayes: [Option<f64>; 2],
    /// The true mixture of generated data.
    pub law: Option<LogisticTruth>,
}

/// A client's predictions: class probabilities, or numbers with standard deviations of the targets
/// (empty if unknown).
pub(crate) struct Stated {
    pub mean: Vec<f32>,
    pub deviations: Vec<f64>,
}

/// Predictions of a client, by name; `None` if it has no model.
pub(crate) type Predict<'a> = dyn Fn(&str, &Samples) -> Option<Stated> + 'a;

impl TestRows {
    pub fn of(loaded: &Loaded) -> Option<Self> {
        let test = |data: &ClientData| match data {
            ClientData::Samples(samples) => samples.held_out.test.as_deref().cloned(),
            _ => None,
        };
        let is_generated = loaded.representation.is_some() || loaded.truth.is_some();
        let unseen = |id: usize| {
            let is_unseen = loaded.unseen.get(id).copied().unwrap_or_default();
            let (name, data) = loaded.clients.get(id)?;
            match data {
                ClientData::Samples(rows) if is_unseen && is_generated => {
                    Some((name.clone(), rows.clone()))
                }
                _ => None,
            }
        };
        let trained = |id: usize| !loaded.unseen.get(id).copied().unwrap_or_default();
        Some(Self {
            trained: (0..loaded.clients.len()).map(trained).collect(),
            unseen: (0..loaded.clients.len()).filter_map(unseen).collect(),
            shape: loaded.shape()?.to_vec(),
            names: loaded.clients.iter().map(|(name, _)| name.clone()).collect(),
            classes: loaded.classes.len(),
            truth: loaded.representation.clone(),
            tests: loaded.clients.iter().map(|(_, data)| test(data)).collect(),
            bayes: [bayes_accuracy(loaded, false), bayes_accuracy(loaded, true)],
            law: loaded.truth.as_ref().map(|truth| truth.law.clone()),
        })
    }

    /// The noise of generated data.
    pub fn noise(&self) -> Option<f64> {
        self.truth.as_ref().map(|truth| truth.noise)
    }

    /// Calibration on test rows, and predictive entropies compared with those of unrelated images:
    /// keys of `summary.json`, and exhibits.
    pub fn calibration(
        &self,
        outside: Option<&Path>,
        predict: &Predict<'_>,
    ) -> Result<(Map<String, Value>, Vec<Exhibit>)> {
        let others = outside.map(|file| self.rows_of(file)).transpose()?;
        let mut seen = Reliability::new(Reliability::BINS);
        let (mut inside, mut elsewhere) = (Vec::new(), Vec::new());
        let (mut held, mut rows) = ([0u64; LEVELS.len()], 0u64);
        let clients = self.names.iter().zip(&self.tests).zip(&self.trained);
        // All methods are judged on the same rows: some have no predictions for other clients.
        for ((name, test), _) in clients.filter(|(_, trained)| **trained) {
            let Some(test) = test else { continue };
            let Some(stated) = predict(name, test) else { continue };
            match &test.targets {
                Targets::Classes { of, .. } => {
                    for (p, class) in self.rows(&stated).zip(of) {
                        seen.add(&p, usize::from(*class));
                        inside.push(entropy(&p));
                    }
                    let others = others.as_ref().and_then(|others| predict(name, others));
                    elsewhere
                        .extend(others.iter().flat_map(|all| self.rows(all).map(|p| entropy(&p))));
                }
                Targets::Values(values) => {
                    for ((m, deviation), y) in
                        stated.mean.iter().zip(&stated.deviations).zip(values)
                    {
                        let error = (f64::from(*y) - f64::from(*m)).abs();
                        rows += 1;
                        for (count, level) in held.iter_mut().zip(LEVELS) {
                            let width = math::normal_quantile(0.5 + 0.5 * level);
                            *count += u64::from(error <= width * deviation);
                        }
                    }
                }
            }
        }
        let (mut summary, mut exhibits) = (Map::new(), Vec::new());
        if seen.count() > 0.0 {
            summary.insert("test_ece".into(), number(seen.expected_calibration_error()));
            exhibits.extend(uncertainty::reliability(&seen));
        }
        if !elsewhere.is_empty() {
            summary.insert("outside_auroc".into(), number(auroc(&inside, &elsewhere)));
            exhibits.extend(uncertainty::entropies(&inside, &elsewhere, self.classes));
        }
        if rows > 0 {
            let share = |(count, level): (&u64, f64)| [level, *count as f64 / rows as f64];
            let points: Vec<[f64; 2]> = held.iter().zip(LEVELS).map(share).collect();
            exhibits
                .extend(uncertainty::coverage(&points, "Test rows of the clients that trained"));
        }
        Ok((summary, exhibits))
    }

    /// Class probabilities of each row.
    fn rows<'a>(&self, stated: &'a Stated) -> impl Iterator<Item = Vec<f64>> + 'a {
        let wide = |p: &[f32]| p.iter().map(|p| f64::from(*p)).collect();
        stated.mean.chunks_exact(self.classes.max(1)).map(wide)
    }

    /// Unrelated images from a file.
    fn rows_of(&self, file: &Path) -> Result<Samples> {
        let images = outside_images(file, &self.shape)?;
        let rows = images.rows().min(OUTSIDE_MAX);
        let bytes = images.bytes()[..rows * images.width()].to_vec();
        let none = Targets::Classes { of: vec![0; rows], count: self.classes };
        Ok(Samples::new(self.shape.clone(), Inputs::Bytes(bytes), none)?)
    }

    /// Mean squared distance of the clients' predictors to the true linear ones, for clients that
    /// trained and for others: keys of `summary.json`.
    pub fn prediction_errors(&self, predict: &Predict<'_>) -> Result<Map<String, Value>> {
        let Some(truth) = &self.truth else { return Ok(Map::new()) };
        // A linear predictor is determined by its values at zero and at the unit vectors.
        let width: usize = self.shape.iter().product();
        let is_one = |at: usize| at % (width + 1) == width;
        let inputs = (0..(width + 1) * width).map(|at| f32::from(u8::from(is_one(at))));
        let targets = Targets::Values(vec![0.0; width + 1]);
        let units = Samples::new(vec![width], Inputs::Real(inputs.collect()), targets)?;
        let mut means = [("prediction_error", 0.0, 0.0), ("unseen_prediction_error", 0.0, 0.0)];
        for (name, predictor) in self.names.iter().zip(&truth.predictors) {
            let Some(found) = predict(name, &units) else { continue };
            let (_, sum, heard) = &mut means[usize::from(self.unseen.contains_key(name))];
            let at_zero = f64::from(found.mean[0]);
            let coefficients = found.mean[1..].iter().zip(predictor);
            let distance = coefficients.map(|(w, u)| (f64::from(*w) - at_zero - u).powi(2));
            *sum += distance.sum::<f64>() + at_zero * at_zero;
            *heard += 1.0;
        }
        let heard = means.into_iter().filter(|(_, _, heard)| *heard > 0.0);
        Ok(heard.map(|(key, sum, heard)| (key.to_owned(), number(sum / heard))).collect())
    }
}

/// Mean accuracy of the Bayes rule, weighted by rows.
fn bayes_accuracy(loaded: &Loaded, unseen: bool) -> Option<f64> {
    let truth = loaded.truth.as_ref()?;
    let (mut total, mut sum) = (0.0, 0.0);
    for (id, accuracy) in truth.bayes_accuracy.iter().enumerate() {
        let is_unseen = loaded.unseen.get(id).copied().unwrap_or_default();
        let rows = loaded.rows.get(id).copied().flatten();
        if let (Some(accuracy), Some(rows), true) = (accuracy, rows, is_unseen == unseen) {
            total += rows as f64;
            sum += rows as f64 * accuracy;
        }
    }
    (total > 0.0).then(|| sum / total)
}

/// Declarations of the figures, in the order of result tables.
pub(crate) fn measures() -> Vec<Measure> {
    let figure = |key: &'static str, name: &'static str, better: Better| {
        Measure::new(key, name, name, "").better(better).result(3).without_curve()
    };
    let share = |key: &'static str, name: &'static str, better: Better| {
        figure(key, name, better).unit(Unit::Share)
    };
    let aside = |measure: Measure| Measure { headline: false, ..measure };
    vec![
        figure("prediction_error", "prediction error", Better::Down),
        aside(figure("unseen_prediction_error", "prediction error, unseen", Better::Down)),
        aside(figure("subspace_error", "subspace error", Better::Down)),
        share("coverage_90", "coverage of new targets at 90 %", Better::Neither),
        aside(share("coverage_90_mean", "coverage of means at 90 %", Better::Neither)),
        figure("test_ece", "calibration error (ECE)", Better::Down),
        figure("outside_auroc", "AUROC outside", Better::Up),
        aside(figure("r_hat_median", "R-hat", Better::Down)),
        aside(figure("ess_median", "effective samples", Better::Up)),
        aside(figure("weights_entropy", "entropy of the weights", Better::Neither)),
        aside(figure("unseen_weights_entropy", "entropy of the weights, unseen", Better::Neither)),
        aside(figure("component_distance", "distance of the components", Better::Down)),
        aside(figure("weights_distance", "distance of the weights", Better::Down)),
        aside(share("bayes_accuracy", "Bayes accuracy", Better::Neither)),
        aside(share("bayes_accuracy_unseen", "Bayes accuracy, unseen", Better::Neither)),
    ]
}

/// Refuses unrelated images whose size differs from the data's.
pub(crate) fn check_outside(file: Option<&Path>, shape: &[usize]) -> Result<()> {
    file.map_or(Ok(()), |file| outside_images(file, shape).map(|_| ()))
}

fn outside_images(file: &Path, shape: &[usize]) -> Result<Images> {
    let images = read_idx_images(file)?;
    let width: usize = shape.iter().product();
    if images.width() != width {
        let (file, found) = (file.display(), images.width());
        let what = format!("`outside`: {file} has images of {found} pixels, the data of {width}");
        let hint = "give images of the data's size, or take `outside` out";
        return Err(Error::config(what).hint(hint).into());
    }
    Ok(images)
}
