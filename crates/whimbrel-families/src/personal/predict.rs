//! Predictions of a trained learner, and personal models of new clients.

use super::PersonalFit;
use super::model::Model;
use super::plan::{rate, solver};
use crate::failure::{Failure, Result, remedy};
use crate::family::{FitUse, FittedClient, Learned, ModelUse, Predicted, Predictions, refuse};
use crate::job::DataSource;
use crate::load::{FileKind, read_any, settle_classes};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use whimbrel_core::{Error, Inputs, Samples, Table, Targets};
use whimbrel_data::{
    CsvOptions, Features, Input, Standardization, dense_rows, is_idx, level_of, read_idx_images,
    read_idx_numbers, read_libsvm,
};
use whimbrel_engine::metrics::number;
use whimbrel_methods::personal::{
    Adaptation, Ensemble, FedAvg, LocalRule, Own, PARAMETERS, Shape, Work,
};
use whimbrel_nn::Learner;

/// Default name of the target column.
const TARGET: &str = "target";

/// A trained learner, and the form of its input files.
pub(crate) struct Reading {
    pub learner: Arc<dyn Learner>,
    shape: Vec<usize>,
    columns: Vec<String>,
    classes: Vec<String>,
    standardization: Option<Standardization>,
    /// Whether images are transposed, as in the job.
    transpose: bool,
    /// Options of files of text.
    options: CsvOptions,
}

/// A trained learner with the parameters of a method of this family.
struct Trained {
    reading: Reading,
    rule: Arc<dyn LocalRule>,
    w: Vec<f32>,
}

impl std::ops::Deref for Trained {
    type Target = Reading;
    fn deref(&self) -> &Reading {
        &self.reading
    }
}

impl Trained {
    fn read(asked: &PersonalFit, run: &ModelUse<'_>) -> Result<Self> {
        let reading = Reading::new(&asked.model, run)?;
        let learner = &reading.learner;
        let rule = asked.rule.local.clone();
        let tensors = run.tensors()?;
        // Without a server every client has its own copy of the shared parameters.
        let copy = run.own.map_or(&[][..], |own| &own.narrow);
        let mut found =
            copy.iter().chain(&tensors.narrow).filter(|t| t.name == PARAMETERS).cloned();
        let found = found.next();
        let found = found.ok_or_else(|| run.broken("the model has no `parameters`"))?;
        let (len, expected) = match found.shape[..] {
            // Clusters and related models have several parameter vectors.
            [_, len] => (len as usize, learner.parameters()),
            _ => (found.values.len(), rule.blocks(&Shape::new(&**learner)).iter().sum()),
        };
        if len != expected {
            return Err(run.broken(&format!("{len} parameters, expected {expected}")));
        }
        let w = found.values;
        Ok(Self { reading, rule, w })
    }

    fn mixture(&self, own: &Own) -> Result<Ensemble> {
        Ok(self.rule.personal(&Shape::new(&*self.learner), &self.w, own)?)
    }
}

impl Reading {
    pub fn new(model: &Model, run: &ModelUse<'_>) -> Result<Self> {
        let list = |key: &str| run.model.get(key).and_then(Value::as_array);
        let shape: Option<Vec<usize>> = list("shape")
            .map(|all| all.iter().filter_map(|n| n.as_u64().map(|n| n as usize)).collect());
        let shape = shape.filter(|shape| !shape.is_empty());
        let shape = shape.ok_or_else(|| run.broken("`shape` must be a list of lengths"))?;
        let classes = run.names("classes").unwrap_or_default();
        let (columns, standardization) = (run.columns()?, run.standardization()?);
        let learner = model.learner(&shape, classes.len())?;
        let transpose = matches!(&run.job.data.source, DataSource::Idx(idx) if idx.transpose);
        let options = run.csv_options();
        Ok(Self { learner, shape, columns, classes, standardization, transpose, options })
    }

    /// Inputs of a file, with targets if `target` names their column.
    pub fn samples(&self, rows: &Input, libsvm: bool, target: Option<&str>) -> Result<Samples> {
        let width: usize = self.shape.iter().product();
        if let Some(file) = rows.file().filter(|file| is_idx(file)) {
            return self.images(file, None);
        }
        let (values, mut targets) = if let (true, Some(file)) = (libsvm, rows.file()) {
            let rows = read_libsvm(file, Some(width))?;
            (dense_rows(&rows)?, target.map(|_| (rows.targets, Vec::new())))
        } else {
            let data = read_any(rows, &self.options)?;
            match target {
                None => {
                    let features = data.features(&Features::Listed(&self.columns))?;
                    (data.table(&features)?.values, None)
                }
                Some(target) => {
                    let rows = data.labelled(target, &Features::Listed(&self.columns))?;
                    let names = data.class_names(target)?;
                    (dense_rows(&rows)?, Some((rows.targets, names)))
                }
            }
        };
        let mut table = Table::new(self.columns.clone(), values)?;
        if let Some(standardization) = &self.standardization {
            standardization.apply_table(&mut table)?;
        }
        let rows = table.rows();
        let inputs = Inputs::Real(table.values.iter().map(|x| *x as f32).collect());
        let targets = match &mut targets {
            None => self.none(rows),
            Some((values, _)) if !self.learner.classifies() => {
                Targets::Values(values.iter().map(|y| *y as f32).collect())
            }
            Some((values, names)) => self.numbered(values, names)?,
        };
        Ok(Samples::new(self.shape.clone(), inputs, targets)?)
    }

