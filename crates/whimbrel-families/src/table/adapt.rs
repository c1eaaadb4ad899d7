//! A finished run meets a client that was not there.

use super::TableFit;
use super::completed::{Completed, Estimate, ModelFile, Observations, Sheet, write_long};
use super::impute::Run;
use crate::failure::Result;
use crate::family::{AdaptOptions, Adapted as Outcome, ModelUse, counted};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::path::Path;
use whimbrel_core::Cell;
use whimbrel_data::{CellOptions, CellTable, read_cells};
use whimbrel_engine::checkpoint::{write_atomically, write_atomically_with};
use whimbrel_engine::metrics::number;
use whimbrel_models::lowrank::NewRow;

/// Where the intervals of new rows come from.
const NEW_ROWS: &str = "90 % from the run's errors and from how little a new row's own cells say, \
                        not checked against cells that were kept out";

/// Fits what is the client's own and completes its table.
pub(super) fn adapt(
    asked: &TableFit,
    run: &ModelUse<'_>,
    options: &AdaptOptions<'_>,
) -> Result<Outcome> {
    let run = Run::read(asked, run)?;
    let reading = CellOptions {
        row_labels: None,
        column_labels: Some(run.model.table.columns.clone()),
        ..run.options(options.data)?
    };
    let read = read_cells(options.data, &reading)?;
    let mut warnings = read.warnings.clone();
    if read.client_names().len() > 1 {
        let names: Vec<&str> = read.client_names().take(3).collect();
        warnings.push(format!(
            "{} names {} clients ({}{}): they are taken as one, with one effect",
            options.data.display(),
            read.client_names().len(),
            names.join(", "),
            if read.client_names().len() > 3 { ", ..." } else { "" }
        ));
    }
    let client = Adapted::fit(&run.model, read, run.run.job.seed)?;
    let empty = client.places.iter().filter(|place| matches!(place, Place::Unknown)).count();
    if empty > 0 {
        warnings.push(format!(
            "{empty} new rows have no observation: filled in from the run's rows, with wide \
             intervals"
        ));
    }
    write_atomically_with(&options.out.join("imputed.csv"), |out| {
        write_long(&client, options.draws, out)
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
            counted(client.rows.len(), "row"),
            client.new_rows().count(),
            counted(client.seen.len(), "cell"),
            options.out.display()
        ),
    ];
    Ok(Outcome { figures: summary, warnings, notes })
}

/// What stands for a row of the client's table.
enum Place {
    /// A row of the run.
    Known(usize),
    /// Factors fitted to the client's cells.
    New(NewRow),
    /// Nothing: neither the run nor the client has a cell of it.
    Unknown,
}

/// A new client's table.
struct Adapted<'a> {
    model: &'a ModelFile,
    rows: Vec<String>,
    /// What stands for each row.
    places: Vec<Place>,
    /// The client's own effect; zero where the run has none.
    effect: f64,
    seen: Observations,
    seed: u64,
}

impl<'a> Adapted<'a> {
    fn fit(model: &'a ModelFile, read: CellTable, seed: u64) -> Result<Self> {
        let table = &model.table;
        let index: HashMap<&String, usize> =
            table.rows.iter().enumerate().map(|(at, name)| (name, at)).collect();
        // A row that the run lists but has no cell of is as new as any other.
        let known = |label| index.get(label).copied().filter(|row| table.knows_row(*row));
        let places: Vec<Option<usize>> = read.rows.iter().map(known).collect();
        let mut cells_of_run = Vec::new();
        let mut cells_of_new: Vec<Vec<(u32, f64)>> = vec![Vec::new(); places.len()];
        for cell in &read.cells {
            match places[cell.row as usize] {
                Some(row) => cells_of_run.push(Cell { row: row as u32, ..*cell }),
                None => cells_of_new[cell.row as usize].push((cell.column, cell.value)),
            }
        }
        let effect = if model.personal { table.fit.own_effect(&cells_of_run)? } else { 0.0 };
        let place = |(place, cells): (&Option<usize>, &Vec<(u32, f64)>)| {
            Ok(match place {
                Some(row) => Place::Known(*row),
                None if cells.is_empty() => Place::Unknown,
                None => Place::New(table.fit.new_row(cells, effect)?),
            })
        };
        let places = places.iter().zip(&cells_of_new).map(place).collect::<Result<_>>()?;
        let (rows, seen) = (read.rows.to_vec(), Observations::new(&read.cells));
        Ok(Self { model, rows, places, effect, seen, seed })
    }

