//! The rows of a mixture with their missing cells completed.

use super::keys::MixedKeys;
use super::predict::{Rows, likeliest, load_model, read_rows};
use crate::failure::{Result, remedy};
use crate::family::{ImputeOptions, Imputed, ModelUse, refuse};
use crate::files::{quoted, read_object};
use crate::job::{DataSource, Partition};
use crate::usage::imputation;
use serde_json::{Value, json};
use std::io::{self, Write};
use whimbrel_core::text::counted;
use whimbrel_core::{Error, Key};
use whimbrel_data::{Dataset, Input, MixedColumn};
use whimbrel_models::mixed::Filled;

/// Random stream of the bootstrap sample of an imputation.
const REFIT: u64 = u64::MAX;

/// Writes estimates, intervals and imputations of every cell; with `wide`, the file with its gaps filled.
pub(super) fn impute(
    keys: &MixedKeys,
    run: &ModelUse<'_>,
    options: &ImputeOptions<'_>,
    out: &mut dyn Write,
) -> Result<Imputed> {
    let (model, theta, columns) = load_model(keys, run)?;
    let Rows { data, table } = read_rows(run, source(run, options)?, &columns, options.wide)?;
    let chosen = rows_of(&data, run, options.client)?;
    let bound = model.data_from_rows(&table.values)?;
    let found = model.predict(&theta, &bound, super::predict::COVERAGE)?.filled;
    let first = if options.wide { options.draws.max(1) } else { 1 };
    let numbers: Vec<_> =
        (first..=options.draws).map(|number| imputation(run.job.seed, number)).collect();
    let fitted = read_object(&run.folder.join("summary.json")).unwrap_or_default();
    let total = fitted.get("rows").and_then(Value::as_u64).unwrap_or(table.rows() as u64);
    let draw = |key: &Key| -> Result<Vec<f64>> {
        let refitted = model.refitted(&theta, &bound, total, key.child(REFIT))?;
        Ok(model.draw(&refitted, &bound, &[*key])?.swap_remove(0))
    };
    let draws = numbers.iter().map(draw).collect::<Result<_>>()?;
    let sheet = Sheet { data: &data, columns: &columns, cells: &table.values, found, draws };
    let written =
        if options.wide { sheet.write_wide(&chosen, out) } else { sheet.write_long(&chosen, out) };
    written.map_err(|e| Error::storage("the completed table", e))?;
    let width = columns.len();
    let cells = chosen.iter().flat_map(|row| &table.values[row * width..][..width]);
    let imputed = cells.filter(|x| x.is_nan()).count();
    let observed = chosen.len() * width - imputed;
    let intervals = "90 % given the observed cells of the row; they leave out the uncertainty of the \
                     fitted parameters, which draws include";
    let figures = json!({
        "rows": chosen.len(), "columns": width, "observed": observed, "imputed": imputed,
        "draws": options.draws, "intervals": intervals,
    });
    let notes = vec![
        format!("intervals: {intervals}"),
        format!(
            "{} and {}, {observed} cells observed, {imputed} imputed",
            counted(chosen.len(), "row"),
            counted(width, "column")
        ),
    ];
    let figures = figures.as_object().cloned().unwrap_or_default();
    Ok(Imputed { figures, warnings: warning_of_spelling(run, options.wide), notes })
}

/// The rows to complete: those given, or the run's.
fn source<'a>(run: &'a ModelUse<'_>, options: &ImputeOptions<'a>) -> Result<&'a Input> {
    if let Some(given) = options.data {
        return Ok(given);
    }
    let DataSource::Csv(csv) = &run.job.data.source else {
        return Err(run.unsupported("was not fitted to a table"));
    };
    let summary = read_object(&run.folder.join("summary.json")).unwrap_or_default();
    let why = match summary.get("data_hash").and_then(Value::as_str) {
        Some("") => "only the clients hold the rows".into(),
        _ if !csv.path.exists() => format!("{} does not exist", csv.path),
        _ => return Ok(&csv.path),
    };
    Err(Error::config(why).hint(remedy::GIVE_FILE).into())
}

/// The rows of a client; all without a name.
fn rows_of(data: &Dataset, run: &ModelUse<'_>, client: Option<&str>) -> Result<Vec<usize>> {
    let Some(client) = client else { return Ok((0..data.rows()).collect()) };
    let DataSource::Csv(csv) = &run.job.data.source else { return Ok(Vec::new()) };
    let Partition::Column(column) = &csv.partition else {
        return refuse("the rows of this run name no client", "leave --client out");
    };
    let at = data.column(column)?;
    let rows: Vec<usize> =
        (0..data.rows()).filter(|row| data.text(*row, at) == Some(client)).collect();
    if rows.is_empty() {
        let what = format!("{} has no row of client {client:?}", data.name());
        return Err(Error::config(what).into());
    }
    Ok(rows)
}

