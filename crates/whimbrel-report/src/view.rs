//! What a caller fills in: the content of a run's directory as plain values.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use whimbrel_core::Measure;
use whimbrel_core::declare::{Exhibit, Role, Section};

/// One run, as a report shows it. Every field may be empty: what is missing is not drawn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunView {
    /// The job's name; runs that share name, method and model and differ in `seed` are drawn as one
    /// line (mean) with a band (standard deviation), on a log axis of log10.
    pub name: String,
    /// The method's kind, such as `fedem`.
    pub method: String,
    /// The model, in words, such as `gmm, 3 components, tied`.
    pub model: String,
    /// The seed of the run.
    pub seed: u64,
    /// The version of the program that made the run.
    pub version: String,
    /// The instruction-set level the run was computed with.
    pub isa: String,
    /// The hash of the data.
    pub data_hash: String,
    /// What the figures of the metrics are.
    pub measures: Vec<Measure>,
    /// The lines of `metrics.jsonl`, in order.
    pub rows: Vec<Map<String, Value>>,
    /// The clients, in order of id.
    pub clients: Vec<ClientView>,
    /// What its family shows of it.
    pub sections: Vec<Section>,
    /// The content of `summary.json`.
    pub summary: Map<String, Value>,
    /// The resolved job.
    pub job_toml: String,
    /// The command that runs it again.
    pub command: String,
    /// Whether one party holds all rows: its objective is a reference for federations.
    pub pooled: bool,
    /// The objective that the gap is measured from, such as that of pooled EM.
    pub reference_objective: Option<f64>,
    /// What a reader should know, such as which row of a paper's table the run realises or that it
    /// ended early; shown quietly above the figures.
    pub notes: Vec<String>,
    /// Whether its model is the one that is delivered, of a job of several seeds that chose one.
    pub delivered: bool,
    /// Why the run stopped before its end, if it did.
    pub error: Option<String>,
    /// What is wrong with the model, where the run ended as degenerate.
    pub defect: Option<String>,
}

/// One client of a run: a line of `clients.csv`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientView {
    /// The client's name.
    pub name: String,
    /// Rows it holds.
    pub rows: u64,
    /// Rounds it took part in.
    pub rounds: u64,
    /// Bits it sent.
    pub bits_up: u64,
    /// Bits it received.
    pub bits_down: u64,
    /// Its own figures by key, where it was evaluated.
    pub figures: BTreeMap<String, f64>,
}

impl RunView {
    /// The last finite value of `key` in the metrics.
    pub fn last(&self, key: &str) -> Option<f64> {
        self.rows.iter().rev().find_map(|row| number(row, key))
    }

    /// The mean of `key` over the last tenth of the evaluations, at least five; none of a course that
    /// is too short for that.
    pub fn tail(&self, key: &str) -> Option<f64> {
        let values: Vec<f64> = self.rows.iter().filter_map(|row| number(row, key)).collect();
        let count = (values.len() / 10).max(TAIL_MIN);
        let tail = values.get(values.len().checked_sub(count)?..)?;
        (values.len() >= 2 * TAIL_MIN).then(|| tail.iter().sum::<f64>() / count as f64)
    }

    /// The value of `key` in the summary (the mean where it is over seeds), else in the metrics.
    pub fn result(&self, key: &str) -> Option<f64> {
        let mean = || self.summary.get(key)?.get("mean")?.as_f64();
        number(&self.summary, key).or_else(mean).or_else(|| self.last(key))
    }

    /// Its family's sections, and one for each declared list that none of them shows.
    pub(crate) fn parts(&self) -> Vec<Section> {
        let mut parts = self.sections.clone();
        let lists = self.measures.iter().filter(|m| m.role == Role::List && m.curve);
        for measure in lists {
            let shows = |exhibit: &Exhibit| matches!(exhibit, Exhibit::Entries { key, .. } if *key == measure.key);
            if !self.sections.iter().any(|part| part.exhibits.iter().any(shows)) {
                let entries = Exhibit::Entries { key: measure.key.to_string(), order: Vec::new() };
                let title = measure.title.to_string();
                parts.push(Section { title, exhibits: vec![entries] });
            }
        }
        parts
    }

    /// The kind of its model.
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

    /// How far the objective ended from the reference.
    pub fn gap(&self) -> Option<f64> {
        let (objective, reference) = (self.objective()?, self.reference_objective?);
        // Equal to rounding is equal.
        let gap = objective - reference;
        Some(if gap.abs() <= 4.0 * f64::EPSILON * reference.abs() { 0.0 } else { gap })
    }
}

/// Evaluations in the tail of a course, at least.
const TAIL_MIN: usize = 5;

/// A finite number under `key`.
pub(crate) fn number(row: &Map<String, Value>, key: &str) -> Option<f64> {
    row.get(key)?.as_f64().filter(|value| value.is_finite())
}
