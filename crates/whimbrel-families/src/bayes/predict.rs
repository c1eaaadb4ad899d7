//! Posterior predictions, and the posterior of a new client.

use super::SoulFit;
use super::plan::{noise, soul};
use crate::failure::{Result, remedy};
use crate::family::{FitUse, FittedClient, ModelUse, Predicted, Predictions, refuse};
use crate::personal::predict::Reading;
use serde_json::Value;
use std::path::Path;
use whimbrel_core::Samples;
use whimbrel_core::text::counted;
use whimbrel_data::Input;
use whimbrel_engine::metrics::number;
use whimbrel_methods::bayes::{Own, Predictive, Soul};

struct Fitted {
    reading: Reading,
    soul: Soul,
    theta: Vec<f32>,
}

impl Fitted {
    fn read(asked: &SoulFit, run: &ModelUse<'_>) -> Result<Self> {
        let reading = Reading::new(&asked.model, run)?;
        let drawn = run.model.get("noise").and_then(Value::as_f64);
        let noise = noise(asked, drawn);
        let soul = soul(asked, run.job, reading.learner.clone(), noise, 1.0)?;
        let tensors = run.tensors()?;
        let theta = soul.theta_of(&tensors);
        let theta = theta.ok_or_else(|| run.broken("the tensors do not match the job's model"))?;
        Ok(Self { reading, soul, theta })
    }

    /// Predictions with intervals, or with entropies for classes.
    fn table(&self, own: &Predictive, rows: &Samples) -> Predicted {
        let spread = own.spread(&self.soul.model, rows);
        let mut predicted = self.reading.table(&spread.mean);
        let mut add = |name: &str, values: &mut dyn Iterator<Item = f64>| {
            let values = values.map(|x| x as f32).collect();
            predicted.columns.push((name.into(), Predictions::Narrow(values)));
        };
        if self.reading.learner.classifies() {
            add("entropy", &mut spread.total.iter().copied());
            add("mutual_information", &mut spread.information.iter().copied());
            return predicted;
        }
        let each = || spread.mean.iter().map(|m| f64::from(*m)).zip(&spread.total);
        add("low_90", &mut each().map(|(m, v)| m - own.half_widths(*v)[0]));
        add("high_90", &mut each().map(|(m, v)| m + own.half_widths(*v)[0]));
        add("deviation_mean", &mut spread.total.iter().map(|v| v.sqrt()));
        predicted
    }

    fn predictive(&self, samples: Vec<Vec<f32>>) -> Predictive {
        self.soul.predictive_of(&self.theta, samples)
    }
}

impl FitUse for SoulFit {
    fn predict(&self, run: &ModelUse<'_>, rows: &Input) -> Result<Predicted> {
        let fitted = Fitted::read(self, run)?;
        let samples = run.own.map(|own| fitted.soul.samples_of(own)).unwrap_or_default();
        if samples.is_empty() {
            return refuse(
                "a model of fedsoul predicts for a client from its posterior, and none is named",
                format!("{}, or {}", remedy::NAME_CLIENT, remedy::ADAPT),
            );
        }
        let rows = fitted.reading.samples(rows, run.libsvm, None)?;
        Ok(fitted.table(&fitted.predictive(samples), &rows))
    }

    fn shared_predicts(&self) -> bool {
        false
    }

    fn adapt_rows(
        &self,
        run: &ModelUse<'_>,
        rows: &Input,
        labels: Option<&Path>,
    ) -> Result<FittedClient> {
        let fitted = Fitted::read(self, run)?;
        let rows = fitted.reading.samples_with_targets(run, rows, labels)?;
        let own = fitted.soul.predictive(&fitted.theta, &Own::default(), &rows)?;
        let score = own.score(&fitted.soul.model, &rows);
        let second = if self.model.classifies() { "train_accuracy" } else { "train_coverage_90" };
        let names = ["train_loss", second].into_iter();
        Ok(FittedClient {
            artifact: fitted.soul.artifact_of(&own.samples),
            predicted: fitted.table(&own, &rows),
            rows: rows.len(),
            figures: names.zip(&score).map(|(name, value)| (name, number(*value))).collect(),
            notes: vec![format!("{} of the posterior", counted(own.samples.len(), "sample"))],
        })
    }
}