/// A completed file has commas between cells and points in numbers.
fn warning_of_spelling(run: &ModelUse<'_>, wide: bool) -> Vec<String> {
    let DataSource::Csv(csv) = &run.job.data.source else { return Vec::new() };
    let differs = wide && (csv.delimiter.is_some_and(|c| c != ',') || csv.thousands.is_some());
    let what = "cells are separated by commas, and numbers have points and no marks: take `delimiter` \
                and `thousands` out of the jobs that read this file";
    differs.then(|| what.into()).into_iter().collect()
}

/// Rows with their completed cells.
struct Sheet<'a> {
    data: &'a Dataset,
    columns: &'a [MixedColumn],
    /// The model's cells, row by row; NaN for a missing one.
    cells: &'a [f64],
    /// The missing cells, row by row.
    found: Vec<Filled>,
    /// Imputations of the missing cells.
    draws: Vec<Vec<f64>>,
}

impl Sheet<'_> {
    /// The place of each cell among the missing ones.
    fn gaps(&self) -> Vec<Option<usize>> {
        let mut next = 0..;
        self.cells.iter().map(|x| if x.is_nan() { next.next() } else { None }).collect()
    }

    /// A value of a column as text.
    fn shown(&self, column: usize, value: f64) -> String {
        match self.columns[column].levels.get(value as usize) {
            Some(level) => quoted(level),
            None => value.to_string(),
        }
    }

    /// The estimate of a missing cell: the mean, or the likeliest level.
    fn estimate(&self, gap: usize) -> f64 {
        match &self.found[gap] {
            Filled::Scalar { mean, .. } => *mean,
            Filled::Levels { probabilities, .. } => likeliest(probabilities) as f64,
        }
    }

    /// Writes one line for each cell of the model's columns.
    fn write_long(&self, rows: &[usize], out: &mut dyn Write) -> io::Result<()> {
        write!(out, "row,column,observed,value,estimate,se,lower,upper")?;
        (1..=self.draws.len()).try_for_each(|k| write!(out, ",draw_{k}"))?;
        writeln!(out)?;
        let (gaps, width) = (self.gaps(), self.columns.len());
        for row in rows {
            for (at, column) in self.columns.iter().enumerate() {
                let cell = row * width + at;
                write!(out, "{},{},", row + 1, quoted(&column.name))?;
                let value = self.shown(at, self.cells[cell]);
                match gaps[cell].map(|gap| (gap, &self.found[gap])) {
                    None if column.levels.is_empty() => {
                        write!(out, "yes,{value},{value},0,{value},{value}")?;
                    }
                    None => write!(out, "yes,{value},{value},,,")?,
                    Some((_, Filled::Scalar { mean, sd, interval: [low, high], .. })) => {
                        write!(out, "no,,{mean},{sd},{low},{high}")?;
                    }
                    Some((gap, Filled::Levels { .. })) => {
                        write!(out, "no,,{},,,", self.shown(at, self.estimate(gap)))?;
                    }
                }
                for draws in &self.draws {
                    let drawn = gaps[cell].map(|gap| self.shown(at, draws[gap]));
                    write!(out, ",{}", drawn.as_ref().unwrap_or(&value))?;
                }
                writeln!(out)?;
            }
        }
        Ok(())
    }

    /// Writes the file with its gaps filled by the imputation, or by estimates without one.
    fn write_wide(&self, rows: &[usize], out: &mut dyn Write) -> io::Result<()> {
        let (gaps, width) = (self.gaps(), self.columns.len());
        let of_model: Vec<Option<usize>> = self
            .data
            .columns()
            .iter()
            .map(|own| self.columns.iter().position(|column| column.name == own.name))
            .collect();
        let names = self.data.columns().iter();
        let names: Vec<String> =
            names.map(|c| if c.named { quoted(&c.name) } else { String::new() }).collect();
        writeln!(out, "{}", names.join(","))?;
        for row in rows {
            let cell = |(at, place): (usize, &Option<usize>)| match place {
                Some(column) => {
                    let cell = row * width + column;
                    let fill = |gap| self.draws.first().map_or(self.estimate(gap), |of| of[gap]);
                    self.shown(*column, gaps[cell].map_or(self.cells[cell], fill))
                }
                None => match self.data.text(*row, at) {
                    Some(text) => quoted(text),
                    None => self.data.number(*row, at).map_or(String::new(), |x| x.to_string()),
                },
            };
            let cells: Vec<String> = of_model.iter().enumerate().map(cell).collect();
            writeln!(out, "{}", cells.join(","))?;
        }
        Ok(())
    }
}