    /// Images, with the labels of a label file.
    fn images(&self, file: &Path, labels: Option<&Path>) -> Result<Samples> {
        let mut images = read_idx_images(file)?;
        if self.transpose {
            images.transpose()?;
        }
        let (rows, bytes) = (images.rows(), images.bytes().to_vec());
        if bytes.len() != rows * self.shape.iter().product::<usize>() {
            let what =
                format!("{}: the size of the images is not {:?}", file.display(), self.shape);
            return Err(Error::data(what).into());
        }
        let targets = match labels {
            None => self.none(rows),
            Some(labels) => {
                let labels = read_idx_numbers(labels, rows, 0)?;
                let mut labels: Vec<f64> = labels.into_iter().map(f64::from).collect();
                self.numbered(&mut labels, &[])?
            }
        };
        Ok(Samples::new(self.shape.clone(), Inputs::Bytes(bytes), targets)?)
    }

    /// A new client's rows with targets.
    pub fn samples_with_targets(
        &self,
        run: &ModelUse<'_>,
        rows: &Input,
        labels: Option<&Path>,
    ) -> Result<Samples> {
        let target = match &run.job.data.source {
            DataSource::Csv(csv) => csv.target.as_deref().unwrap_or(TARGET),
            _ => TARGET,
        };
        let Some(file) = rows.file() else {
            return not_empty(self.samples(rows, false, Some(target))?);
        };
        let samples = match (FileKind::of(file), labels) {
            (FileKind::Idx, None) => {
                let what = "images have no targets to fit a personal part to";
                return refuse(what, "give the label file with --labels");
            }
            (FileKind::Idx, labels) => self.images(file, labels)?,
            (_, Some(_)) => return refuse("--labels is for images", "take it out"),
            (FileKind::Npy, None) => {
                let what = "a npy file has no targets to fit a personal part to";
                return refuse(what, "give a CSV or LIBSVM file, or images with --labels");
            }
            (FileKind::Libsvm, None) => self.samples(rows, true, Some(target))?,
            (FileKind::Csv | FileKind::Parquet, None) => self.samples(rows, false, Some(target))?,
        };
        not_empty(samples)
    }

    /// Placeholder targets.
    fn none(&self, rows: usize) -> Targets {
        if self.learner.classifies() {
            Targets::Classes { of: vec![0; rows], count: self.classes.len() }
        } else {
            Targets::Values(vec![0.0; rows])
        }
    }

    /// Codes targets by the run's classes.
    fn numbered(&self, values: &mut [f64], names: &[String]) -> Result<Targets> {
        // A new client may have a single class.
        let found = if !values.is_empty() && values.iter().all(|y| *y == values[0]) {
            let name = names.first().cloned().unwrap_or_else(|| values[0].to_string());
            values.fill(0.0);
            vec![name]
        } else {
            settle_classes(values, names)?
        };
        let places: Vec<u16> = found
            .iter()
            .map(|name| {
                let place = level_of(&self.classes, name);
                place.map(|at| at as u16).ok_or_else(|| {
                    let classes = self.classes.join(", ");
                    let what = format!("class {name:?} is not one of the run's classes: {classes}");
                    Failure::from(Error::data(what))
                })
            })
            .collect::<Result<_>>()?;
        let of = values.iter().map(|y| places[*y as usize]).collect();
        Ok(Targets::Classes { of, count: self.classes.len() })
    }

