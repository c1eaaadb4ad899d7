//! A completed table as a CSV file.

use super::completed::{Completed, Estimate, Unsure};
use super::observed::Observations;
use crate::family::{Predicted, Predictions};
use crate::files::quoted;
use crate::usage::imputation;
use std::io::{self, Write};

pub use super::completed::Place;

/// Significant digits of estimates and draws.
const DIGITS: usize = 6;
/// Draws behind a standard error, which is then known to about 7 %.
const SD_DRAWS: u32 = 100;
/// Random stream of errors that cells of an imputation share.
const SHARED: u64 = u64::MAX;

/// The rows of a run or of a new client.
pub struct Sheet<'a> {
    pub table: &'a Completed,
    /// Rows with their labels.
    pub rows: Vec<(String, Place)>,
    /// A client's effect; 0 without one.
    pub effect: f64,
    /// The observed cells, if known.
    pub seen: Option<Observations>,
    /// The seed of draws.
    pub seed: u64,
}

impl Sheet<'_> {
    fn cell(&self, row: usize, column: usize) -> Unsure {
        self.table.cell_of(&self.rows[row].1, row, column, self.effect)
    }

    fn value(&self, row: usize, column: usize) -> Option<f64> {
        self.seen.as_ref()?.value(row, column)
    }

    /// The value of a cell in one imputation; depends only on the seed, the imputation's number and
    /// the cell. All cells of an imputation share the errors of rows, columns and terms.
    pub fn draw(&self, row: usize, column: usize, number: u32) -> f64 {
        self.draw_of(&self.cell(row, column), row, column, number)
    }

    fn draw_of(&self, cell: &Unsure, row: usize, column: usize, number: u32) -> f64 {
        let (fit, Unsure { parameter, shares }) = (&self.table.fit, cell);
        let key = imputation(self.seed, number);
        let deviation = fit.deviation(*parameter, shares, key.child(SHARED));
        let place = (row * self.table.columns.len() + column) as u64;
        fit.draw(*parameter, deviation, &mut key.child(place).stream())
    }

    /// The standard error of a cell: the standard deviation of its first draws.
    fn sd(&self, cell: &Unsure, row: usize, column: usize) -> f64 {
        let draws = (1..=SD_DRAWS).map(|k| self.draw_of(cell, row, column, k));
        let (mut mean, mut squares) = (0.0, 0.0);
        for (n, x) in draws.enumerate() {
            let gap = x - mean;
            mean += gap / (n + 1) as f64;
            squares += gap * (x - mean);
        }
        (squares / f64::from(SD_DRAWS - 1)).sqrt()
    }

    /// The estimates of all cells, row by row.
    pub(crate) fn predicted(&self) -> Predicted {
        let width = self.table.columns.len();
        let labels = |of: &dyn Fn(usize) -> usize, names: Vec<String>| {
            let of = (0..self.rows.len() * width).map(of).collect();
            Predictions::Labels { of, names }
        };
        let names = self.rows.iter().map(|(name, _)| name.clone()).collect();
        let estimate = |at: usize| {
            let cell = self.cell(at / width, at % width);
            let sd = self.sd(&cell, at / width, at % width);
            (self.table.estimate(cell.parameter), sd)
        };
        let cells = 0..self.rows.len() * width;
        let estimates: Vec<(Estimate, f64)> = cells.map(estimate).collect();
        let numbers = |of: &dyn Fn(&(Estimate, f64)) -> f64| {
            Predictions::Wide(estimates.iter().map(of).collect())
        };
        Predicted {
            columns: vec![
                ("row".into(), labels(&|at| at / width, names)),
                ("column".into(), labels(&|at| at % width, self.table.columns.clone())),
                ("estimate".into(), numbers(&|(cell, _)| cell.mean)),
                ("se".into(), numbers(&|(_, sd)| *sd)),
                ("lower".into(), numbers(&|(cell, _)| cell.lower)),
                ("upper".into(), numbers(&|(cell, _)| cell.upper)),
            ],
            figures: Vec::new(),
            words: "estimates of all cells".into(),
        }
    }

    /// Writes one line for each cell, with `draws` imputations.
    pub fn write_long(&self, draws: u32, out: &mut dyn Write) -> io::Result<()> {
        write!(out, "row,column,observed,value,estimate,se,lower,upper")?;
        (1..=draws).try_for_each(|k| write!(out, ",draw_{k}"))?;
        writeln!(out)?;
        let columns: Vec<String> = self.table.columns.iter().map(|name| quoted(name)).collect();
        for (row, (name, _)) in self.rows.iter().enumerate() {
            let name = quoted(name);
            for (column, label) in columns.iter().enumerate() {
                let value = self.value(row, column);
                let observed = match (&self.seen, value) {
                    (None, _) => "unknown",
                    (_, None) => "no",
                    (Some(seen), _) if seen.is_held_out(row, column) => "held-out",
                    _ => "yes",
                };
                let shown = value.map_or(String::new(), |value| value.to_string());
                write!(out, "{name},{label},{observed},{shown}")?;
                let cell = self.cell(row, column);
                let Estimate { mean, lower, upper } = self.table.estimate(cell.parameter);
                let sd = self.sd(&cell, row, column);
                for x in [mean, sd, lower, upper] {
                    write!(out, ",{}", brief(x))?;
                }
                for k in 1..=draws {
                    let draw = || brief(self.draw_of(&cell, row, column, k));
                    let drawn = value.unwrap_or_else(draw);
                    write!(out, ",{drawn}")?;
                }
                writeln!(out)?;
            }
        }
        Ok(())
    }

    /// Writes the table itself: observed values, and the others as in the imputation of this number, or as
    /// estimated for number 0.
    pub fn write_wide(&self, number: u32, out: &mut dyn Write) -> io::Result<()> {
        write!(out, "row")?;
        self.table.columns.iter().try_for_each(|name| write!(out, ",{}", quoted(name)))?;
        writeln!(out)?;
        for (row, (name, _)) in self.rows.iter().enumerate() {
            write!(out, "{}", quoted(name))?;
            for column in 0..self.table.columns.len() {
                let filled = || match number {
                    0 => self.table.estimate(self.cell(row, column).parameter).mean,
                    number => self.draw(row, column, number),
                };
                write!(out, ",{}", self.value(row, column).unwrap_or_else(|| brief(filled())))?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

/// Rounds to six significant digits.
fn brief(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    format!("{x:.*e}", DIGITS - 1).parse().unwrap_or(x)
}
