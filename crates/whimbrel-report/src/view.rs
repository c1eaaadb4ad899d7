//! The input of a report: the content of a run's directory as plain values.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use whimbrel_core::Measure;
use whimbrel_core::declare::{Exhibit, Role, Section};

/// One run of a report. Every field may be empty; missing parts are not drawn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunView {
    /// The job's name. Runs that share name, method and model and differ in `seed` are drawn as one
    /// line (mean) with a band (standard deviation), of log10 on a log axis.
    pub name: String,
    /// The method's kind, such as `fedem`.
    pub method: String,
    /// The model, in words, such as `Gaussian mixture, 3 components, tied covariance`.
    pub model: String,
    pub seed: u64,
    /// The version of the program that made the run.
    pub version: String,
    /// The instruction-set level of the run.
    pub isa: String,
    pub data_hash: String,
    pub measures: Vec<Measure>,
    /// The lines of `metrics.jsonl`, in order.
    pub rows: Vec<Map<String, Value>>,
    /// The clients, in order of id.
    pub clients: Vec<ClientView>,
    /// The exhibits of the run's family.
    pub sections: Vec<Section>,
    /// Its exhibits under the diagnostics.
    pub diagnostics: Vec<Section>,
    /// The family's main figures: a name and a value each.
    pub tiles: Vec<(String, String)>,
    /// Constants and settings in use, shown under the diagnostics.
    pub settings: Vec<String>,
    /// The content of `summary.json`.
    pub summary: Map<String, Value>,
    pub job_toml: String,
    /// The command that reruns the job.
    pub command: String,
    /// Whether one party holds all rows, so that the objective is a reference for federated runs.
    pub pooled: bool,
    /// The reference of the gap, such as the objective of pooled EM.
    pub reference_objective: Option<f64>,
    /// Notes above the figures, such as the row of a paper's table or an early stop.
    pub notes: Vec<String>,
    /// Whether the run's model is the delivered one of a job with several seeds.
    pub delivered: bool,
    /// The verdict: `converged`, `stopped`, `degenerate` or `diverged`; empty for an unfinished run.
    pub ending: String,
    /// The reason behind the verdict.
    pub ending_detail: String,
}

/// One client of a run: a line of `clients.csv`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientView {
    pub name: String,
    pub rows: u64,
    /// Rounds with an accepted upload.
    pub rounds: u64,
    pub bits_up: u64,
    pub bits_down: u64,
    /// Per-client figures by key, if evaluated.
    pub figures: BTreeMap<String, f64>,
}

impl RunView {
    /// The last finite value of `key` in the metrics.
    pub fn last(&self, key: &str) -> Option<f64> {
        self.rows.iter().rev().find_map(|row| number(row, key))
    }

    /// The mean of `key` over the last tenth of the evaluations, at least five; `None` with fewer than
    /// ten evaluations.
    pub fn tail(&self, key: &str) -> Option<f64> {
        let values: Vec<f64> = self.rows.iter().filter_map(|row| number(row, key)).collect();
        let count = (values.len() / 10).max(TAIL_MIN);
        let tail = values.get(values.len().checked_sub(count)?..)?;
        (values.len() >= 2 * TAIL_MIN).then(|| tail.iter().sum::<f64>() / count as f64)
    }

    /// The value of `key` in the summary (the mean over seeds), otherwise in the metrics.
    pub fn result(&self, key: &str) -> Option<f64> {
        let mean = || self.summary.get(key)?.get("mean")?.as_f64();
        number(&self.summary, key).or_else(mean).or_else(|| self.last(key))
    }

    /// The family's diagnostics, and a section for each declared list that its exhibits lack.
    pub(crate) fn diagnostic_parts(&self) -> Vec<Section> {
        let mut parts = self.diagnostics.clone();
        let lists = self.measures.iter().filter(|m| m.role == Role::List && m.curve);
        for measure in lists {
            let shows = |exhibit: &Exhibit| matches!(exhibit, Exhibit::Entries { key, .. } if *key == measure.key);
            if !parts.iter().any(|part| part.exhibits.iter().any(shows)) {
                let entries = Exhibit::Entries { key: measure.key.to_string(), order: Vec::new() };
                let title = measure.title.to_string();
                parts.push(Section { title, exhibits: vec![entries] });
            }
        }
        parts
    }

    /// Whether a client took no part in training and is only evaluated.
    pub(crate) fn is_unseen(&self, name: &str) -> bool {
        let unseen = self.summary.get("unseen").and_then(Value::as_array);
        unseen.is_some_and(|names| names.iter().any(|unseen| unseen == name))
    }

    /// The model's kind.
    pub(crate) fn model_kind(&self) -> &str {
        let kind = self.summary.get("model").and_then(Value::as_str);
        kind.or_else(|| self.model.split(',').next()).unwrap_or_default()
    }

    /// The key of the declared objective.
    pub fn objective_key(&self) -> Option<&str> {
        let declared = self.measures.iter().find(|measure| measure.role == Role::Objective);
        declared.map(|measure| &*measure.key)
    }

    /// The last value of the declared objective.
    pub fn objective(&self) -> Option<f64> {
        self.result(self.objective_key()?)
    }

    /// The final distance of the objective from the reference.
    pub fn gap(&self) -> Option<f64> {
        let (objective, reference) = (self.objective()?, self.reference_objective?);
        let gap = objective - reference;
        Some(if gap.abs() <= 4.0 * f64::EPSILON * reference.abs() { 0.0 } else { gap })
    }
}

/// The fewest evaluations of a tail.
const TAIL_MIN: usize = 5;

/// A finite number under `key`.
pub(crate) fn number(row: &Map<String, Value>, key: &str) -> Option<f64> {
    row.get(key)?.as_f64().filter(|value| value.is_finite())
}
