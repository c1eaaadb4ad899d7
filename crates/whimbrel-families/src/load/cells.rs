//! Reads tables with gaps.

use super::{Loaded, POOLED, columns, data_key};
use crate::failure::{AtKey, Failure, Result};
use crate::files::named;
use crate::job::{Csv, Labels, Partition};
use std::sync::Arc;
use whimbrel_core::{Cell, Cells, ClientData, Key};
use whimbrel_data::{
    Attribute, CellLayout, CellOptions, CellTable, CellsOf, Described, Entries, Input, hold_out,
    read_labels,
};

/// Labels named in a warning.
const NAMED_MAX: usize = 3;

/// The layout of a table in the job's csv file.
pub fn cell_options(csv: &Csv, entries: Entries, described: Described) -> Result<CellOptions> {
    let cells = &csv.cells;
    let client = match &csv.partition {
        Partition::Column(column) => Some(column.clone()),
        _ => None,
    };
    let layout = match &cells.value {
        Some(value) => CellLayout::Long { column: cells.column.clone(), value: value.clone() },
        None => CellLayout::Wide { columns: csv.columns.clone() },
    };
    Ok(CellOptions {
        client,
        row: cells.row.clone(),
        layout,
        missing_as_zero: cells.missing_as_zero,
        entries,
        row_labels: read_side(cells.row_labels.as_ref())?,
        column_labels: read_side(cells.column_labels.as_ref())?,
        delimiter: csv.delimiter.map(|c| c as u8),
        spelling: csv.spelling(),
        described,
    })
}

/// The labels of one side of a table, if the job has them.
pub(crate) fn read_side(labels: Option<&Labels>) -> Result<Option<Vec<String>>> {
    Ok(match labels {
        None => None,
        Some(Labels::Listed(names)) => Some(names.clone()),
        Some(Labels::File(path)) => Some(read_labels(path)?),
    })
}

/// Descriptions of a table's rows and columns, from the labels and the job's file; a coordinator's
/// file need not hold values.
pub(crate) fn described(
    csv: &Csv,
    rows: &[String],
    columns: &[String],
    by: Described,
) -> Result<Vec<Attribute>> {
    let options = cell_options(csv, Entries::default(), by)?;
    Ok(csv.path.read_attributes(&options, rows, columns)?)
}

pub(super) fn from_csv(csv: &Csv, entries: Entries, by: &Described, key: Key) -> Result<Loaded> {
    let options = cell_options(csv, entries, by.clone())?;
    let mut table = csv.path.read_cells(&options)?;
    let attributes = described(csv, &table.rows, &table.columns, by.clone())?;
    let parts = match &csv.partition {
        Partition::Column(_) => table.by_client()?,
        Partition::Iid { clients } => table.scattered(*clients, key).at("data.split")?,
        Partition::Rows { clients } => table.by_rows(*clients, key).at("data.split")?,
        Partition::Pooled => vec![CellsOf { name: POOLED.into(), cells: table.cells.clone() }],
        Partition::Labels { .. } | Partition::Natural | Partition::Clusters { .. } => {
            return Err(Failure::config("this split does not apply to tables with gaps"));
        }
    };
    let mut clients = Vec::with_capacity(parts.len());
    for CellsOf { name, cells } in parts {
        let (observed, held_out) = hold_out(cells, csv.cells.holdout, key, &name);
        let cells =
            Cells::new(Arc::clone(&table.rows), Arc::clone(&table.columns), observed, held_out)?;
        clients.push((name, cells));
    }
    let mut warnings = std::mem::take(&mut table.warnings);
    warnings.extend(unobserved(&table, &clients));
    let columns = table.columns.to_vec();
    let rows = clients.iter().map(|(_, cells)| Some(cells.observed.len() as u64)).collect();
    let notes = vec![
        columns::of_cells(&table.header, csv, &options.described),
        shape_note(&table, &clients),
    ];
    let clients = clients.into_iter().map(|(name, c)| (name, ClientData::Cells(c))).collect();
    let hash = csv.path.hash()?;
    Ok(Loaded { clients, columns, rows, hash, attributes, notes, warnings, ..Loaded::default() })
}

/// Reads the cells of one client's file; holds out the same cells as a simulation.
pub(crate) fn of_client(
    rows: &Input,
    options: &CellOptions,
    holdout: f64,
    data_seed: u64,
    name: &str,
) -> Result<Cells> {
    let table = rows.read_cells(options)?;
    let (observed, held_out) = kept_out(table.cells, holdout, data_seed, name);
    Ok(Cells::new(table.rows, table.columns, observed, held_out)?)
}

/// Splits one client's cells into fitted and held-out ones.
pub fn kept_out(
    cells: Vec<Cell>,
    holdout: f64,
    data_seed: u64,
    name: &str,
) -> (Vec<Cell>, Vec<Cell>) {
    hold_out(cells, holdout, data_key(data_seed), name)
}

fn shape_note(table: &CellTable, clients: &[(String, Cells)]) -> String {
    let (rows, columns) = (table.rows.len(), table.columns.len());
    let hidden: usize = clients.iter().map(|(_, cells)| cells.held_out.len()).sum();
    let mut places: Vec<_> = table.cells.iter().map(|cell| (cell.row, cell.column)).collect();
    places.sort_unstable();
    places.dedup();
    let share = 100.0 * places.len() as f64 / (rows * columns) as f64;
    let kept_out = match hidden {
        0 => String::new(),
        _ => format!(", {hidden} of them held out"),
    };
    format!(
        "a table of {rows} rows and {columns} columns, {} observations in {share:.3} % of its \
         cells{kept_out}",
        table.cells.len()
    )
}

/// Warnings about rows and columns without a fitted cell.
fn unobserved(table: &CellTable, clients: &[(String, Cells)]) -> Vec<String> {
    let side = |noun: &str, labels: &[String], at: fn(&Cell) -> u32| {
        let (mut fitted, mut seen) = (vec![false; labels.len()], vec![false; labels.len()]);
        for (_, cells) in clients {
            cells.observed.iter().for_each(|cell| fitted[at(cell) as usize] = true);
            cells.held_out.iter().for_each(|cell| seen[at(cell) as usize] = true);
        }
        let gaps: Vec<usize> = (0..labels.len()).filter(|&i| !fitted[i]).collect();
        let hidden = gaps.iter().filter(|&&i| seen[i]).count();
        (!gaps.is_empty()).then(|| {
            let (verb, s) = if gaps.len() == 1 { ("has", "") } else { ("have", "s") };
            let why = match hidden {
                0 => "never observed".to_owned(),
                all if all == gaps.len() => "all their observations are held out".to_owned(),
                some => format!("never observed; all observations of {some} are held out"),
            };
            format!(
                "{} {noun}{s} {verb} no cell in the fit ({why}): {}; imputed from the common effects, \
                 with wide intervals",
                gaps.len(),
                named(&gaps, labels, NAMED_MAX)
            )
        })
    };
    let rows = side("row", &table.rows, |cell| cell.row);
    let columns = side("column", &table.columns, |cell| cell.column);
    rows.into_iter().chain(columns).collect()
}