    /// The rows that the run does not know and the client observed.
    fn new_rows(&self) -> impl Iterator<Item = (&String, &NewRow)> {
        self.rows.iter().zip(&self.places).filter_map(|(label, place)| match place {
            Place::New(row) => Some((label, row)),
            Place::Known(_) | Place::Unknown => None,
        })
    }

    /// Where the intervals come from, in words: those of new rows were checked against nothing.
    fn intervals(&self) -> String {
        let run = self.table().intervals();
        match (self.new_rows().count(), self.places.iter().any(|p| matches!(p, Place::Known(_)))) {
            (0, _) => run,
            (_, true) => format!("of the run's rows {run}; of new rows {NEW_ROWS}"),
            (_, false) => NEW_ROWS.into(),
        }
    }

    fn table(&self) -> &Completed {
        &self.model.table
    }

    fn model_json(&self) -> Map<String, Value> {
        let numbers = |xs: &[f64]| xs.iter().map(|x| number(*x)).collect::<Value>();
        let object = json!({
            "kind": "low-rank-client",
            "effect": number(self.effect),
            "rows": self.new_rows().map(|(label, _)| label).collect::<Vec<_>>(),
            "row_effects": self.new_rows().map(|(_, row)| number(row.effect)).collect::<Value>(),
            "u": self.new_rows().map(|(_, row)| numbers(&row.u)).collect::<Value>(),
            "row_ceiling": self.new_rows().map(|(_, row)| number(row.ceiling)).collect::<Value>(),
        });
        object.as_object().cloned().unwrap_or_default()
    }

    fn summary(&self, run: &Path) -> Map<String, Value> {
        let cells = self.rows.len() * self.columns().len();
        let object = json!({
            "adapted_from": run.display().to_string(),
            "rows": self.rows.len(),
            "new_rows": self.new_rows().count(),
            "columns": self.columns().len(),
            "observed": self.seen.len(),
            "imputed": cells - self.seen.len(),
            "effect": number(self.effect),
            "intervals": self.intervals(),
        });
        object.as_object().cloned().unwrap_or_default()
    }

    /// A cell's natural parameter and how sure it is; nothing where the row is unknown.
    fn known(&self, row: usize, column: usize) -> Option<(f64, f64)> {
        let fit = &self.table().fit;
        match &self.places[row] {
            Place::Known(row) => {
                Some((fit.theta_with(*row, column, self.effect), fit.spread(*row, column)))
            }
            Place::New(row) => {
                Some((fit.theta_of(row, column, self.effect), fit.spread_of(row, column)))
            }
            Place::Unknown => None,
        }
    }
}

impl Sheet for Adapted<'_> {
    fn rows(&self) -> &[String] {
        &self.rows
    }
    fn columns(&self) -> &[String] {
        &self.table().columns
    }
    fn estimate(&self, row: usize, column: usize) -> Estimate {
        match self.known(row, column) {
            Some((theta, spread)) => self.table().estimate_of(theta, spread),
            None => self.table().any_row(column),
        }
    }
    fn is_seen(&self) -> bool {
        true
    }
    fn value(&self, row: usize, column: usize) -> Option<f64> {
        self.seen.value(row, column)
    }
    fn is_held_out(&self, row: usize, column: usize) -> bool {
        self.seen.is_held_out(row, column)
    }
    fn draw(&self, row: usize, column: usize, number: u32) -> f64 {
        self.table().draw_of(self.known(row, column), row, column, self.seed, number)
    }
}
