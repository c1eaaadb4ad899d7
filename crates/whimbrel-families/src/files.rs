//! Small files that a job names or a run leaves.

use crate::failure::Result;
use serde_json::{Map, Value, json};
use std::path::Path;
use whimbrel_core::Error;

/// A JSON file that holds an object.
pub fn read_object(path: &Path) -> Result<Map<String, Value>> {
    match parse(path)? {
        Value::Object(object) => Ok(object),
        _ => Err(file_error(path, "it must hold a JSON object".into()).into()),
    }
}

pub(crate) fn parse(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::storage(path.display(), e))?;
    serde_json::from_str(&text).map_err(|e| file_error(path, format!("not JSON: {e}")).into())
}

pub(crate) fn file_error(path: &Path, what: String) -> Error {
    Error::config(format!("{}: {what}", path.display()))
}

/// One key per line, lists on one line: easy to read and to compare.
pub fn pretty(value: &Value) -> String {
    let Value::Object(object) = value else { return format!("{value}\n") };
    let lines: Vec<String> = object.iter().map(|(k, v)| format!("  {}: {v}", json!(k))).collect();
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}

/// A number with so many significant digits, as short as it can be.
pub(crate) fn figure(value: f64, digits: usize) -> String {
    let rounded = format!("{value:.*e}", digits.saturating_sub(1)).parse().unwrap_or(value);
    if rounded == 0.0 || (1e-4..1e7).contains(&f64::abs(rounded)) {
        return rounded.to_string();
    }
    format!("{rounded:e}")
}

/// A CSV cell.
pub fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r', ';', '\t']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.into()
    }
}
