//! A run's folder as a report shows it.

use super::Listener;
use super::execute::shell_word;
use serde_json::{Map, Value};
use std::fs;
use std::path::Path;
use whimbrel_core::Error;
use whimbrel_data::{CsvOptions, Dataset, read_csv};
use whimbrel_engine::checkpoint::MEASURES;
use whimbrel_families::failure::Result;
use whimbrel_families::files::read_object;
use whimbrel_report::{ClientView, RunView};
use whimbrel_runs::{DELIVERED, RunDir};

/// Reads a run's folder; parts that a failed or unfinished run lacks are omitted.
pub fn load(dir: &RunDir, to: &dyn Listener) -> Result<RunView> {
    let path = dir.path();
    let shown = dir.shown();
    let mut summary = summary(dir)?;
    let text = |key: &str| summary.get(key).and_then(Value::as_str).unwrap_or_default().to_string();
    let [version, isa, data_hash] = ["version", "isa", "data_hash"].map(text);
    let [ending, ending_detail] = ending(&summary);
    let number = |key: &str| summary.get(key).and_then(Value::as_f64);
    let mut notes = Vec::new();
    if summary.is_empty() {
        notes.push("the run is not finished".into());
    }
    if let Some((epsilon, delta)) = number("epsilon_spent").zip(number("delta")) {
        notes.push(format!("privacy loss: epsilon {epsilon:.3} at delta {delta:.2e}"));
    }
    let said = |key: &str| -> Vec<String> {
        let all = summary.get(key).and_then(Value::as_array).into_iter().flatten();
        all.filter_map(|n| n.as_str().map(String::from)).collect()
    };
    notes.extend(said("notes"));
    let settings = said("settings");
    let mut rows = metrics(&path.join("metrics.jsonl"))?;
    let measures = dir.measures();
    if measures.is_empty() && !rows.is_empty() {
        to.warning(&format!(
            "{} is missing or cannot be read: the report has no curves and no results",
            path.join(MEASURES).display()
        ));
    }
    let table = optional(path, "clients.csv").filter(|_| !shown.pooled);
    if shown.pooled {
        // A pooled run sends nothing: its bits are not comparable with those of a federation.
        rows.iter_mut().chain([&mut summary]).for_each(|row| row.retain(|k, _| !is_bits(k)));
    }
    Ok(RunView {
        name: shown.name,
        method: shown.method,
        model: shown.model,
        seed: shown.seed,
        version,
        isa,
        data_hash,
        measures,
        rows,
        clients: table.map(|p| clients(&p)).transpose()?.unwrap_or_default(),
        sections: shown.sections,
        diagnostics: shown.diagnostics,
        tiles: shown.tiles,
        settings,
        command: command(path),
        ending,
        ending_detail,
        delivered: false,
        reference_objective: None,
        pooled: shown.pooled,
        job_toml: fs::read_to_string(path.join("job.toml")).unwrap_or_default(),
        summary,
        notes,
    })
}

/// The ending in a summary, in a word and in detail.
pub fn ending(summary: &Map<String, Value>) -> [String; 2] {
    let text = |key: &str| summary.get(key).and_then(Value::as_str).unwrap_or_default().into();
    ["ending", "ending_detail"].map(text)
}

/// A note that names the delivered seed.
pub fn delivered(seed: u64) -> String {
    format!(
        "the model is that of seed {seed}, which has the lowest objective among the fits that are not degenerate"
    )
}

/// The command that repeats the run of a folder.
fn command(path: &Path) -> String {
    let word = if path.join("federation.json").exists() { "serve" } else { "run" };
    format!("whimbrel {word} {}", shell_word(&path.join("job.toml")))
}

/// Completes the views of a folder's seeds: the command of all, and the delivered one.
pub fn of_seeds(views: &mut [RunView], dir: &RunDir, summary: &Map<String, Value>) {
    views.iter_mut().for_each(|view| view.command = command(dir.path()));
    let Some(seed) = summary.get(DELIVERED).and_then(Value::as_u64) else { return };
    let said = delivered(seed);
    for view in views {
        view.delivered = view.seed == seed;
        view.notes.push(said.clone());
    }
}

/// Reads the folder of a finished run; a failure is a warning.
pub fn load_or_warn(dir: &RunDir, to: &dyn Listener) -> Vec<RunView> {
    let view = load(dir, to).map_err(|failure| to.warning(&format!("no report: {failure}")));
    view.into_iter().collect()
}

/// The content of `summary.json`; empty for an unfinished run.
pub fn summary(dir: &RunDir) -> Result<Map<String, Value>> {
    let path = optional(dir.path(), "summary.json");
    Ok(path.map(|p| read_object(&p)).transpose()?.unwrap_or_default())
}

/// Sets each run's reference to the lowest objective of a pooled run on the same data.
pub fn refer_to_pooled(views: &mut [RunView]) {
    let kind = |view: &RunView| view.summary.get("model").cloned();
    let pooled: Vec<(String, Option<Value>, f64)> = views
        .iter()
        .filter(|v| v.pooled)
        .filter_map(|v| Some((v.data_hash.clone(), kind(v), v.objective()?)))
        .collect();
    for view in views {
        let same = pooled
            .iter()
            .filter(|(hash, model, _)| *hash == view.data_hash && *model == kind(view));
        view.reference_objective = same.map(|(.., value)| *value).min_by(f64::total_cmp);
    }
}

fn is_bits(key: &str) -> bool {
    key.starts_with("bits_")
}

pub fn metrics(path: &Path) -> Result<Vec<Map<String, Value>>> {
    let text = if path.is_file() { read(path)? } else { String::new() };
    let parse = |(n, line): (usize, &str)| {
        serde_json::from_str(line)
            .map_err(|e| Error::storage(path.display(), format!("line {}: {e}", n + 1)).into())
    };
    text.lines().enumerate().map(parse).collect()
}

fn clients(path: &Path) -> Result<Vec<ClientView>> {
    let data = read_csv(path, &CsvOptions { text: vec!["client".into()], ..Default::default() })?;
    let counted = ["client", "rows", "rounds", "bits_up", "bits_down"];
    let [client, rows, rounds, up, down] = counted.map(|name| data.column(name));
    let (client, rows, rounds, up, down) = (client?, rows?, rounds?, up?, down?);
    let own: Vec<(usize, &str)> = data
        .columns()
        .iter()
        .map(|column| column.name.as_str())
        .enumerate()
        .filter(|(_, name)| !counted.contains(name))
        .collect();
    let whole = |row, column| number(&data, row, column).map_or(0, |x| x as u64);
    Ok((0..data.rows())
        .map(|row| ClientView {
            name: data.text(row, client).unwrap_or_default().into(),
            rows: whole(row, rows),
            rounds: whole(row, rounds),
            bits_up: whole(row, up),
            bits_down: whole(row, down),
            figures: own
                .iter()
                .filter_map(|(at, name)| Some((name.to_string(), number(&data, row, *at)?)))
                .collect(),
        })
        .collect())
}

/// A cell as a number; `None` for text columns, which empty columns are.
fn number(data: &Dataset, row: usize, column: usize) -> Option<f64> {
    use whimbrel_data::Kind;
    match data.columns()[column].kind {
        Kind::Number => data.number(row, column),
        Kind::Text => None,
    }
}

fn optional(folder: &Path, name: &str) -> Option<std::path::PathBuf> {
    Some(folder.join(name)).filter(|p| p.is_file())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| Error::read(path.display(), &e).into())
}