    /// The predictions as columns.
    pub fn table(&self, predictions: &[f32]) -> Predicted {
        let rows = predictions.len() / self.learner.outputs();
        if !self.learner.classifies() {
            let mean = predictions.iter().map(|x| f64::from(*x)).sum::<f64>() / rows as f64;
            let words = format!("mean prediction {mean:.6}");
            let figures = vec![("mean_prediction", json!(mean))];
            let columns = vec![("prediction".into(), Predictions::Narrow(predictions.to_vec()))];
            return Predicted { columns, figures, words };
        }
        let outputs = self.learner.outputs();
        let best_of = |p: &[f32]| (0..p.len()).fold(0, |at, i| if p[i] > p[at] { i } else { at });
        let best: Vec<usize> = predictions.chunks_exact(outputs).map(best_of).collect();
        let mut counts = vec![0usize; self.classes.len()];
        best.iter().for_each(|class| counts[*class] += 1);
        let most =
            (0..counts.len()).fold(0, |most, at| if counts[at] > counts[most] { at } else { most });
        let share = counts[most] as f64 / rows.max(1) as f64;
        let words = format!("{:.1} % in class {}", 100.0 * share, self.classes[most]);
        let labels = Predictions::Labels { of: best, names: self.classes.clone() };
        let mut columns = vec![("label".into(), labels)];
        columns.extend(self.classes.iter().enumerate().map(|(at, class)| {
            let each = predictions.iter().skip(at).step_by(outputs).copied().collect();
            (format!("p_{class}"), Predictions::Narrow(each))
        }));
        Predicted { columns, figures: vec![("share", json!(share))], words }
    }
}

/// Refuses a client without rows.
fn not_empty(samples: Samples) -> Result<Samples> {
    if samples.is_empty() {
        return refuse("the new client has no rows", "give at least one row with its target");
    }
    Ok(samples)
}

impl PersonalFit {
    /// The trained learner with the models that predict.
    fn predictor(&self, run: &ModelUse<'_>) -> Result<(Trained, Ensemble)> {
        let trained = Trained::read(self, run)?;
        let own = run.own.map(Own::from_artifact).unwrap_or_default();
        if own.is_empty() && !self.shared_predicts() {
            return refuse(
                format!(
                    "a model of {} predicts for a client, and none is named",
                    self.rule.method()
                ),
                format!("{}, or {}", remedy::NAME_CLIENT, remedy::ADAPT),
            );
        }
        let mixture = trained.mixture(&own)?;
        Ok((trained, mixture))
    }
}

impl FitUse for PersonalFit {
    fn predict(&self, run: &ModelUse<'_>, rows: &Input) -> Result<Predicted> {
        let (trained, mixture) = self.predictor(run)?;
        let samples = trained.samples(rows, run.libsvm, None)?;
        Ok(trained.table(&mixture.predict(&*trained.learner, &samples)))
    }

    fn learned(&self, run: &ModelUse<'_>) -> Result<Learned> {
        let (trained, Ensemble { weights, models }) = self.predictor(run)?;
        let tensors = trained.learner.tensors().iter();
        Ok(Learned {
            tensors: tensors.map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect(),
            models: weights.into_iter().zip(models).collect(),
        })
    }

    fn adapt_rows(
        &self,
        run: &ModelUse<'_>,
        rows: &Input,
        labels: Option<&Path>,
    ) -> Result<FittedClient> {
        let trained = Trained::read(self, run)?;
        let adaptation = trained.rule.adaptation();
        if !adaptation.is_possible() {
            let hint = match adaptation {
                Adaptation::Impossible => {
                    "clients share nothing: train on the new client's rows alone"
                }
                _ => "all clients use the shared model, which `predict` applies",
            };
            return refuse(format!("{} has no personal part to fit", self.rule.method()), hint);
        }
        let samples = trained.samples_with_targets(run, rows, labels)?;
        let solver = solver(self, run.job);
        let key = whimbrel_core::Key::root(run.job.seed);
        let mut work = Work::new(&*trained.learner, &solver, &samples, rate(run.job), key);
        let own = trained.rule.adapt(&mut work, &trained.w)?;
        let mixture = trained.mixture(&own)?;
        let score = mixture.score(&*trained.learner, &samples);
        let names = ["train_loss", "train_accuracy"].into_iter();
        let mut fitted = FittedClient {
            artifact: own.artifact(trained.learner.name()),
            predicted: trained.table(&mixture.predict(&*trained.learner, &samples)),
            rows: samples.len(),
            figures: names.zip(&score).map(|(name, value)| (name, number(*value))).collect(),
            notes: Vec::new(),
        };
        if mixture.weights.len() > 1 {
            let weights = mixture.weights.iter();
            fitted.figures.push(("weights", weights.clone().map(|w| number(*w)).collect()));
            let weights = weights.map(|w| format!("{w:.3}")).collect::<Vec<_>>().join(", ");
            fitted.notes.push(format!("mixture weights: {weights}"));
        }
        Ok(fitted)
    }

    fn shared_predicts(&self) -> bool {
        self.rule.local.adaptation().shared_predicts()
    }

    fn without_own(&self) -> Option<(String, &'static str)> {
        let (Some(rule), None) = (self.setting::<FedAvg>(), &self.neighbours) else { return None };
        let method = self.rule.method();
        if !rule.fine_tune {
            let what = format!("{method} has one model for all clients");
            return Some((what, remedy::NO_CLIENT));
        }
        let what = format!("{method} keeps no personal models: a client fine-tunes the shared one");
        Some((what, remedy::ADAPT))
    }
}
