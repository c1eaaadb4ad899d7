//! The files of a run's folder.

use super::changes::HASH_MARK;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use whimbrel_core::declare::{Role, Unit};
use whimbrel_core::isa;
use whimbrel_core::method::LOSS;
use whimbrel_core::method::{Artifact, MetricValue, Tensor};
use whimbrel_engine::metrics::{Figure, number};
use whimbrel_engine::{Ending, Outcome};
use whimbrel_families::family::{Ended, Results, RunData};
use whimbrel_families::files::quoted;
use whimbrel_families::job::{DataSource, Job};
use whimbrel_families::plan::Plan;

/// Larger tensors are only in `model.safetensors`.
const READABLE_MAX: usize = 100_000;

/// The prefix of the tensors of a model's preparation.
const PREPARE: &str = "prepare.";

/// The resolved job with the hash of each file it reads.
pub fn resolved(job: &Job, hashes: &[(String, String)]) -> String {
    let mut text = String::new();
    for (path, hash) in hashes {
        // A line break in a file's name would end the comment.
        let path: String = path
            .chars()
            .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
            .collect();
        let _ = writeln!(text, "{HASH_MARK}{hash}  {path}");
    }
    text + &job.to_toml()
}

/// Parts of messages, cells and rows that clients withheld, if there are any.
fn withheld(outcome: &Outcome, plan: &Plan) -> impl Iterator<Item = (&'static str, u64)> {
    let (parts, rare) = (outcome.withheld, plan.withheld());
    let all = [("withheld", parts), ("withheld_cells", rare.cells), ("withheld_rows", rare.rows)];
    all.into_iter().filter(|(_, count)| *count > 0)
}

/// The content of `summary.json`, without the family's keys.
fn summary(
    job: &Job,
    data: &RunData,
    outcome: &Outcome,
    objective: Option<f64>,
    plan: &Plan,
) -> Map<String, Value> {
    let last = |name: &str| outcome.last.as_ref().and_then(|r| r.number(name));
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| object.insert(key.into(), value);
    if let Ending::Degenerate(why) = &outcome.ending {
        put("degenerate", why.clone().into());
    }
    put("name", job.name.clone().into());
    put("seed", job.seed.into());
    put("method", job.method.name().into());
    put("model", job.model.into());
    put("rounds", (outcome.rounds_before + outcome.rounds).into());
    put("objective", objective.map_or(Value::Null, number));
    for measure in outcome.measures.iter().filter(|m| m.summary && m.role != Role::Objective) {
        if let Some(value) = last(&measure.key) {
            let whole = measure.unit == Unit::Count;
            put(&measure.key, if whole { (value as u64).into() } else { number(value) });
        }
    }
    if let Some((epsilon, delta)) = plan.privacy_spent(outcome.rounds) {
        put("epsilon_spent", number(epsilon));
        put("delta", number(delta));
    }
    withheld(outcome, plan).for_each(|(key, count)| {
        put(key, count.into());
    });
    if let Some(f_star) = plan.f_star() {
        put("f_star", number(f_star));
    }
    put("bits_up", (8 * outcome.traffic.up).into());
    put("bits_down", (8 * outcome.traffic.down).into());
    put("bits_eval", (8 * outcome.traffic.eval).into());
    put("seconds", number(outcome.seconds));
    put("clients", outcome.names.len().into());
    put("rows", data.rows.iter().copied().sum::<Option<u64>>().map_or(Value::Null, Into::into));
    let is_unseen = |(_, unseen): &(&String, &bool)| **unseen;
    let unseen: Vec<&String> = outcome
        .names
        .iter()
        .zip(&data.facts.unseen)
        .filter(is_unseen)
        .map(|(name, _)| name)
        .collect();
    if !unseen.is_empty() {
        let rows = data.rows.iter().zip(&data.facts.unseen).filter(|(_, unseen)| **unseen);
        let rows: Option<u64> = rows.map(|(rows, _)| *rows).sum();
        put("rows_unseen", rows.map_or(Value::Null, Into::into));
        put("unseen", json!(unseen));
    }
    put("ending", outcome.ending.word().into());
    put("ending_detail", outcome.ending.detail().into());
    if outcome.delivered.last().is_some_and(|model| space(model) == "components") {
        put("space", "components".into());
    }
    if let Some((key, constants)) = plan.constants(&outcome.delivered) {
        put(key, Value::Object(constants));
    }
    let mut notes = plan.notes();
    notes.extend(plan.warnings());
    let has_figures = outcome.last.is_some() || job.fit.sends_exact_sums();
    if !has_figures && outcome.ending.is_over() && plan.rounds() != Some(0) {
        notes.push("clients were not asked for evaluations: there is no objective".into());
    }
    put("notes", notes.into());
    put("settings", plan.settings().into());
    put("version", env!("CARGO_PKG_VERSION").into());
    put("isa", isa::level().name().into());
    put("data_hash", data.hash.clone().into());
    object.extend(job.fit.chosen(&outcome.delivered));
    object
}

