//! `whimbrel impute`: the completed table of a run.

use super::args::Impute;
use super::messages::{counted, data, note, warning};
use serde_json::json;
use std::path::Path;
use whimbrel::core::{Cell, Error};
use whimbrel::data::{CellOptions, Error as DataError, hash_file, read_cells, read_csv};
use whimbrel::engine::checkpoint::write_atomically_with;
use whimbrel::families::Job;
use whimbrel::families::completed::{
    Completed, Estimate, ModelFile, Observations, Sheet, TableFacts, write_long, write_wide,
};
use whimbrel::families::failure::{Failure, Result};
use whimbrel::families::load::{cell_options, kept_out, load};
use whimbrel::families::spec::{Csv, DataSource, Labels, LowRank, Model, Partition};
use whimbrel::families::start::read_object;
use whimbrel::runs::RunDir;

/// Labels named in a warning.
const NAMED_MAX: usize = 3;

/// Writes estimates, intervals and imputations of every cell.
pub fn impute_command(args: &Impute) -> Result<u8> {
    if args.wide && args.draws > 0 {
        let error = Error::config("--wide holds one number per cell, and --draws needs more")
            .hint("leave out one of the two");
        return Err(error.into());
    }
    let run = Run::read(&args.run)?;
    let table = &run.model.table;
    let cells = run.cells(args.data.as_deref(), args.client.as_deref())?;
    let effect = match (&cells, &args.client) {
        (Some(cells), Some(_)) if run.model.personal => own_effect(table, &cells.fitted)?,
        _ => 0.0,
    };
    if run.model.personal && args.client.is_none() {
        note(
            "clients have effects of their own: this is the table of one without; --client NAME writes a client's",
        );
    }
    let seen = cells.as_ref();
    let seen = seen.map(|c| Observations::new(&c.fitted).with_held_out(&c.held_out));
    let [rows, columns] = table.bare();
    warn_of_bare("row", &rows, &table.rows);
    warn_of_bare("column", &columns, &table.columns);
    let sheet = RunSheet { table, seen: seen.as_ref(), effect, seed: run.job.seed };
    write_atomically_with(&args.out, |out| match args.wide {
        true => write_wide(&sheet, out),
        false => write_long(&sheet, args.draws, out),
    })?;
    let cells = table.rows.len() * table.columns.len();
    let observed = seen.as_ref().map(Observations::len);
    let imputed = cells - observed.unwrap_or(0);
    let intervals = table.intervals_without_effects(run.model.personal && args.client.is_none());
    if args.json {
        let report = json!({
            "rows": table.rows.len(), "columns": table.columns.len(),
            "observed": observed, "held_out": seen.as_ref().map(Observations::held_out),
            "imputed": imputed, "draws": args.draws,
            "unobserved_rows": rows.len(), "unobserved_columns": columns.len(),
            "intervals": intervals, "out": args.out.display().to_string(),
        });
        data(&format!("{report}\n"))?;
    }
    note(&format!("intervals: {intervals}"));
    note(&format!(
        "{} and {}, {} cells observed, {imputed} imputed: {}",
        counted(table.rows.len(), "row"),
        counted(table.columns.len(), "column"),
        observed.map_or("an unknown number of".into(), |n| n.to_string()),
        args.out.display()
    ));
    Ok(0)
}

/// What was observed, as far as the fit is known to have kept some of it out.
struct Known {
    fitted: Vec<Cell>,
    held_out: Vec<Cell>,
}

/// A finished low-rank run.
pub struct Run {
    pub job: Job,
    pub model: ModelFile,
    data_hash: Option<String>,
}

impl Run {
    /// Reads a run's folder; a run of another kind is refused.
    pub fn read(folder: &Path) -> Result<Self> {
        let dir = RunDir::existing(folder)?;
        if dir.ending().is_none() {
            warning(&format!("the run in {} is not finished", folder.display()));
        }
        if let Some(first) = dir.seeds().first() {
            let name = first.path().file_name().unwrap_or_default().display().to_string();
            note(&format!("the run has several seeds: this is the model of the first, {name}"));
        }
        let model = ModelFile::read(folder)?;
        let path = folder.join("job.toml");
        let text = std::fs::read_to_string(&path).map_err(|e| Error::storage(path.display(), e))?;
        let job = Job::parse(&text, &path.display().to_string())?;
        let summary = read_object(&folder.join("summary.json")).unwrap_or_default();
        let data_hash = summary.get("data_hash").and_then(|hash| hash.as_str()).map(String::from);
        Ok(Self { job, model, data_hash })
    }

    /// How the job's data name rows, columns and values.
    pub fn table_keys(&self) -> Result<(&Csv, &LowRank)> {
        match (&self.job.data.source, &self.job.model) {
            (DataSource::Csv(csv), Model::LowRank(model)) => Ok((csv, model)),
            _ => Err(Failure::config("the run's job has no table with gaps")),
        }
    }

    /// How to read a file of this table; it need not name clients.
    pub fn options(&self, file: &Path) -> Result<CellOptions> {
        let (csv, model) = self.table_keys()?;
        let mut options = cell_options(csv, model)?;
        if let Some(client) = &options.client {
            let names = read_csv(file, &Default::default())?;
            if !names.columns().iter().any(|column| column.name == *client) {
                options.client = None;
            }
        }
        Ok(options)
    }

