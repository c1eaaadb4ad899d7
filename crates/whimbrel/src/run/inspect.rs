//! Inspection of a data file.

use serde_json::{Value, json};
use std::path::Path;
use whimbrel_core::{FeatureRows, Labelled};
use whimbrel_data::{
    ColumnSummary, CsvOptions, Inspection, TableGuess, guess_table, inspect, read_libsvm,
};
use whimbrel_families::failure::Result;
use whimbrel_families::load::{FileKind, read_any};

/// The default column of clients.
const CLIENT: &str = "client";

pub(crate) fn look(file: &Path, client: Option<&str>) -> Result<(Inspection, Option<TableGuess>)> {
    let text = client.into_iter().map(String::from).collect();
    let data = read_any(&file.into(), &CsvOptions { text, ..CsvOptions::default() })?;
    let usual = data.columns().iter().any(|c| c.named && c.name == CLIENT).then_some(CLIENT);
    Ok((inspect(&data, client.or(usual))?, guess_table(&data)))
}

/// The inspection as one JSON object.
pub fn inspect_file(file: &Path, client: Option<&str>) -> Result<Value> {
    if FileKind::of(file) == FileKind::Libsvm {
        return libsvm_figures(file);
    }
    let (seen, table) = look(file, client)?;
    let columns: Vec<Value> = seen
        .columns
        .iter()
        .map(|column| match column {
            ColumnSummary::Number { name, missing, range } => json!({
                "name": name, "type": "number", "missing": missing,
                "min": range.map(|r| r.0), "mean": range.map(|r| r.1), "max": range.map(|r| r.2),
            }),
            ColumnSummary::Text { name, missing, values } => json!({
                "name": name, "type": "text", "missing": missing, "values": values.len(),
            }),
        })
        .collect();
    let clients = seen.clients.as_ref().map(|c| {
        c.sizes
            .iter()
            .map(|(name, rows)| (name.clone(), json!(rows)))
            .collect::<serde_json::Map<_, _>>()
    });
    let table = table.map(|t| {
        json!({
            "row": t.row, "column": t.column, "value": t.value, "rows": t.shape[0],
            "columns": t.shape[1], "observations": t.shape[2], "repeated": t.repeated,
        })
    });
    Ok(json!({
        "file": seen.name, "format": FileKind::of(file).source(), "rows": seen.rows, "columns": columns, "clients": clients,
        "table": table,
    }))
}

/// Largest number of target values listed.
pub(crate) const TARGETS_MAX: usize = 10;

/// Sparse rows with the fraction of stored values.
pub(crate) fn read_sparse(file: &Path) -> Result<(Labelled, f64)> {
    let rows = read_libsvm(file, None)?;
    let stored = match &rows.rows {
        FeatureRows::Sparse { values, .. } | FeatureRows::Dense(values) => values.len(),
    };
    let share = stored as f64 / (rows.len() * rows.width()).max(1) as f64;
    Ok((rows, share))
}

fn libsvm_figures(file: &Path) -> Result<Value> {
    let (rows, share) = read_sparse(file)?;
    let found = targets(&rows.targets);
    let counts: Vec<Value> =
        found.iter().map(|(value, n)| json!({ "value": value, "rows": n })).collect();
    Ok(json!({
        "file": file.display().to_string(), "format": "libsvm", "rows": rows.len(), "columns": rows.width(),
        "stored": share, "targets": if found.len() <= TARGETS_MAX { counts } else { Vec::new() },
        "target_values": found.len(),
    }))
}

/// The distinct targets in ascending order, with their numbers of rows.
pub(crate) fn targets(all: &[f64]) -> Vec<(f64, usize)> {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.chunk_by(|a, b| a == b).map(|equal| (equal[0], equal.len())).collect()
}
