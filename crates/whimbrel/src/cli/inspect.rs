//! `whimbrel data inspect`: a first look at a file.

use super::messages::data as print;
use serde_json::{Value, json};
use std::path::Path;
use whimbrel::core::{FeatureRows, Labelled};
use whimbrel::data::{
    ColumnSummary, Inspection, LibsvmOptions, TableGuess, guess_table, inspect, read_libsvm,
};
use whimbrel::families::failure::Result;
use whimbrel::families::load::{FileKind, read_any};
use whimbrel::report::format;

/// The column that says who holds a row, unless another is named.
const CLIENT: &str = "client";

/// Shows shape, types, missing cells and clients.
pub fn inspect_command(file: &Path, client: Option<&str>, json: bool) -> Result<u8> {
    if json {
        print(&format!("{}\n", figures(file, client)?))?;
        return Ok(0);
    }
    if FileKind::of(file) == FileKind::Libsvm {
        return inspect_libsvm(file);
    }
    let (seen, table) = look(file, client)?;
    print(&seen.to_string())?;
    table.iter().try_for_each(|table| print(&format!("\n{}\n", words(table))))?;
    Ok(0)
}

fn look(file: &Path, client: Option<&str>) -> Result<(Inspection, Option<TableGuess>)> {
    let data = read_any(file, client)?;
    let usual = data.columns().iter().any(|c| c.named && c.name == CLIENT).then_some(CLIENT);
    Ok((inspect(&data, client.or(usual))?, guess_table(&data)))
}

/// The same as one object.
pub fn figures(file: &Path, client: Option<&str>) -> Result<Value> {
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

/// Target values named; of more, the range.
const TARGETS_MAX: usize = 10;

/// Sparse rows, and the share of their values that is stored.
fn read_sparse(file: &Path) -> Result<(Labelled, f64)> {
    let rows = read_libsvm(file, &LibsvmOptions::default())?;
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

/// Shows shape, share of non-zeros and targets of sparse rows.
fn inspect_libsvm(file: &Path) -> Result<u8> {
    let (rows, share) = read_sparse(file)?;
    let found = targets(&rows.targets);
    let name = file.display();
    let counts = found.iter().map(|(value, n)| format!("{value} ({n})")).collect::<Vec<_>>();
    let targets = match (found.first(), found.last()) {
        (Some((low, _)), Some((high, _))) if found.len() > TARGETS_MAX => {
            format!("{} values from {low} to {high}", found.len())
        }
        _ => format!("{} values: {}", found.len(), counts.join(", ")),
    };
    print(&format!(
        "{name}: LIBSVM text, {} rows, {} columns, {} % of the values stored\n\ntargets: {targets}\n",
        rows.len(),
        rows.width(),
        format::number(100.0 * share, 3)
    ))?;
    Ok(0)
}

/// The distinct targets in ascending order, and how many rows have each.
pub fn targets(all: &[f64]) -> Vec<(f64, usize)> {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.chunk_by(|a, b| a == b).map(|equal| (equal[0], equal.len())).collect()
}

/// What the file is as a table with gaps.
fn words(table: &TableGuess) -> String {
    let [rows, columns, observations] = table.shape;
    let distinct = observations - table.repeated;
    let share = 100.0 * distinct as f64 / (rows * columns) as f64;
    let repeated = match table.repeated {
        0 => String::new(),
        n => format!(", {n} of them of cells observed before"),
    };
    if table.value.is_empty() {
        return format!(
            "as a table of {rows} rows ({:?}) and {columns} columns: {observations} observations; \
             {share:.3} % of the cells are observed",
            table.row
        );
    }
    format!(
        "as a table of {rows} rows ({:?}) and {columns} columns ({:?}): {observations} \
         observations of {:?}{repeated}; {share:.3} % of the cells are observed",
        table.row,
        table.column.join("-"),
        table.value,
    )
}