    /// What was observed, by everyone or by one client: in `--data`, else in the file the run was
    /// fitted to. Nothing where nobody here knows.
    ///
    /// What was kept out is drawn again, from the file of the run or, as on a network, from the
    /// name of the client and its cells. In other files nobody knows, and nothing counts as such.
    fn cells(&self, given: Option<&Path>, client: Option<&str>) -> Result<Option<Known>> {
        let (csv, _) = self.table_keys()?;
        let file = given.unwrap_or(&csv.path);
        if given.is_none() {
            let reason = match self.data_hash.as_deref() {
                Some("") => "the clients kept what they observed".to_owned(),
                _ if !file.is_file() => format!("{} is not there", file.display()),
                _ => String::new(),
            };
            if !reason.is_empty() && client.is_some() {
                let error = Error::config(reason).hint("--data names a file of the client");
                return Err(error.into());
            }
            if !reason.is_empty() {
                warning(&format!(
                    "{reason}: every cell is written as an estimate; --data names a file"
                ));
                return Ok(None);
            }
        }
        let is_same = file.is_file() && Some(hash_file(file)?) == self.data_hash;
        if given.is_none() && self.data_hash.is_some() && !is_same {
            warning(&format!(
                "{} has changed since the run: which cells were held out is not known",
                file.display()
            ));
        }
        if is_same && client.is_none() {
            return self.of_the_run(file).map(Some);
        }
        let table = &self.model.table;
        let options = CellOptions {
            row_labels: Some(table.rows.clone()),
            column_labels: Some(table.columns.clone()),
            ..self.options(file)?
        };
        let mut read = read_cells(file, &options).map_err(unknown_labels)?;
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
                let what = format!(
                    "{} has no observation of client {client:?} in column {column:?}",
                    file.display()
                );
                Err(Failure::config(what))
            }
        }
    }

    /// All cells of the run's own file.
    fn of_the_run(&self, file: &Path) -> Result<Known> {
        let mut job = self.job.clone();
        if let DataSource::Csv(csv) = &mut job.data.source {
            csv.path = file.to_owned();
            csv.cells.row_labels = Some(Labels::Listed(self.model.table.rows.clone()));
            csv.cells.column_labels = Some(Labels::Listed(self.model.table.columns.clone()));
        }
        match TableFacts::of(&load(&job)?.clients) {
            Some(TableFacts { fitted, held_out, .. }) => Ok(Known { fitted, held_out }),
            None => Err(Failure::config("the run's job has no table with gaps")),
        }
    }

    /// Cells of one client, and which of them were kept out; without their owner, of nobody known.
    fn parted(&self, owner: Option<&str>, cells: Vec<Cell>) -> Result<Known> {
        let holdout = self.table_keys()?.0.cells.holdout;
        let (fitted, held_out) = match owner {
            Some(name) => kept_out(cells, holdout, self.job.data.seed, name),
            None => (cells, Vec::new()),
        };
        Ok(Known { fitted, held_out })
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

struct RunSheet<'a> {
    table: &'a Completed,
    seen: Option<&'a Observations>,
    /// A client's own; zero without one.
    effect: f64,
    seed: u64,
}

impl RunSheet<'_> {
    /// The natural parameter of a cell with an effect on top, and how sure it is; none where there
    /// is no effect, or where the table has no cell to add it to.
    fn shifted(&self, row: usize, column: usize) -> Option<(f64, f64)> {
        let fit = &self.table.fit;
        let own = self.effect != 0.0 && self.table.knows(row, column);
        own.then(|| (fit.theta_with(row, column, self.effect), fit.spread(row, column)))
    }
}

impl Sheet for RunSheet<'_> {
    fn rows(&self) -> &[String] {
        &self.table.rows
    }
    fn columns(&self) -> &[String] {
        &self.table.columns
    }
    fn estimate(&self, row: usize, column: usize) -> Estimate {
        match self.shifted(row, column) {
            Some((theta, spread)) => self.table.estimate_of(theta, spread),
            None => self.table.estimate(row, column),
        }
    }
    fn is_seen(&self) -> bool {
        self.seen.is_some()
    }
    fn value(&self, row: usize, column: usize) -> Option<f64> {
        self.seen?.value(row, column)
    }
    fn is_held_out(&self, row: usize, column: usize) -> bool {
        self.seen.is_some_and(|seen| seen.is_held_out(row, column))
    }
    fn draw(&self, row: usize, column: usize, number: u32) -> f64 {
        match self.shifted(row, column) {
            known @ Some(_) => self.table.draw_of(known, row, column, self.seed, number),
            None => self.table.draw(row, column, self.seed, number),
        }
    }
}

fn warn_of_bare(noun: &str, bare: &[usize], labels: &[String]) {
    if bare.is_empty() {
        return;
    }
    let named: Vec<String> =
        bare.iter().take(NAMED_MAX).map(|i| format!("{:?}", labels[*i])).collect();
    let more = if bare.len() > NAMED_MAX { ", ..." } else { "" };
    let s = if bare.len() == 1 { "" } else { "s" };
    warning(&format!(
        "{} {noun}{s} had no cell in the fit ({}{more}): estimated without any of their own, with \
         wide intervals",
        bare.len(),
        named.join(", ")
    ));
}
