//! The completed table of a run.

use super::completed::Completed;
use super::observed::{Observations, ObservedTable};
use super::sheet::{Place, Sheet};
use super::{TableFit, terms};
use crate::failure::{Failure, Result, remedy};
use crate::family::{ImputeOptions, Imputed, ModelUse};
use crate::files::{named, read_object};
use crate::job::{Csv, DataSource, Labels, Partition};
use crate::load::{cell_options, kept_out, load};
use serde_json::json;
use std::io::Write;
use whimbrel_core::text::counted;
use whimbrel_core::{Cell, Error};
use whimbrel_data::{Attribute, CellOptions, Error as DataError, Input};

/// Most labels named in a warning.
const NAMED_MAX: usize = 3;

/// Writes estimates, intervals and imputations of every cell.
pub(super) fn impute(
    asked: &TableFit,
    run: &ModelUse<'_>,
    options: &ImputeOptions<'_>,
    out: &mut dyn Write,
) -> Result<Imputed> {
    let run = Run::read(asked, run)?;
    let table = &run.table;
    let mut notes = Vec::new();
    let mut warnings = Vec::new();
    let cells = run.cells(options.data, options.client, &mut warnings)?;
    let effect = match (&cells, &options.client) {
        (Some(cells), Some(_)) if table.personal => own_effect(table, &cells.fitted)?,
        _ => 0.0,
    };
    let without_effects = table.personal && options.client.is_none();
    if without_effects {
        notes.push(
            "this table has no personal effect; --client NAME writes the table of a client".into(),
        );
    }
    let [rows, columns] = &table.bare;
    warnings.extend(warning_of_bare("row", rows, &table.rows));
    warnings.extend(warning_of_bare("column", columns, &table.columns));
    warnings.extend(table.warning_of_few());
    let places = table.rows.iter().enumerate().map(|(at, row)| (row.clone(), Place::Known(at)));
    let seed = run.run.job.seed;
    let seen = cells.map(|facts| facts.seen);
    let sheet = Sheet { table, rows: places.collect(), effect, seen, seed };
    let draws = options.draws;
    let written =
        if options.wide { sheet.write_wide(draws, out) } else { sheet.write_long(draws, out) };
    written.map_err(|e| Error::storage("the completed table", e))?;
    let cells = table.rows.len() * table.columns.len();
    let observed = sheet.seen.as_ref().map(Observations::count);
    let imputed = cells - observed.unwrap_or(0);
    let intervals =
        if without_effects { table.intervals_without_effects() } else { table.intervals() };
    let figures = json!({
        "rows": table.rows.len(), "columns": table.columns.len(),
        "observed": observed, "held_out": sheet.seen.as_ref().map(Observations::held_out),
        "imputed": imputed, "draws": options.draws,
        "unobserved_rows": rows.len(), "unobserved_columns": columns.len(),
        "hardly_observed_rows": table.hardly_observed(),
        "intervals": intervals,
    });
    notes.push(format!("intervals: {intervals}"));
    notes.push(format!(
        "{} and {}, {} cells observed, {imputed} imputed",
        counted(table.rows.len(), "row"),
        counted(table.columns.len(), "column"),
        observed.map_or("an unknown number of".into(), |n| n.to_string())
    ));
    Ok(Imputed { figures: figures.as_object().cloned().unwrap_or_default(), warnings, notes })
}

/// A finished low-rank run.
pub(super) struct Run<'a> {
    asked: &'a TableFit,
    pub run: &'a ModelUse<'a>,
    pub table: Completed,
    data_hash: Option<String>,
}

impl<'a> Run<'a> {
    pub fn read(asked: &'a TableFit, run: &'a ModelUse<'a>) -> Result<Self> {
        let table = Completed::of(run)?;
        let summary = read_object(&run.folder.join("summary.json")).unwrap_or_default();
        let data_hash = summary.get("data_hash").and_then(|hash| hash.as_str()).map(String::from);
        Ok(Self { asked, run, table, data_hash })
    }

    /// Descriptions of the table's rows and columns.
    pub fn attributes(&self) -> Result<Vec<Attribute>> {
        let known = self.run.model.get("attributes").cloned().unwrap_or_else(|| json!([]));
        serde_json::from_value(known).map_err(|e| self.run.broken(&e.to_string()))
    }

    /// The job's csv file.
    fn csv(&self) -> Result<&Csv> {
        match &self.run.job.data.source {
            DataSource::Csv(csv) => Ok(csv),
            _ => Err(Failure::config("the run's job does not read a table with gaps")),
        }
    }

    /// Whether the job labels rows by line numbers.
    pub fn labels_are_lines(&self) -> Result<bool> {
        Ok(self.csv()?.cells.row.is_empty())
    }

