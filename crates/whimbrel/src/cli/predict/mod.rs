//! `whimbrel predict`: a fitted model on new rows.

mod mixture;
mod regression;

use super::args::Predict;
use super::messages::{data, note, warning};
use serde_json::{Map, Value, json};
use std::path::Path;
use whimbrel::core::Error;
use whimbrel::engine::checkpoint::write_atomically;
use whimbrel::families::failure::{Failure, Result};
use whimbrel::families::start::read_object;
use whimbrel::runs::RunDir;

/// Predictions, and what is said about them.
struct Predicted {
    /// The CSV file.
    text: String,
    rows: usize,
    figures: Vec<(&'static str, Value)>,
    words: String,
}

/// Writes a prediction for each row.
pub fn predict_command(args: &Predict) -> Result<u8> {
    let dir = RunDir::existing(&args.run)?;
    if dir.ending().is_none() {
        warning(&format!("the run in {} is not finished", dir.path().display()));
    }
    let path = dir.path().join("model/model.json");
    if !path.is_file() {
        let error = Error::config(format!("{} does not exist", path.display()))
            .hint("the run has no model: it is unfinished, or it failed");
        return Err(error.into());
    }
    let object = read_object(&path)?;
    let found = match object.get("kind").and_then(Value::as_str) {
        Some("gmm") => mixture::predict(&path, &object, &args.data)?,
        Some("least-squares" | "logistic") => {
            regression::predict(&path, &object, &args.data, args.libsvm)?
        }
        Some("low-rank") => {
            let error = Error::config("a table is completed, not predicted row by row")
                .hint("`whimbrel impute` writes it, `whimbrel adapt` adds a client");
            return Err(error.into());
        }
        _ => return Err(broken(&path, "`kind` is none that this version knows")),
    };
    write_atomically(&args.out, found.text.as_bytes())?;
    if args.json {
        let mut report = Map::from_iter([("rows".into(), json!(found.rows))]);
        report.extend(found.figures.into_iter().map(|(name, value)| (name.into(), value)));
        report.insert("out".into(), args.out.display().to_string().into());
        data(&format!("{}\n", Value::Object(report)))?;
    }
    note(&format!("{} rows, {}: {}", found.rows, found.words, args.out.display()));
    Ok(0)
}

/// The columns a model was fitted to.
fn columns(path: &Path, object: &Map<String, Value>) -> Result<Vec<String>> {
    let list = object.get("columns").and_then(Value::as_array);
    let names = list.map(|all| all.iter().filter_map(|c| c.as_str().map(String::from)).collect());
    names.ok_or_else(|| broken(path, "`columns` is missing"))
}

fn broken(path: &Path, what: &str) -> Failure {
    Failure::config(format!("{}: {what}", path.display()))
}
