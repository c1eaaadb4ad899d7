//! Adapts a fitted table to a new client.

use super::TableFit;
use super::completed::Completed;
use super::impute::Run;
use super::observed::Observations;
use super::sheet::{Place, Sheet};
use crate::failure::Result;
use crate::family::{AdaptOptions, Adapted, FittedClient, ModelUse, refuse};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::path::Path;
use whimbrel_core::Cell;
use whimbrel_core::method::Artifact;
use whimbrel_core::text::counted;
use whimbrel_data::{CellOptions, CellTable, Input};
use whimbrel_engine::checkpoint::{write_atomically, write_atomically_with};
use whimbrel_engine::metrics::number;
use whimbrel_models::lowrank::NewRow;

/// The origin of the intervals of new rows.
const NEW_ROWS: &str = "90 % from the run's errors and the uncertainty of a new row's factors, not \
                        checked on held-out cells";

/// Fits the client's effect and its new rows in memory. The predictions are the cells row by row.
pub(super) fn adapt_rows(
    asked: &TableFit,
    run: &ModelUse<'_>,
    rows: &Input,
) -> Result<FittedClient> {
    let run = Run::read(asked, run)?;
    let (read, _) = read_rows(&run, rows)?;
    let client = NewClient::fit(&run.table, read, run.run.job.seed)?;
    let effect = client.sheet.effect;
    Ok(FittedClient {
        artifact: Artifact::new("low-rank-client").with("effect", &[], vec![effect]),
        predicted: client.sheet.predicted(),
        rows: client.sheet.rows.len(),
        figures: vec![("effect", number(effect))],
        notes: vec![format!("intervals: {}", client.intervals())],
    })
}

/// Reads a new client's cells, with warnings about them.
fn read_rows(run: &Run<'_>, rows: &Input) -> Result<(CellTable, Vec<String>)> {
    let reading = CellOptions {
        row_labels: None,
        column_labels: Some(run.table.columns.clone()),
        ..run.options(rows)?
    };
    let mut read = rows.read_cells(&reading)?;
    let mut warnings = read.warnings.clone();
    let (known, labels) = (run.attributes()?, (&run.table.rows, &run.table.columns));
    warnings.extend(rows.contradictions(&reading, &known, labels.0, labels.1)?);
    if read.client_names().len() > 1 {
        let names: Vec<&str> = read.client_names().take(3).collect();
        warnings.push(format!(
            "{rows} names {} clients ({}{}): they are treated as one, with one effect",
            read.client_names().len(),
            names.join(", "),
            if read.client_names().len() > 3 { ", ..." } else { "" }
        ));
    }
    if matches!(rows, Input::Rows(_)) && run.labels_are_lines()? {
        // Line numbers do not identify rows of the run.
        read.rows = read.rows.iter().map(|label| format!("new {label}")).collect();
    }
    Ok((read, warnings))
}

/// Fits the client's effect and its new rows, and writes its completed table.
pub(super) fn adapt(
    asked: &TableFit,
    run: &ModelUse<'_>,
    options: &AdaptOptions<'_>,
) -> Result<Adapted> {
    if options.labels.is_some() {
        return refuse("--labels is for images", "take it out");
    }
    let run = Run::read(asked, run)?;
    let (read, mut warnings) = read_rows(&run, options.data)?;
    let client = NewClient::fit(&run.table, read, run.run.job.seed)?;
    let rows = &client.sheet.rows;
    let is_empty = |place: &Place| matches!(place, Place::New(row) if row.observations == 0);
    let empty = rows.iter().filter(|(_, place)| is_empty(place)).count();
    if empty > 0 {
        warnings.push(format!(
            "{empty} new rows have no observation: imputed from the run's rows, with wide intervals"
        ));
    }
    write_atomically_with(&options.out.join("imputed.csv"), |out| {
        client.sheet.write_long(options.draws, out)
    })?;
    let model = serde_json::to_string_pretty(&client.model_json()).unwrap_or_default();
    write_atomically(&options.out.join("model.json"), (model + "\n").as_bytes())?;
    let mut summary = client.summary(run.run.folder);
    let text = serde_json::to_string_pretty(&summary).unwrap_or_default();
    write_atomically(&options.out.join("summary.json"), (text + "\n").as_bytes())?;
    summary.insert("out".into(), options.out.display().to_string().into());
    let notes = vec![
        format!("intervals: {}", client.intervals()),
        format!(
            "{} ({} new to the run), {} observed: {}",
            counted(rows.len(), "row"),
            client.new_rows().count(),
            counted(client.observed(), "cell"),
            options.out.display()
        ),
    ];
    Ok(Adapted { figures: summary, warnings, notes })
}