    /// The options to read a file of this table, with or without a column of clients.
    pub fn options(&self, rows: &Input) -> Result<CellOptions> {
        let mut options =
            cell_options(self.csv()?, self.asked.entries(), terms::described(&self.asked.table))?;
        if let Some(client) = &options.client {
            let names = rows.read(&Default::default())?;
            if !names.columns().iter().any(|column| column.name == *client) {
                options.client = None;
            }
        }
        Ok(options)
    }

    /// The observed cells of all clients or of one, from `--data` or the run's file; `None` if they
    /// are unknown. Held-out cells are drawn again from the run's file, or from the client's name and
    /// cells; in other files no cell counts as held out.
    fn cells(
        &self,
        given: Option<&Input>,
        client: Option<&str>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<ObservedTable>> {
        let csv = self.csv()?;
        let rows = given.unwrap_or(&csv.path);
        if given.is_none() {
            let reason = match self.data_hash.as_deref() {
                Some("") => "only the clients hold the observations".to_owned(),
                _ if !rows.exists() => format!("{rows} does not exist"),
                _ => String::new(),
            };
            if !reason.is_empty() && client.is_some() {
                let error = Error::config(reason).hint(remedy::GIVE_FILE);
                return Err(error.into());
            }
            if !reason.is_empty() {
                warnings.push(format!(
                    "{reason}: all cells are written as estimates; --data gives observations"
                ));
                return Ok(None);
            }
        }
        let is_same = rows.exists() && Some(rows.hash()?) == self.data_hash;
        if given.is_none() && self.data_hash.is_some() && !is_same {
            warnings
                .push(format!("{rows} has changed since the run: the held-out cells are unknown"));
        }
        if is_same && client.is_none() {
            return self.of_the_run(rows).map(Some);
        }
        let table = &self.table;
        let options = CellOptions {
            row_labels: Some(table.rows.clone()),
            column_labels: Some(table.columns.clone()),
            ..self.options(rows)?
        };
        let mut read = rows.read_cells(&options).map_err(unknown_labels)?;
        let (Some(client), Some(column)) = (client, &options.client) else {
            // The file of a single client need not name it.
            let has_names = matches!(csv.partition, Partition::Column(_) | Partition::Pooled);
            let owner = client.filter(|_| given.is_some() && has_names);
            return self.parted(owner, read.cells).map(Some);
        };
        match read.by_client()?.into_iter().find(|part| part.name == client) {
            Some(part) => {
                let owner = (given.is_some() || is_same).then_some(client);
                self.parted(owner, part.cells).map(Some)
            }
            None => {
                let what =
                    format!("{rows} has no observation of client {client:?} in column {column:?}");
                Err(Failure::config(what))
            }
        }
    }

    /// All cells of the run's file.
    fn of_the_run(&self, rows: &Input) -> Result<ObservedTable> {
        let mut job = self.run.job.clone();
        if let DataSource::Csv(csv) = &mut job.data.source {
            csv.path = rows.clone();
            csv.cells.row_labels = Some(Labels::Listed(self.table.rows.clone()));
            csv.cells.column_labels = Some(Labels::Listed(self.table.columns.clone()));
        }
        let facts = ObservedTable::of(&load(&job)?.clients);
        facts.ok_or_else(|| Failure::config("the run's job does not read a table with gaps"))
    }

    /// The cells of a client, split into fitted and held-out ones if the client is known.
    fn parted(&self, owner: Option<&str>, cells: Vec<Cell>) -> Result<ObservedTable> {
        let holdout = self.csv()?.cells.holdout;
        let (fitted, held_out) = match owner {
            Some(name) => kept_out(cells, holdout, self.run.job.data.seed, name),
            None => (cells, Vec::new()),
        };
        Ok(ObservedTable::new(fitted, held_out))
    }
}

/// A client's effect, from its fitted cells in rows and columns with fitted cells.
fn own_effect(table: &Completed, cells: &[Cell]) -> Result<f64> {
    let known = |cell: &&Cell| table.knows(cell.row as usize, cell.column as usize);
    let cells: Vec<Cell> = cells.iter().filter(known).copied().collect();
    Ok(table.fit.own_effect(&cells)?)
}

/// Adds a hint to an error about unknown rows.
fn unknown_labels(error: DataError) -> Failure {
    match error {
        DataError::Rows { file, listed, count, .. }
            if listed
                .iter()
                .flat_map(|row| &row.reasons)
                .any(|(_, why)| why.contains(" labels")) =>
        {
            let hint = Some(remedy::ADD_ROWS.into());
            DataError::Rows { file, listed, count, hint }.into()
        }
        other => other.into(),
    }
}

fn warning_of_bare(noun: &str, bare: &[usize], labels: &[String]) -> Option<String> {
    (!bare.is_empty()).then(|| {
        format!(
            "{} with no cell in the fit ({}): estimated from the common effects, with wide intervals",
            counted(bare.len(), noun),
            named(bare, labels, NAMED_MAX)
        )
    })
}
