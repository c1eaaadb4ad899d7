//! `whimbrel data inspect`: a first look at a file.

use super::messages::data as print;
use crate::run::inspect::{TARGETS_MAX, inspect_file, look, read_sparse, targets};
use std::path::Path;
use whimbrel_data::TableGuess;
use whimbrel_families::failure::Result;
use whimbrel_families::load::FileKind;
use whimbrel_report::format;

/// Shows shape, types, missing cells and clients.
pub fn inspect_command(file: &Path, client: Option<&str>, json: bool) -> Result<u8> {
    if json {
        print(&format!("{}\n", inspect_file(file, client)?))?;
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

/// Shows the file as a table with gaps.
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