/// A new client's table.
struct NewClient<'a> {
    sheet: Sheet<'a>,
}

impl<'a> NewClient<'a> {
    fn fit(table: &'a Completed, read: CellTable, seed: u64) -> Result<Self> {
        let index: HashMap<&String, usize> =
            table.rows.iter().enumerate().map(|(at, name)| (name, at)).collect();
        // A row without a cell in the run is new as well.
        let known = |label| index.get(label).copied().filter(|row| table.knows_row(*row));
        let known: Vec<Option<usize>> = read.rows.iter().map(known).collect();
        let mut cells_of_run = Vec::new();
        let mut cells_of_new: Vec<Vec<(u32, f64)>> = vec![Vec::new(); known.len()];
        for cell in &read.cells {
            match known[cell.row as usize] {
                Some(row) => cells_of_run.push(Cell { row: row as u32, ..*cell }),
                None => cells_of_new[cell.row as usize].push((cell.column, cell.value)),
            }
        }
        let effect = if table.personal { table.fit.own_effect(&cells_of_run)? } else { 0.0 };
        let mut rows = Vec::with_capacity(known.len());
        for ((label, known), cells) in read.rows.iter().zip(known).zip(&cells_of_new) {
            let place = match known {
                Some(row) => Place::Known(row),
                None => Place::New(table.fit.new_row(cells, effect)?),
            };
            rows.push((label.clone(), place));
        }
        let seen = Some(Observations::new(&read.cells, &[]));
        Ok(Self { sheet: Sheet { table, rows, effect, seen, seed } })
    }

    /// Number of observed cells.
    fn observed(&self) -> usize {
        self.sheet.seen.as_ref().map_or(0, Observations::count)
    }

    /// Observed rows that are new to the run.
    fn new_rows(&self) -> impl Iterator<Item = (&String, &NewRow)> {
        self.sheet.rows.iter().filter_map(|(label, place)| match place {
            Place::New(row) if row.observations > 0 => Some((label, row)),
            Place::New(_) | Place::Known(_) => None,
        })
    }

    /// The origin of the intervals, in words.
    fn intervals(&self) -> String {
        let run = self.sheet.table.intervals();
        let of_run = |(_, place): &(String, Place)| matches!(place, Place::Known(_));
        match (self.new_rows().count(), self.sheet.rows.iter().any(of_run)) {
            (0, _) => run,
            (_, true) => format!("the run's rows: {run}; new rows: {NEW_ROWS}"),
            (_, false) => NEW_ROWS.into(),
        }
    }

    fn model_json(&self) -> Map<String, Value> {
        let fit = &self.sheet.table.fit;
        let rank = fit.model.rank();
        let numbers = |xs: &[f64]| xs.iter().map(|x| number(*x)).collect::<Value>();
        let object = json!({
            "kind": "low-rank-client",
            "effect": number(self.sheet.effect),
            "rows": self.new_rows().map(|(label, _)| label).collect::<Vec<_>>(),
            "row_effects": self.new_rows().map(|(_, row)| number(fit.new_row_effect(row))).collect::<Value>(),
            "u": self.new_rows().map(|(_, row)| numbers(&row.own[..rank])).collect::<Value>(),
            "row_ceiling": self.new_rows().map(|(_, row)| number(row.ceiling)).collect::<Value>(),
        });
        object.as_object().cloned().unwrap_or_default()
    }

    fn summary(&self, run: &Path) -> Map<String, Value> {
        let (rows, columns) = (self.sheet.rows.len(), self.sheet.table.columns.len());
        let object = json!({
            "adapted_from": run.display().to_string(),
            "rows": rows,
            "new_rows": self.new_rows().count(),
            "columns": columns,
            "observed": self.observed(),
            "imputed": rows * columns - self.observed(),
            "effect": number(self.sheet.effect),
            "intervals": self.intervals(),
        });
        object.as_object().cloned().unwrap_or_default()
    }
}