/// The content of `summary.json`, and the family's results. The warnings of these include those of the
/// last figures.
pub fn described(
    ended: &Ended<'_>,
    objective: Option<f64>,
    plan: &Plan,
) -> (Map<String, Value>, Results) {
    let Ended { job, data, outcome, .. } = ended;
    let mut summary = summary(job, data, outcome, objective, plan);
    // A failed description must not lose the fit.
    let mut results = match job.fit.results(ended) {
        _ if matches!(outcome.ending, Ending::Failed(_)) => Results::default(),
        Ok(results) => results,
        Err(failure) => {
            let notes = vec![format!("the fit cannot be described: {failure}")];
            Results { notes, ..Results::default() }
        }
    };
    results.warnings.splice(0..0, warnings(outcome));
    if let Some(Value::Array(notes)) = summary.get_mut("notes") {
        let said = results.warnings.iter().chain(&results.notes);
        notes.extend(said.cloned().map(Value::from));
    }
    summary.extend(results.summary.clone());
    (summary, results)
}

/// Warnings from the last figures of a run.
fn warnings(outcome: &Outcome) -> Vec<String> {
    let last = |key: &str| outcome.last.as_ref().and_then(|row| row.figure(key));
    // Defects are reported as the ending.
    let measures = outcome.measures.iter().filter(|measure| !measure.defect);
    measures.flat_map(|m| last(&m.key).map_or_else(Vec::new, |value| m.warnings(value))).collect()
}

/// The content of `clients.csv`.
pub(super) fn clients_csv(data: &RunData, outcome: &Outcome) -> String {
    let is_number = |figure: &Figure| matches!(figure.value, MetricValue::Number(_));
    let own = || outcome.own.iter().flatten().filter(|figure| is_number(figure));
    let has = |key: &str| own().any(|figure| figure.name == key);
    let declared = outcome.measures.iter().filter(|m| m.per_client).map(|m| &*m.key);
    let keys: Vec<&str> = std::iter::once(LOSS).chain(declared.filter(|key| has(key))).collect();
    let mut text = format!("client,rows,rounds,bits_up,bits_down,{}\n", keys.join(","));
    for (i, (name, tally)) in outcome.names.iter().zip(&outcome.tallies).enumerate() {
        let rows = data.rows.get(i).copied().flatten().map_or(String::new(), |n| n.to_string());
        let own = outcome.own.get(i).map_or(&[][..], |own| &own[..]);
        let cell = |key: &&str| match own.iter().find(|figure| figure.name == *key) {
            Some(Figure { value: MetricValue::Number(value), .. }) => value.to_string(),
            _ => String::new(),
        };
        let own = keys.iter().map(cell).collect::<Vec<_>>().join(",");
        let (up, down) = (8 * tally.bytes_up, 8 * tally.bytes_down);
        let _ = writeln!(text, "{},{rows},{},{up},{down},{own}", quoted(name), tally.rounds);
    }
    text
}

/// The content of `model.json`: the keys needed to use the model on new rows, and its smaller tensors.
pub fn model_keys(
    job: &Job,
    data: &RunData,
    model: &Artifact,
    objective: Option<f64>,
) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("kind".into(), model.kind.clone().into());
    let is_map = |tensor: &&Tensor| tensor.name.starts_with(PREPARE);
    let readable = |tensor: &&Tensor| tensor.values.len() <= READABLE_MAX;
    for tensor in model.tensors.iter().filter(|tensor| !is_map(tensor)).filter(readable) {
        object.insert(tensor.name.clone(), nested(tensor));
    }
    object.insert("objective".into(), objective.map_or(Value::Null, number));
    object.extend(job.fit.model_keys(data, model));
    let columns = data.used_columns(model);
    if model.tensors.iter().any(|tensor| is_map(&tensor)) {
        let dropped: Vec<&String> =
            data.facts.columns.iter().filter(|column| !columns.contains(column)).collect();
        let mut prepare = Map::from_iter([("dropped".into(), json!(dropped))]);
        // The first tensor, the places of the columns, follows from their names.
        for tensor in model.tensors.iter().filter(is_map).skip(1) {
            prepare.insert(tensor.name[PREPARE.len()..].into(), nested(tensor));
        }
        object.insert("prepare".into(), Value::Object(prepare));
        object.insert("space".into(), space(model).into());
    }
    object.insert("columns".into(), columns.into());
    if let DataSource::Idx(idx) = &job.data.source {
        object.insert("byte_scale".into(), number(idx.scale));
    }
    if let Some(standardization) = &data.standardization {
        let list = |xs: &[f64]| xs.iter().map(|x| number(*x)).collect::<Value>();
        let (means, scales) = (list(&standardization.means), list(&standardization.scales));
        object.insert("standardization".into(), json!({ "means": means, "scales": scales }));
    }
    if !data.facts.classes.is_empty() {
        object.insert("classes".into(), data.facts.classes.clone().into());
    }
    object
}

/// The space of the means, the covariances and the likelihood.
pub(super) fn space(model: &Artifact) -> &'static str {
    if model.tensor("prepare.axes").is_some() { "components" } else { "columns" }
}

/// A tensor as nested lists.
fn nested(tensor: &Tensor) -> Value {
    fn level(shape: &[u64], values: &[f64]) -> Value {
        match shape {
            [] => number(values[0]),
            [_] => values.iter().map(|x| number(*x)).collect(),
            [n, rest @ ..] => {
                let each = values.len() / (*n).max(1) as usize;
                values.chunks(each.max(1)).map(|part| level(rest, part)).collect()
            }
        }
    }
    level(&tensor.shape, &tensor.values)
}
