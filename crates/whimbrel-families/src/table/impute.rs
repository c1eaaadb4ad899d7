//! The completed table of a run.

use super::TableFit;
use super::completed::Completed;
use super::observed::{Observations, ObservedTable};
use super::sheet::{Place, Sheet};
use crate::failure::{Failure, Result};
use crate::family::{Fit, ImputeOptions, Imputed, ModelUse, counted, refuse};
use crate::files::{named, read_object};
use crate::job::{Csv, DataSource, Labels, Partition};
use crate::load::{cell_options, kept_out, load};
use serde_json::json;
use std::io::Write;
use whimbrel_core::{Cell, Error};
use whimbrel_data::{Attribute, CellOptions, Error as DataError, Input};

/// Labels named in a warning.
const NAMED_MAX: usize = 3;

/// Writes estimates, intervals and imputations of every cell.
pub(super) fn impute(
    asked: &TableFit,
    run: &ModelUse<'_>,
    options: &ImputeOptions<'_>,
    out: &mut dyn Write,
) -> Result<Imputed> {
    if options.wide && options.draws > 0 {
        return refuse(
            "--wide holds one number per cell, and --draws needs more",
            "leave out one of the two",
        );
    }
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
            "clients have effects of their own: this is the table of one without; --client NAME \
             writes a client's"
                .into(),
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
    let written = match options.wide {
        true => sheet.write_wide(out),
        false => sheet.write_long(options.draws, out),
    };
    written.map_err(|e| Error::storage("the completed table", e))?;
    let cells = table.rows.len() * table.columns.len();
    let observed = sheet.seen.as_ref().map(Observations::count);
    let imputed = cells - observed.unwrap_or(0);
    let intervals = match without_effects {
        true => table.intervals_without_effects(),
        false => table.intervals(),
    };
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
        let table = Completed::read(run.folder)?;
        let summary = read_object(&run.folder.join("summary.json")).unwrap_or_default();
        let data_hash = summary.get("data_hash").and_then(|hash| hash.as_str()).map(String::from);
        Ok(Self { asked, run, table, data_hash })
    }

    /// What describes the table's rows and columns.
    pub fn attributes(&self) -> Result<Vec<Attribute>> {
        let path = self.run.folder.join("model/model.json");
        let known = read_object(&path)?.remove("attributes").unwrap_or_else(|| json!([]));
        serde_json::from_value(known)
            .map_err(|e| Failure::config(format!("{}: {e}", path.display())))
    }

    /// How the job's data name rows, columns and values.
    fn csv(&self) -> Result<&Csv> {
        match &self.run.job.data.source {
            DataSource::Csv(csv) => Ok(csv),
            _ => Err(Failure::config("the run's job has no table with gaps")),
        }
    }

    /// How to read a file of this table; it need not name clients.
    pub fn options(&self, rows: &Input) -> Result<CellOptions> {
        let mut options = cell_options(self.csv()?, self.asked.entries(), self.asked.described())?;
        if let Some(client) = &options.client {
            let names = rows.read_csv(&Default::default())?;
            if !names.columns().iter().any(|column| column.name == *client) {
                options.client = None;
            }
        }
        Ok(options)
    }

    /// What was observed, by everyone or by one client: in `--data`, else in the file the run was
    /// fitted to. Nothing where that is unknown.
    ///
    /// What was kept out is drawn again, from the file of the run or, as on a network, from the
    /// name of the client and its cells. In other files that is unknown, and nothing counts as
    /// such.
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
                Some("") => "the clients kept what they observed".to_owned(),
                _ if !rows.exists() => format!("{rows} does not exist"),
                _ => String::new(),
            };
            if !reason.is_empty() && client.is_some() {
                let error = Error::config(reason).hint("--data names a file of the client");
                return Err(error.into());
            }
            if !reason.is_empty() {
                warnings.push(format!(
                    "{reason}: every cell is written as an estimate; --data names a file"
                ));
                return Ok(None);
            }
        }
        let is_same = rows.exists() && Some(rows.hash()?) == self.data_hash;
        if given.is_none() && self.data_hash.is_some() && !is_same {
            warnings.push(format!(
                "{rows} has changed since the run: which cells were held out is not known"
            ));
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
            // A client's own file need not name it.
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

    /// All cells of the run's own file.
    fn of_the_run(&self, rows: &Input) -> Result<ObservedTable> {
        let mut job = self.run.job.clone();
        if let DataSource::Csv(csv) = &mut job.data.source {
            csv.path = rows.clone();
            csv.cells.row_labels = Some(Labels::Listed(self.table.rows.clone()));
            csv.cells.column_labels = Some(Labels::Listed(self.table.columns.clone()));
        }
        let facts = ObservedTable::of(&load(&job)?.clients);
        facts.ok_or_else(|| Failure::config("the run's job has no table with gaps"))
    }

    /// Cells of one client, and which of them were kept out; without their owner, of an unknown
    /// one.
    fn parted(&self, owner: Option<&str>, cells: Vec<Cell>) -> Result<ObservedTable> {
        let holdout = self.csv()?.cells.holdout;
        let (fitted, held_out) = match owner {
            Some(name) => kept_out(cells, holdout, self.run.job.data.seed, name),
            None => (cells, Vec::new()),
        };
        Ok(ObservedTable::new(fitted, held_out))
    }
}

/// A client's own effect, from its cells of the fit in rows and columns that the fit knows.
fn own_effect(table: &Completed, cells: &[Cell]) -> Result<f64> {
    let known = |cell: &&Cell| table.knows(cell.row as usize, cell.column as usize);
    let cells: Vec<Cell> = cells.iter().filter(known).copied().collect();
    Ok(table.fit.own_effect(&cells)?)
}

/// Says what can be done about rows that the run does not know.
fn unknown_labels(error: DataError) -> Failure {
    match error {
        DataError::Rows { file, listed, count, .. }
            if listed
                .iter()
                .flat_map(|row| &row.reasons)
                .any(|(_, why)| why.contains(" labels")) =>
        {
            let hint =
                Some("rows that the run does not know are fitted by `whimbrel adapt`".into());
            DataError::Rows { file, listed, count, hint }.into()
        }
        other => other.into(),
    }
}

fn warning_of_bare(noun: &str, bare: &[usize], labels: &[String]) -> Option<String> {
    (!bare.is_empty()).then(|| {
        format!(
            "{} had no cell in the fit ({}): estimated without any of their own, with wide intervals",
            counted(bare.len(), noun),
            named(bare, labels, NAMED_MAX)
        )
    })
}
